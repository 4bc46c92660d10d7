// A model out of a checkpoint, whole, on one rank: what generate and eval work with. Any layout may have written it.
#pragma once
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "kernels/core/open_stream.h"
#include "launch/config/config.h"
#include "launch/train/engine.h"
#include "parallel/comm/self_group.h"

namespace gt {

struct LoadedModel {
  Config config;         // of the run that wrote the checkpoint, on one rank, with the flags given now
  std::string step_dir;  // the checkpoint that was read
  LoadReport report;
  const Backend* backend = nullptr;
  SelfFactory factory;
  std::unique_ptr<Mesh> mesh;
  OpenStream stream;
  std::unique_ptr<Engine> engine;
};

// In which numbers a run's products of 8 bits (precision.fp8) are computed. kAsTrained: as the run does, so that an
// evaluation is the one that the run logs; whole microbatches alone. kHalf: texts have any length, and products of 8
// bits go by 16 tokens; half weights are nearer to what is trained than codes of them.
enum class Products { kAsTrained, kHalf };

// `load`: a run directory, a checkpoint folder or one step of it. `flags`: config flags that win (device.kind,
// data.valid, …).
std::unique_ptr<LoadedModel> load_model(const std::string& load, const std::vector<std::string>& flags,
                                        Products = Products::kAsTrained);

}  // namespace gt
