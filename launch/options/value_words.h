// Values of options as the words of a command line.
#pragma once
#include <string>
#include <vector>

#include "launch/options/options.h"

namespace gt {

// Returns the words that set_from_words() reads as the value: the elements of a list of texts, else value_text().
std::vector<std::string> value_words(const Option& option);

// Splits each word at its commas: "q,v" "up" becomes "q" "v" "up".
std::vector<std::string> split_commas(const std::vector<std::string>& words);

}  // namespace gt
