#include "data/bpe/byte_alphabet.h"

#include <array>

namespace gt {
namespace {

constexpr uint32_t kShifted = 256;  // first character for bytes that are not printable

constexpr bool printable(uint32_t c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174; }

struct Alphabet {
  std::array<uint16_t, 256> letter{};
  std::array<int16_t, 512> byte{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (auto& b : a.byte) b = -1;
  uint32_t next = kShifted;
  for (uint32_t b = 0; b < 256; ++b) {
    a.letter[b] = static_cast<uint16_t>(printable(b) ? b : next++);
    a.byte[a.letter[b]] = static_cast<int16_t>(b);
  }
  return a;
}
constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string letter_of(uint8_t byte) {
  const uint32_t c = kAlphabet.letter[byte];
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

bool bytes_of(std::string_view piece, std::string* bytes) {
  bytes->clear();
  for (size_t at = 0; at < piece.size(); ++at) {
    uint32_t c = static_cast<uint8_t>(piece[at]);
    if (c >= 0xE0) return false;
    if (c >= 0xC0) {
      if (++at == piece.size()) return false;
      c = (c & 0x1F) << 6 | (static_cast<uint8_t>(piece[at]) & 0x3F);
    }
    if (c >= kAlphabet.byte.size() || kAlphabet.byte[c] < 0) return false;
    bytes->push_back(static_cast<char>(kAlphabet.byte[c]));
  }
  return true;
}

}  // namespace gt
