// Rank-ordered reductions over buffers of several ranks: the elementwise operator, a host implementation, and the
// arguments of the device call. Independent of ranks and transport.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/core/tensor.h"

namespace gt {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

// Returns a op b. Integer sums wrap; max and min propagate the first NaN. Host and device code.
template <ReduceOp op, class T>
constexpr T combined(T a, T b) {
  if constexpr (op == ReduceOp::kSum && std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kSum) {
    return a + b;
  } else if constexpr (op == ReduceOp::kMax) {
    return a != a || a >= b ? a : b;  // a NaN in a stays; a NaN in b fails the comparison and is returned
  } else {
    return a != a || a <= b ? a : b;
  }
}

// out[i] = ((p0[i] op p1[i]) op p2[i]) op ... for i in [0, n), in host memory. bf16 and f16 are widened to f32,
// reduced, and rounded once (nearest even). Dtypes: f32, f64, i32, i64, bf16, f16, byte. `out` may be one of the parts;
// other overlaps are not allowed.
void reduce_in_order(std::byte* out, const std::byte* const* parts, int count, int64_t n, DType, ReduceOp);

// Arguments of DeviceApi::combine: every to[k][i] = ((from[0][i] op from[1][i]) op from[2][i]) ..., bitwise identical
// to reduce_in_order. A single part of any dtype is copied. A target may be one of the parts; other overlaps are not
// allowed.
struct Combine {
  static constexpr int kMost = 32;
  const std::byte* from[kMost] = {};
  std::byte* to[kMost] = {};
  int parts = 0, targets = 0;  // each at most kMost
  int64_t count = 0;           // elements
  DType dtype = DType::kByte;
  ReduceOp op = ReduceOp::kSum;
};

}  // namespace gt
