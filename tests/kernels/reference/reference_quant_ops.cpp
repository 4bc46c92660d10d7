// Reference fake quantization. Divisions are in f32, since a quotient near a tie decides the rounding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {
namespace {

double limit_of(const Tensor& limits, const Tensor& x, int64_t i) {
  return get(limits, i / (x.numel() / limits.numel()));
}

}  // namespace

void fake_quant(const FakeQuant& p, Stream) {
  for (int64_t i = 0; i < p.x.numel(); ++i) {
    const auto limit = static_cast<float>(limit_of(p.limits, p.x, i)), x = static_cast<float>(get(p.x, i));
    if (limit == 0) {
      set(p.out, i, x);
      continue;
    }
    const float scale = std::max(limit / 127, std::numeric_limits<float>::min());
    const float q = std::nearbyint(x / scale) + 0.f;  // avoids negative zero
    set(p.out, i, std::isnan(q) ? q : std::clamp(q, -127.f, 127.f) * scale);
  }
}

void fake_quant_grad(const FakeQuantGrad& p, Stream) {
  for (int64_t i = 0; i < p.x.numel(); ++i) {
    const double limit = limit_of(p.limits, p.x, i);
    const double passed = limit == 0 || std::fabs(get(p.x, i)) <= limit ? get(p.dout, i) : 0;
    set(p.dx, i, passed + (p.accumulate ? get(p.dx, i) : 0));
  }
}

void quantize_int8(const QuantizeInt8& p, Stream) {
  for (int64_t i = 0; i < p.x.numel(); ++i) {
    const auto scale = static_cast<float>(limit_of(p.scales, p.x, i)), x = static_cast<float>(get(p.x, i));
    set(p.out, i, scale == 0 ? 0 : std::clamp(std::nearbyint(x / scale), -127.f, 127.f));
  }
}

void dequantize_int8(const DequantizeInt8& p, Stream) {
  for (int64_t i = 0; i < p.x.numel(); ++i)
    set(p.out, i, static_cast<float>(get(p.x, i)) * static_cast<float>(limit_of(p.scales, p.x, i)));
}

void max_abs(const MaxAbs& p, Stream) {
  const int64_t rows = p.out.numel(), cols = rows > 0 ? p.x.numel() / rows : 0;
  for (int64_t r = 0; r < rows; ++r) {
    double most = p.accumulate ? get(p.out, r) : 0;
    for (int64_t c = 0; c < cols; ++c) most = std::max(most, std::fabs(get(p.x, r * cols + c)));
    set(p.out, r, most);
  }
}

}  // namespace gt::test::reference
