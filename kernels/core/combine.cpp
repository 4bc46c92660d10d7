#include "kernels/core/combine.h"

#include <algorithm>
#include <bit>

#include "kernels/core/check.h"

namespace gt {
namespace {

float bf16_to_f32(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

uint16_t f32_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    const float v = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -v : v;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7FFFFFFFu;
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 lets the FPU round to a multiple of 2^-24
    const uint32_t m = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
    return static_cast<uint16_t>(sign | m);
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// Load, accumulate and store types of an element type.
template <class T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static float load(uint16_t x) { return bf16_to_f32(x); }
  static uint16_t store(float x) { return f32_to_bf16(x); }
};
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static float load(uint16_t x) { return f16_to_f32(x); }
  static uint16_t store(float x) { return f32_to_f16(x); }
};

constexpr int64_t kBlock = 2048;  // elements; the accumulator stays in L1

template <ReduceOp op, class Type>
void reduce(std::byte* out, const std::byte* const* parts, int count, int64_t n) {
  using Stored = typename Type::Stored;
  typename Type::Sum sum[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    const Stored* first = reinterpret_cast<const Stored*>(parts[0]) + at;
    for (int64_t i = 0; i < m; ++i) sum[i] = Type::load(first[i]);
    for (int p = 1; p < count; ++p) {
      const Stored* x = reinterpret_cast<const Stored*>(parts[p]) + at;
      for (int64_t i = 0; i < m; ++i) sum[i] = combined<op>(sum[i], Type::load(x[i]));
    }
    Stored* y = reinterpret_cast<Stored*>(out) + at;
    for (int64_t i = 0; i < m; ++i) y[i] = Type::store(sum[i]);
  }
}

template <class Type>
void reduce(std::byte* out, const std::byte* const* parts, int count, int64_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return reduce<ReduceOp::kSum, Type>(out, parts, count, n);
    case ReduceOp::kMax: return reduce<ReduceOp::kMax, Type>(out, parts, count, n);
    case ReduceOp::kMin: return reduce<ReduceOp::kMin, Type>(out, parts, count, n);
  }
}
}  // namespace

void reduce_in_order(std::byte* out, const std::byte* const* parts, int count, int64_t n, DType t, ReduceOp op) {
  switch (t) {
    case DType::kF32: return reduce<Plain<float>>(out, parts, count, n, op);
    case DType::kF64: return reduce<Plain<double>>(out, parts, count, n, op);
    case DType::kI32: return reduce<Plain<int32_t>>(out, parts, count, n, op);
    case DType::kI64: return reduce<Plain<int64_t>>(out, parts, count, n, op);
    case DType::kByte: return reduce<Plain<uint8_t>>(out, parts, count, n, op);
    case DType::kBF16: return reduce<Bf16>(out, parts, count, n, op);
    case DType::kF16: return reduce<F16>(out, parts, count, n, op);
    default: fail(Exit::kInternal, "no reduction of ", name_of(t));
  }
}

}  // namespace gt
