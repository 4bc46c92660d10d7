// Engines on ranks that are threads, for tests that drive them step by step. What only compares the results of whole
// runs is better served by run_mesh (launch/verify/mesh_run.h).
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// One rank's microbatches of a step: samples by global ordinal, the last target but one of each masked.
struct EngineBatches {
  std::vector<std::vector<int32_t>> storage;
  std::vector<MicroBatch> list;
  EngineBatches(const EngineOptions&, int step, int dp_rank, int dp, int count);
};

struct EngineRank {
  const Mesh& mesh;
  Engine& engine;
  StepResult step(int k, bool stop = false);
  double evaluate(int k, int count);
  int64_t targets(int count) const;       // unmasked, of the global batch, with `count` microbatches a rank
  std::vector<float> own_values() const;  // what this rank updates
  std::vector<float> state() const;       // everything a checkpoint holds of this rank, whose padding may be anything
};

// Runs body on every rank, with initial weights, and fails the test with each rank's error. Assertions inside are
// GT_CHECK: the test framework is not made for threads. `wrap`: a rank's groups are made by what it returns.
using WrapFactory = std::function<std::unique_ptr<GroupFactory>(GroupFactory&)>;
void on_engines(const EngineOptions&, MeshShape, const std::function<void(EngineRank&)>& body,
                const WrapFactory& wrap = {});

}  // namespace gt
