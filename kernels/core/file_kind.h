// What a file is that stands in the place of a model or of its tokenizer: an LFS pointer, a web page, an archive.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace gt {

// Returns what a file that begins with these bytes is, and how to get the file that was meant: "is a Git LFS pointer:
// …"; "" if nothing is known of it. Call it for bytes that are not what was expected.
std::string other_kind(std::string_view beginning);
constexpr size_t kKindBytes = 256;  // enough for other_kind

}  // namespace gt
