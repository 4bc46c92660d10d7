// Unicode's normalization form C, by utf8proc, as Hugging Face's library computes it: with the tables of Unicode 9, so
// that newer combining marks stay where they are.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// `text` in form C: itself, or what was written to *buffer. Requires: UTF-8.
std::string_view to_nfc(std::string_view text, std::string* buffer);

}  // namespace gt
