#include "data/tokenizer/utf8.h"

#include <cstring>

namespace gt {
namespace {

// Character at p: `size` bytes of it are present, out of the `whole` that p[0] announces. whole 0: p[0] begins no
// character.
struct Found {
  size_t size, whole;
};

Found scan(const unsigned char* p, size_t left) {
  const unsigned char a = p[0];
  if (a < 0x80) return {1, 1};
  if (a < 0xC2 || a > 0xF4) return {1, 0};
  const size_t whole = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
  const unsigned char low = a == 0xE0   ? 0xA0
                            : a == 0xF0 ? 0x90
                                        : 0x80,
                      high = a == 0xED   ? 0x9F
                             : a == 0xF4 ? 0x8F
                                         : 0xBF;
  size_t n = 1;
  while (n < whole && n < left && p[n] >= (n == 1 ? low : 0x80) && p[n] <= (n == 1 ? high : 0xBF)) ++n;
  return {n, whole};
}

// Returns the length of the valid character at p, 0 if there is none.
size_t character(const unsigned char* p, size_t left) {
  const Found f = scan(p, left);
  return f.size == f.whole ? f.size : 0;
}

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// White_Space beyond ASCII: U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F, U+3000.
bool is_wide_space(std::string_view c) {
  if (c.size() == 2) return c == "\xC2\x85" || c == "\xC2\xA0";
  if (c == "\xE1\x9A\x80" || c == "\xE2\x81\x9F" || c == "\xE3\x80\x80") return true;
  if (!c.starts_with("\xE2\x80")) return false;
  const auto last = static_cast<unsigned char>(c[2]);
  return last <= 0x8A || last == 0xA8 || last == 0xA9 || last == 0xAF;
}

}  // namespace

bool begins_with_space(std::string_view s) {
  return !s.empty() && (is_ascii_space(s[0]) || (s.size() >= 2 && is_wide_space(s.substr(0, 2))) ||
                        (s.size() >= 3 && is_wide_space(s.substr(0, 3))));
}

bool ends_with_space(std::string_view s) {
  return !s.empty() && (is_ascii_space(s.back()) || (s.size() >= 2 && is_wide_space(s.substr(s.size() - 2))) ||
                        (s.size() >= 3 && is_wide_space(s.substr(s.size() - 3))));
}

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

void append_lossy_utf8(std::string_view s, std::string* out) {
  for (;;) {
    const size_t n = utf8_valid_prefix(s);
    out->append(s.substr(0, n));
    if (n == s.size()) return;
    out->append("\xEF\xBF\xBD");
    s.remove_prefix(n);
    s.remove_prefix(scan(reinterpret_cast<const unsigned char*>(s.data()), s.size()).size);
  }
}

size_t utf8_open_suffix(std::string_view s) {
  for (size_t n = 1; n <= 3 && n <= s.size(); ++n) {
    const Found f = scan(reinterpret_cast<const unsigned char*>(s.data() + s.size() - n), n);
    if (f.whole > 1) return f.size == n && f.size < f.whole ? n : 0;
    if (f.whole == 1) return 0;
  }
  return 0;
}

size_t utf8_cut(std::string_view s, size_t limit) {
  if (s.size() <= limit) return s.size();
  size_t n = limit;
  while (n > 0 && limit - n < 4 && (static_cast<unsigned char>(s[n]) & 0xC0) == 0x80) --n;
  return n > 0 && (static_cast<unsigned char>(s[n]) & 0xC0) != 0x80 ? n : limit;
}

}  // namespace gt
