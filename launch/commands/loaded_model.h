// A model out of a checkpoint, on whatever layout: what generate and eval work with. Any layout may have written it.
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

// Precision of a run with FP8 linear layers (precision.fp8). kAsTrained: FP8, so that an evaluation is the one that the
// run logs; whole microbatches alone. kHalf: 16-bit, for texts of any length: FP8 GEMMs take multiples of 16 tokens; a
// Decoder computes, Engine::evaluate() does not.
enum class Products { kAsTrained, kHalf };

// A checkpoint found, and how it is to be computed; nothing is read or allocated yet.
struct ModelSource {
  std::string step_dir;
  LoadedConfig loaded;       // the run's, then the flags; one rank unless these say otherwise
  int64_t global_batch = 0;  // sequences of a step of the run
  Products products = Products::kAsTrained;
};

// `load`: a run directory, a checkpoint folder or one step of it. `flags`: config flags that win (device.kind,
// parallel.tp, …). kUsage for a path that does not exist, with the nearest name, and for flags that do not fit.
ModelSource find_model(const std::string& load, const std::vector<std::string>& flags,
                       Products = Products::kAsTrained, const RankEnv& env = {});

// Values at their own precision alone: no gradients, FP32 masters or optimizer state.
struct LoadedModel {
  Config config;
  std::string step_dir;
  LoadReport report;
  std::unique_ptr<SelfFactory> alone;  // the ranks of load_model without a factory
  std::unique_ptr<RankDevice> device;
  const Backend* backend = nullptr;
  std::unique_ptr<Mesh> mesh;
  OpenStream stream;
  std::unique_ptr<Engine> engine;
};

// Collective over the factory's world, whose size the config's layout has. The factory outlives the model.
std::unique_ptr<LoadedModel> load_model(const ModelSource&, GroupFactory&);

// The same on one rank, this process.
std::unique_ptr<LoadedModel> load_model(const std::string& load, const std::vector<std::string>& flags,
                                        Products = Products::kAsTrained);

}  // namespace gt
