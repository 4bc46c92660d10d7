// UTF-8 validation by the Unicode standard's table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

size_t utf8_valid_prefix(std::string_view s);  // number of bytes before the first invalid one, or all
// Appends `s` with every invalid byte replaced by U+FFFD; returns the number of replacements.
int64_t append_valid_utf8(std::string_view s, std::string* out);
// Returns the largest n <= limit such that s.substr(0, n) ends at a character boundary (of valid text); at least 1 for
// a non-empty s.
size_t utf8_cut(std::string_view s, size_t limit);

}  // namespace gt
