#include "kernels/core/hash/base64.h"

#include <array>
#include <cstdint>

namespace gt {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> make_values() {
  std::array<int8_t, 256> value{};
  for (int8_t& v : value) v = -1;
  for (size_t i = 0; i < kDigits.size(); ++i) value[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  value['-'] = 62, value['_'] = 63;
  return value;
}
constexpr std::array<int8_t, 256> kValues = make_values();

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return out;
}

std::optional<std::string> decode_base64(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) return {};
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return {};
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 255);
  }
  return out;
}

}  // namespace gt
