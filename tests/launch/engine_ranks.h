// Engines on ranks as threads, for tests that drive them step by step. Tests that only compare results of whole runs
// use run_mesh (launch/tools/verify/mesh_run.h).
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// Microbatches of one rank and step: samples by global ordinal, with the second-to-last target of each masked.
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
  int64_t targets(int count) const;       // unmasked targets of the global batch, with `count` microbatches a rank
  std::vector<float> own_values() const;  // parameter values that this rank updates
  std::vector<float> state() const;       // everything a checkpoint holds of this rank; padding is undefined
};

// Runs body on every rank with initial weights and fails the test with each rank's error. Assertions inside use
// GT_CHECK, because the test framework is not thread-safe. `wrap`: returns the factory of a rank's groups.
using WrapFactory = std::function<std::unique_ptr<GroupFactory>(GroupFactory&)>;
void on_engines(const EngineOptions&, MeshShape, const std::function<void(EngineRank&)>& body,
                const WrapFactory& wrap = {});

}  // namespace gt
