// Common handling of --input.
#pragma once
#include <string>
#include <vector>

namespace gt {

// Throws kUsage naming inputs that do not exist, or if all inputs together are empty. Prints what is left out of
// folders.
void require_inputs(const std::vector<std::string>& names);

std::string input_name(const std::string& path);  // "standard input" for "-"

}  // namespace gt
