// Inputs that are folders, and subcommands run on them inside this process.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/check.h"

namespace gt::fuzz {

// Files of a folder as one input: "\n==== NAME\n" and the bytes of the file, for each.
using Parts = std::map<std::string, std::string>;
Parts split_parts(std::string_view input);
std::string join_parts(const Parts& parts);

// Runs a subcommand of gpttrain, its output discarded. Returns whether it did what was asked for; kUsage and kDamaged
// count as a refusal of the input, whether thrown or returned with a message, as does kNumerical returned by one. Any
// other end is a finding.
bool accepts(const std::vector<std::string>& words);

}  // namespace gt::fuzz
