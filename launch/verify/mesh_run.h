// Trains a small model on any layout, each rank a thread, and returns what must not depend on the layout: losses,
// norms, and gradients, parameters and optimizer state assembled by logical name. `gpttrain verify`, the equality tests
// and the PyTorch fixture compare these.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/engine.h"
#include "launch/verify/compare.h"

namespace gt {

struct MeshRun {
  EngineOptions engine;    // microbatches is derived: global_batch / (micro_batch * dp)
  MeshShape mesh;
  int64_t global_batch = 8;
  int steps = 1;
  const Logical* weights = nullptr;                  // start from these instead of the initial rule
  bool evaluate = false;                             // once, after the last step, on the tokens of the next
  std::vector<std::vector<int32_t>> samples;         // each seq+1 tokens; step k uses [k*global_batch, (k+1)*global_batch), wrapping
};

// What a rank's executor did in the last step.
struct RankRun {
  Program computed;  // its compute actions, in order
  int slots = 0, peak_live = 0;
};

struct MeshResult {
  std::vector<double> losses, norms;
  double eval_loss = 0;  // sum of token losses, 0 without evaluation
  std::vector<RankRun> ranks;
  Logical grads;      // of the first step, true gradients of the mean loss
  Logical weights;    // after the last step
  std::vector<EnginePlan> planned, measured;  // by rank
};

// Runs tp*pp*dp ranks as threads of this process. Rethrows the first failing rank's error.
MeshResult run_mesh(const MeshRun&);

// seq+1 tokens a sample from a seeded generator, with some structure so that the loss can fall.
std::vector<std::vector<int32_t>> synthetic_samples(int count, int64_t seq, int64_t vocab, uint64_t seed);

}  // namespace gt
