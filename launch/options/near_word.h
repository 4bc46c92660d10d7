// The candidate that a misspelled word most likely means.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// Levenshtein distance in which swapping two adjacent characters costs 1.
int edit_distance(std::string_view a, std::string_view b);

// Returns the closest candidate within a third of the length (1 for short words, at most 4; the same letters in another
// order are 1, in another case 0), else one that contains `word` as whole words or is so contained in it, else "". The
// first wins ties.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace gt
