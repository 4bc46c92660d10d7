// load_checkpoint() over a given file system: see checkpoint.h.
#pragma once
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/store/vfs.h"

namespace gt {

std::optional<LoadReport> load_checkpoint(Vfs&, const std::string& dir, const std::string& which,
                                          std::span<const ShardView> into, const Mesh&, const DeviceApi&, Stream,
                                          const AcceptStep& accept = {}, const FitOptions& = {});

}  // namespace gt
