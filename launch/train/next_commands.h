// Commands that may follow a run that has ended.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "launch/config/config.h"

namespace gt {

// Command lines and advice, one each, for the end block. saved_step: of the newest checkpoint; -1: none.
std::vector<std::string> next_commands(const Config& config, Exit code, int64_t saved_step);

}  // namespace gt
