// How byte-level BPE spells bytes in its files: each of the 256 bytes is one printable character (GPT-2's
// bytes_to_unicode: a blank is U+0120).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

std::string letter_of(uint8_t byte);  // UTF-8

// The bytes that `piece` spells. False when it has a character that is no letter of this alphabet. Requires: UTF-8.
bool bytes_of(std::string_view piece, std::string* bytes);

}  // namespace gt
