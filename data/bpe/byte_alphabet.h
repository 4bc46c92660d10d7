// Spelling of bytes in byte-level BPE files: each of the 256 bytes is one printable character, as in GPT-2's
// bytes_to_unicode (a blank is U+0120).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

std::string letter_of(uint8_t byte);  // UTF-8

// Decodes the spelling `piece` into *bytes. Returns false if it has a character outside this alphabet. Requires: UTF-8.
bool bytes_of(std::string_view piece, std::string* bytes);

}  // namespace gt
