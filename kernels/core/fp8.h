// FP8 formats E4M3 and E5M2 (Micikevicius et al. 2022, "FP8 formats for deep learning"), shared by all backends.
// Encoding rounds to nearest even and saturates: values beyond the maximum, infinities included, map to it; NaN maps to
// 0x7F. Must not use the standard library: included by device code.
#pragma once
#include <cstdint>

#include "kernels/core/tensor.h"

namespace gt {

struct Fp8Format {
  int mantissa, bias;  // mantissa bits; exponent bias
  float largest;
  uint8_t largest_code;
};

constexpr bool is_fp8(DType t) { return t == DType::kF8E4M3 || t == DType::kF8E5M2; }
constexpr Fp8Format fp8_format(DType t) {  // E4M3 has no infinities
  return t == DType::kF8E5M2 ? Fp8Format{2, 15, 57344, 0x7B} : Fp8Format{3, 7, 448, 0x7E};
}

constexpr uint8_t fp8_encode(float x, Fp8Format f) {
  constexpr uint32_t kInfinity = 0x7F800000u;
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
  if (magnitude > kInfinity) return 0x7F;
  const float size = __builtin_bit_cast(float, magnitude);
  if (size >= f.largest) return static_cast<uint8_t>(sign | f.largest_code);
  const int cut = 23 - f.mantissa;
  if (magnitude < static_cast<uint32_t>(128 - f.bias) << 23) {
    // Subnormal: codes count steps of 2^(1 - bias - mantissa). Adding a number whose last bit has that weight rounds
    // the value to a multiple of it.
    const uint32_t base = static_cast<uint32_t>(128 - f.bias + cut) << 23;
    const float sum = size + __builtin_bit_cast(float, base);
    return static_cast<uint8_t>(sign | (__builtin_bit_cast(uint32_t, sum) - base));
  }
  const uint32_t even = magnitude >> cut & 1u, rounded = magnitude + ((1u << (cut - 1)) - 1u + even);
  return static_cast<uint8_t>(sign | ((rounded >> cut) - (static_cast<uint32_t>(127 - f.bias) << f.mantissa)));
}

constexpr float fp8_decode(uint8_t code, Fp8Format f) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7Fu;
  if (magnitude > f.largest_code) {  // E5M2: 0x7C is infinity
    const bool infinity = f.bias == 15 && magnitude == 0x7Cu;
    return __builtin_bit_cast(float, sign | (infinity ? 0x7F800000u : 0x7FC00000u));
  }
  if (magnitude >> f.mantissa == 0) {
    const float step = __builtin_bit_cast(float, static_cast<uint32_t>(128 - f.bias - f.mantissa) << 23);
    const float size = static_cast<float>(magnitude) * step;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, size) | sign);
  }
  return __builtin_bit_cast(float,
                            sign | ((magnitude << (23 - f.mantissa)) + (static_cast<uint32_t>(127 - f.bias) << 23)));
}

// Returns the quantization scale that maps amax to the largest code. At most 2^126, so that its inverse is normal; an
// infinite amax gives 0, which turns infinities into NaN.
constexpr float fp8_scale(float amax, Fp8Format f) {
  constexpr float kMost = 0x1p126f;
  if (amax == 0) return 1;
  return amax * kMost <= f.largest ? kMost : f.largest / amax;
}

}  // namespace gt
