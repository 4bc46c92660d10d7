// Common handling of --input. Checks files and sizes only, not contents.
#pragma once
#include <string>
#include <vector>

namespace gt {

// Throws kUsage naming inputs that do not exist, or if all inputs together are empty.
void require_inputs(const std::vector<std::string>& names);

std::string input_name(const std::string& path);  // "standard input" for "-"

}  // namespace gt
