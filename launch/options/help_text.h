// Layout of --help: a flag on the left, its meaning on the right, within the terminal's width.
#pragma once
#include <string>
#include <string_view>

namespace gt {

int help_width();  // columns of the terminal, at least 60; 100 if standard output is none

// One flag and what it means, wrapped in the right column. A flag wider than the left column has a line of its own.
std::string help_entry(std::string_view flag, std::string_view meaning);

// Words in lines that begin at `indent`.
std::string help_words(std::string_view words, int indent);

}  // namespace gt
