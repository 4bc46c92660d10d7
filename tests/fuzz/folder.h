// Folders as fuzz inputs, and subcommands run on them in-process.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"

namespace gt::fuzz {

// Files of a folder as one input: for each, "\n==== NAME\n" and its bytes.
using Parts = std::map<std::string, std::string>;
Parts split_parts(std::string_view input);
std::string join_parts(const Parts& parts);

// Runs a subcommand of gpttrain with its output discarded. Returns whether it succeeded. kUsage and kDamaged count as a
// refusal, thrown or returned with a message; so does a returned kNumerical. Any other end is a finding.
bool accepts(const std::vector<std::string>& words);

}  // namespace gt::fuzz
