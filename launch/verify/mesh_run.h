// Trains a small model on any layout, each rank a thread or a launched process, and returns what must not depend on the
// layout: losses, norms, and gradients, parameters and optimizer state assembled by logical name. `gpttrain verify`,
// the equality tests and the PyTorch fixture compare these.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/curriculum.h"
#include "launch/engine/engine.h"
#include "launch/engine/logical.h"
#include "launch/verify/activations.h"
#include "launch/verify/pieces.h"

namespace gt {

// Where tests plant faults in one rank of a run. Every member may be empty.
struct MeshHooks {
  std::function<std::unique_ptr<GroupFactory>(GroupFactory&)> wrap;  // this rank's groups are made by what it returns
  const Backend* backend = nullptr;                                  // instead of the CPU's
  std::function<void(const Mesh&, MicroBatch&)> batch;               // edits what the rank is given to train on
  std::function<void(Engine&, int step)> after_step;                 // before weights and state are looked at
};

// Tensors of one step: true gradients of the mean loss before clipping, and what the step made of the parameters.
struct Snapshot {
  Logical grads, weights, state;  // state: "exp_avg/layers.0…"
};

struct MeshRun {
  EngineOptions engine;  // microbatches is derived: global_batch / (micro_batch * dp)
  MeshShape mesh;
  int64_t global_batch = 8;
  int steps = 1;
  const Logical* weights = nullptr;  // start from these instead of the initial rule
  bool stir = false;                 // initial biases and norms are random too: at 0 and 1 they hide faults
  bool every_step = false;           // keep tensors of every step
  // Every step but the first starts from the parameters and state after the step before of this run: an optimizer makes
  // large differences of rounding errors in elements whose gradient is next to nothing, and they would grow.
  const std::vector<Snapshot>* follow = nullptr;
  bool activations = false;  // take fingerprints of those of the first step
  bool vary_length = false;  // microbatch k takes the first seq, 2/3 or 1/3 of its samples
  Curriculum curriculum;     // tokens of each sample that a step takes; off: all
  bool evaluate = false;     // once, after the last step, on the tokens of the next
  std::vector<std::vector<int32_t>>
      samples;                        // each seq+1 tokens; step k uses [k*global_batch, (k+1)*global_batch), wrapping
  std::chrono::seconds deadline{60};  // of a wait for another rank
  const MeshHooks* hooks = nullptr;
};

// What a rank's executor did in the last step.
struct RankRun {
  Program computed;  // its compute actions, in order
  int slots = 0, peak_live = 0;
  CommCounters data_parallel;                // what all steps sent to the ranks of its data-parallel group
  std::map<std::string, CommCounters> comm;  // of the last step, by Mesh::groups()
};

// A rank's copy of a parameter that is not its owner's, bit for bit, after a step.
struct StaleCopy {
  std::string name;
  int rank = 0, step = 0;
};

struct MeshResult {
  std::vector<double> losses, norms;
  double eval_loss = 0;  // sum of token losses, 0 without evaluation
  std::vector<RankRun> ranks;
  Logical grads;                            // of the first step
  Logical weights;                          // after the last step
  Logical state;                            // of the optimizer, after the last step
  std::vector<Snapshot> steps;              // what was looked at in each step
  Logical initial;                          // parameters before the first step, with every_step
  Activations activations;                  // when asked for
  std::vector<std::string> order, modules;  // parameters and what activations name, as a forward of one rank meets them
  std::map<std::string, std::vector<int>> holders;  // ranks that hold a piece of this parameter's value
  std::vector<StaleCopy> stale;                     // values that a rank holds and that differ from the owner's
  std::map<std::string, float> ratios;              // LAMB's, of the last step; NaN where two ranks disagree
  std::vector<EnginePlan> planned, measured;        // by rank
};

// Runs tp*pp*dp ranks as threads of this process. Rethrows the first failing rank's error.
MeshResult run_mesh(const MeshRun&);

// The same on ranks that exist: collective over the factory's world, on a device of the given backend. The result is complete on
// rank 0 and of no use elsewhere; without ranks, planned and measured.
MeshResult run_mesh_here(const MeshRun&, GroupFactory&, const Backend&, int device = 0);

// What run_mesh makes of its ranks' records.
MeshResult assemble(const MeshRun&, std::vector<RankRecord>);

// seq+1 tokens a sample from a seeded generator, with some structure so that the loss can fall.
std::vector<std::vector<int32_t>> synthetic_samples(int count, int64_t seq, int64_t vocab, uint64_t seed);

}  // namespace gt
