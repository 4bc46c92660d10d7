#include "kernels/core/text.h"

#include <cstdint>
#include <cstdio>

namespace gt {
namespace {

// Length in bytes of the UTF-8 character at the start of `s`, and the character; 0: invalid.
size_t decode(std::string_view s, uint32_t& c) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(s[k]); };
  const size_t n = byte(0) < 0x80   ? 1
                   : byte(0) < 0xC2 ? 0
                   : byte(0) < 0xE0 ? 2
                   : byte(0) < 0xF0 ? 3
                   : byte(0) < 0xF5 ? 4
                                    : 0;
  if (n == 0 || n > s.size()) return 0;
  c = n == 1 ? byte(0) : byte(0) & (0x7Fu >> n);
  for (size_t k = 1; k < n; ++k) {
    if ((byte(k) & 0xC0) != 0x80) return 0;
    c = c << 6 | (byte(k) & 0x3Fu);
  }
  const bool overlong = (n == 3 && c < 0x800) || (n == 4 && c < 0x10000);
  return overlong || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ? 0 : n;
}

bool is_active(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x200E || c == 0x200F || c == 0x061C ||
         (c >= 0x2028 && c < 0x202F) || (c >= 0x2066 && c < 0x206A);
}

std::string escaped(std::string_view text, bool lines) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    uint32_t c = 0;
    const size_t n = decode(text.substr(at), c);
    char escape[12] = "";
    if (n == 0)
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(text[at])));
    else if ((c == '\n' || c == '\t') && !lines)
      std::snprintf(escape, sizeof escape, "%s", c == '\n' ? "\\n" : "\\t");
    else if (is_active(c) && c != '\n' && c != '\t')
      std::snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : "\\u%04x", static_cast<unsigned>(c));
    out += escape[0] != '\0' ? std::string_view(escape) : text.substr(at, n);
    at += n == 0 ? 1 : n;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, false); }
std::string printable_lines(std::string_view text) { return escaped(text, true); }

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace gt
