// Distinguishes text from other files by their first bytes: a compressed or binary file that is read as text would
// train on noise without an error. Names of files do not matter. Independent of readers and of what the text means.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

// What a file is if it is not text in UTF-8: "a zip archive", and what to do: "unzip a.zip". Both empty: it is text.
struct NotText {
  std::string what, advice;
  explicit operator bool() const { return !what.empty(); }
};
// Classifies the first bytes of a file by its format's magic bytes, then by the shares of control characters and of
// bytes that are not UTF-8. `path` is for the advice only.
NotText not_text(std::string_view head, const std::string& path);

// Bytes that text hardly holds.
struct ByteCounts {
  int64_t bytes = 0;
  int64_t zeros = 0, control = 0;  // NUL; control characters, NUL too, without white space, backspace and escape
  int64_t invalid = 0;             // bytes that are not UTF-8; a character that is cut at the end counts as valid
};
ByteCounts count_bytes(std::string_view s);

// Whether a later block of a text, some KiB of it, is none: more than a tenth of its bytes cannot be text.
bool is_binary_block(const ByteCounts& counts);

}  // namespace gt
