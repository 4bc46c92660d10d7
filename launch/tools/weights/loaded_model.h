// Loads a model from a checkpoint onto any layout, whatever layout wrote it. Used by generate and eval.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/core/open_stream.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "launch/engine/rank_device.h"
#include "launch/hosts/rank_env.h"
#include "parallel/comm/self_group.h"

namespace gt {

// Precision of a run trained with FP8 linear layers (precision.fp8). kAsTrained: FP8, as in the evaluations that the
// run logs; whole microbatches only. k16Bit: 16-bit linear layers, for texts of any length, since FP8 GEMMs need
// multiples of 16 tokens. Used by Decoder; Engine::evaluate() is not available.
enum class InferencePrecision { kAsTrained, k16Bit };

// A checkpoint and how to compute it; nothing is read or allocated yet.
struct ModelSource {
  std::string step_dir;
  LoadedConfig loaded;       // the run's config overridden by flags; one rank unless flags change it
  int64_t global_batch = 0;  // sequences per step of the run
  InferencePrecision precision = InferencePrecision::kAsTrained;
  std::vector<int64_t> lengths;  // EngineOptions::lengths
};

// `load`: a run directory, a checkpoint folder or one step of it. `flags`: config flags that override (device.kind,
// parallel.tp, …). Throws kUsage for a path that does not exist, with the most similar name, and for invalid flags.
ModelSource find_model(const std::string& load, const std::vector<std::string>& flags,
                       InferencePrecision = InferencePrecision::kAsTrained, const RankEnv& env = {});

// Holds parameters in compute precision only: no gradients, FP32 masters or optimizer state.
struct LoadedModel {
  Config config;
  std::string step_dir;
  LoadReport report;
  std::unique_ptr<SelfFactory> alone;  // ranks of load_model without a factory
  std::unique_ptr<RankDevice> device;
  const Backend* backend = nullptr;
  std::unique_ptr<Mesh> mesh;
  OpenStream stream;
  std::unique_ptr<Engine> engine;
};

// Loads the model. Requires: the factory's world has the size of the config's layout; the factory outlives the model.
// Collective over that world.
std::unique_ptr<LoadedModel> load_model(const ModelSource&, GroupFactory&);

// Same on one rank, this process.
std::unique_ptr<LoadedModel> load_model(const std::string& load, const std::vector<std::string>& flags,
                                        InferencePrecision = InferencePrecision::kAsTrained);

}  // namespace gt
