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
// Appends `s` with one U+FFFD for each maximal part of an incomplete character, as Unicode recommends and as Python and
// Rust decode.
void append_lossy_utf8(std::string_view s, std::string* out);
// Returns the number of bytes at the end of `s` that begin a character without completing it: 0 to 3.
size_t utf8_open_suffix(std::string_view s);
// Whether the first or last character is white space (Unicode's White_Space).
bool begins_with_space(std::string_view s);
bool ends_with_space(std::string_view s);
// The largest n <= limit such that s.substr(0, n) ends at a character boundary (of valid text); at least 1 for a
// non-empty s.
size_t utf8_cut(std::string_view s, size_t limit);

}  // namespace gt
