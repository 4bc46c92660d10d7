// Trains a small model on any layout, with ranks as threads or launched processes. Returns what must not depend on the
// layout: losses, norms, and gradients, parameters and optimizer state by logical name. Used by `gpttrain verify`, the
// equality tests and the PyTorch fixture.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/samples/curriculum.h"
#include "launch/engine/engine.h"
#include "launch/engine/group_calls.h"
#include "launch/engine/logical.h"
#include "launch/tools/verify/activations.h"
#include "launch/tools/verify/rank_record.h"

namespace gt {

// Fault injection hooks for one rank of a run. Every member may be empty.
struct MeshHooks {
  std::function<std::unique_ptr<GroupFactory>(GroupFactory&)> wrap;  // factory for this rank's groups
  const Backend* backend = nullptr;                                  // replaces the CPU backend
  std::function<void(const Mesh&, MicroBatch&)> batch;               // modifies a microbatch before training
  std::function<void(Engine&, int step)> after_step;                 // before weights and state are recorded
};

// Tensors of one step: unscaled gradients of the mean loss before clipping, and parameters and state after the update.
struct Snapshot {
  Logical grads, weights, state;  // state: "exp_avg/layers.0…"
};

struct MeshRun {
  EngineOptions engine;  // microbatches is derived: global_batch / (micro_batch * dp)
  MeshShape mesh;
  int64_t global_batch = 8;
  int steps = 1;
  const Logical* weights = nullptr;  // initial weights; nullptr: the model's initialization
  bool stir = false;                 // randomize initial biases and norms too: 0 and 1 would hide errors
  bool every_step = false;           // record tensors of every step
  // Each step but the first starts from the parameters and state that this run had after the previous step. Otherwise
  // an optimizer amplifies rounding errors in elements with negligible gradients, and they would accumulate.
  const std::vector<Snapshot>* follow = nullptr;
  bool activations = false;   // record fingerprints in the first step
  bool derive_calls = false;  // compare each rank's calls in its groups with those that the static proof derives
  bool vary_length = false;   // microbatch k takes the first seq, 2/3 or 1/3 of its samples
  Curriculum curriculum;      // tokens of each sample per step; off: all
  bool evaluate = false;      // once, after the last step, on the tokens of the next
  // Each seq+1 tokens, or for masked language models a PairRow; step k uses [k*global_batch, (k+1)*global_batch),
  // wrapping.
  std::vector<std::vector<int32_t>> samples;
  std::chrono::seconds deadline{60};  // of a wait for another rank
  const MeshHooks* hooks = nullptr;
};

// Execution statistics of one rank in the last step.
struct RankRun {
  Program computed;  // compute actions in order
  int slots = 0, peak_live = 0;
  CommCounters data_parallel;                 // traffic of its data-parallel group over all steps
  std::map<std::string, CommCounters> comm;   // of the last step, by Mesh::groups()
  std::vector<std::vector<GroupCall>> calls;  // of each step, with derive_calls
};

// Copy of a parameter on a rank that is not bitwise identical to its owner's after a step.
struct StaleCopy {
  std::string name;
  int rank = 0, step = 0;
};

// First call of a rank in its groups that is not the derived one, as first_difference().
struct WrongCall {
  std::string text;
  int rank = 0, step = 0;
};

struct MeshResult {
  std::vector<double> losses, norms;
  std::vector<std::pair<std::string, std::vector<double>>> parts;  // of each loss by name, if there are several
  double eval_loss = 0;                                            // sum of all losses' sums; 0 without evaluation
  std::vector<double> eval_hits;                                   // by loss: targets that have the largest logit
  std::vector<RankRun> ranks;
  Logical grads;                                    // of the first step
  Logical weights;                                  // after the last step
  Logical state;                                    // of the optimizer, after the last step
  std::vector<Snapshot> steps;                      // recorded tensors of each step
  Logical initial;                                  // parameters before the first step, with every_step
  Activations activations;                          // if requested
  std::vector<std::string> order, modules;          // parameters and activation modules, in forward order of one rank
  std::map<std::string, std::vector<int>> holders;  // ranks that hold a shard of this parameter
  std::vector<StaleCopy> stale;                     // copies that differ from their owner
  std::vector<WrongCall> wrong_calls;               // with derive_calls: first ones of ranks
  int64_t derived_calls = 0;                        // that were compared, of all ranks
  std::map<std::string, float> ratios;              // LAMB's trust ratios of the last step; NaN if two ranks disagree
  std::vector<EnginePlan> planned, measured;        // by rank
};

// Runs tp*pp*dp ranks as threads of this process. Rethrows the error of the first failing rank.
MeshResult run_mesh(const MeshRun&);

// Same, on existing ranks and a device of the given backend. The result is valid on rank 0 only and has no ranks,
// planned and measured. Collective over the factory's world.
MeshResult run_mesh_here(const MeshRun&, GroupFactory&, const Backend&, int device = 0);

// Combines the records of all ranks.
MeshResult assemble(const MeshRun&, std::vector<RankRecord>);

// Returns `count` samples of seq+1 tokens from a seeded generator, with enough structure for the loss to fall.
std::vector<std::vector<int32_t>> synthetic_samples(int count, int64_t seq, int64_t vocab, uint64_t seed);
// Samples as the model takes them: such runs of tokens, or sentence pairs of them with masked tokens.
std::vector<std::vector<int32_t>> synthetic_samples(const TransformerConfig&, int count, uint64_t seed);

}  // namespace gt
