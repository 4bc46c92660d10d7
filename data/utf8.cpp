#include "data/utf8.h"

#include <cstring>

namespace gt {
namespace {

// Length of the valid character at p, 0 if invalid.
size_t character(const unsigned char* p, size_t left) {
  const unsigned char a = p[0];
  if (a < 0x80) return 1;
  const auto tail = [&](size_t i, unsigned char low = 0x80, unsigned char high = 0xBF) {
    return i < left && p[i] >= low && p[i] <= high;
  };
  if (a >= 0xC2 && a <= 0xDF) return tail(1) ? 2 : 0;
  if (a >= 0xE0 && a <= 0xEF) return tail(1, a == 0xE0 ? 0xA0 : 0x80, a == 0xED ? 0x9F : 0xBF) && tail(2) ? 3 : 0;
  if (a >= 0xF0 && a <= 0xF4)
    return tail(1, a == 0xF0 ? 0x90 : 0x80, a == 0xF4 ? 0x8F : 0xBF) && tail(2) && tail(3) ? 4 : 0;
  return 0;
}

}  // namespace

size_t utf8_valid_prefix(std::string_view s) {
  const auto* p = reinterpret_cast<const unsigned char*>(s.data());
  size_t i = 0;
  while (i < s.size()) {
    uint64_t word;
    if (i + 8 <= s.size() && (std::memcpy(&word, p + i, 8), (word & 0x8080808080808080ull) == 0)) {
      i += 8;
      continue;
    }
    const size_t n = character(p + i, s.size() - i);
    if (n == 0) return i;
    i += n;
  }
  return i;
}

int64_t append_valid_utf8(std::string_view s, std::string* out) {
  int64_t bad = 0;
  for (;;) {
    const size_t n = utf8_valid_prefix(s);
    out->append(s.substr(0, n));
    if (n == s.size()) return bad;
    out->append("\xEF\xBF\xBD");
    ++bad;
    s.remove_prefix(n + 1);
  }
}

size_t utf8_cut(std::string_view s, size_t limit) {
  if (s.size() <= limit) return s.size();
  size_t n = limit;
  while (n > 0 && limit - n < 4 && (static_cast<unsigned char>(s[n]) & 0xC0) == 0x80) --n;
  return n > 0 && (static_cast<unsigned char>(s[n]) & 0xC0) != 0x80 ? n : limit;
}

}  // namespace gt
