// save_checkpoint over a given file system: see checkpoint.h.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/vfs.h"

namespace gt {

SaveReport save_checkpoint(Vfs&, const std::string& dir, const TrainState&, std::span<const ShardView>,
                           const std::vector<AuxFile>&, int zero_stage, int keep, const Mesh&, const DeviceApi&,
                           Stream);

}  // namespace gt
