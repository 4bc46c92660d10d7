// What --input of several verbs has in common. Knows files and their sizes, not what is in them.
#pragma once
#include <string>
#include <vector>

namespace gt {

// Throws kUsage naming what does not exist, and when all of it together is empty.
void require_inputs(const std::vector<std::string>& names);

std::string input_name(const std::string& path);  // "standard input" for "-"

}  // namespace gt
