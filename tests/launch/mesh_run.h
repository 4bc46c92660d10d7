// Trains a small model on any layout, each rank a thread, and returns what must not depend on the layout: losses, norms, and
// gradients and parameters assembled by logical name. The equality tests and the PyTorch fixture compare these.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/engine.h"

namespace gt {

using Logical = std::map<std::string, std::vector<float>>;  // name -> flattened logical tensor

struct MeshRun {
  EngineOptions engine;    // microbatches is derived: global_batch / (micro_batch * dp)
  MeshShape mesh;
  int64_t global_batch = 8;
  int steps = 1;
  const Logical* weights = nullptr;                  // start from these instead of the initial rule
  bool vary_length = false;                          // microbatch k takes the first seq, 2/3 or 1/3 of its samples
  // Puts something between the ranks' groups and the backend.
  std::function<std::unique_ptr<GroupFactory>(GroupFactory&)> between;
  bool evaluate = false;                             // once, after the last step, on the tokens of the next
  std::vector<std::vector<int32_t>> samples;         // each seq+1 tokens; step k uses [k*global_batch, (k+1)*global_batch), wrapping
};

// What a rank's executor did in the last step.
struct RankRun {
  Program computed;  // its compute actions, in order
  int slots = 0, peak_live = 0;
  CommCounters data_parallel;  // what all steps sent to the ranks of its data-parallel group
  std::map<std::string, CommCounters> comm;  // of the last step, by Mesh::groups()
};

struct MeshResult {
  std::vector<double> losses, norms;
  double eval_loss = 0;  // sum of token losses, 0 without evaluation
  std::vector<RankRun> ranks;
  Logical grads;      // of the first step, true gradients of the mean loss
  Logical weights;    // after the last step
  std::map<std::string, float> ratios;  // LAMB's, of the last step; NaN where two ranks disagree
  std::vector<EnginePlan> planned, measured;  // by rank
};

// Runs tp*pp*dp ranks as threads of this process. Rethrows the first failing rank's error.
MeshResult run_mesh(const MeshRun&);

// seq+1 tokens a sample from a seeded generator, with some structure so that the loss can fall.
std::vector<std::vector<int32_t>> synthetic_samples(int count, int64_t seq, int64_t vocab, uint64_t seed);

// ||a - b|| / ||b|| over one tensor; infinity when sizes differ or something is not finite.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);
// The worst tensor and its error; names missing on either side count as infinite.
std::pair<std::string, double> worst_error(const Logical& a, const Logical& b);

}  // namespace gt
