// Reference FP8 ops. Scales and their product with x are computed in f32, since a product near a tie decides the
// rounding.
#include <algorithm>
#include <cmath>

#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {

namespace {
// The value to quantize, rounded to the dtype of x.
double encoded(const QuantizeFp8& p, int64_t at) {
  if (p.of == Fp8Source::kPlain) return get(p.x, at);
  const double x = get(p.x, at), h = p.of == Fp8Source::kGelu ? gelu_value(x) : x * gelu_slope(get(p.pre, at));
  double storage = 0;
  const Tensor one{reinterpret_cast<std::byte*>(&storage), {1}, p.x.dtype, {}};
  set(one, 0, h);
  return get(one, 0);
}
}  // namespace

void quantize_fp8(const QuantizeFp8& p, Stream) {
  const Fp8Out& to = p.fp8;
  const float largest = (to.rowwise ? to.rowwise : to.columnwise).dtype == DType::kF8E5M2 ? 57344 : 448;
  const auto amax = to.amax ? static_cast<float>(get(to.amax, 0)) : 0;
  const float scale = amax == 0 ? 1 : std::min(largest / amax, 0x1p126f);
  if (to.quantizes()) set(to.scale_inv, 0, double{1 / scale});
  if (to.step_amax && to.overwrite_amax) set(to.step_amax, 0, 0);
  const int64_t rows = p.x.shape.rows(), cols = p.x.shape.cols();
  for (int64_t c = 0; c < cols; ++c) {
    double sum = p.sums && p.accumulate ? get(p.sums, c) : 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto h = static_cast<float>(encoded(p, r * cols + c));
      if (to.rowwise) set(to.rowwise, r * cols + c, double{h * scale});
      if (to.columnwise) set(to.columnwise, c * rows + r, double{h * scale});
      if (to.step_amax) set(to.step_amax, 0, std::max(get(to.step_amax, 0), double{std::fabs(h)}));
      sum += double{h};
    }
    if (p.sums) set(p.sums, c, sum);
  }
}

void gemm_fp8(const GemmFp8& p, Stream) {
  const int64_t m = p.out.shape.rows(), n = p.out.shape.cols(), k = p.a.shape.cols();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t x = 0; x < k; ++x) sum += get(p.a, i * k + x) * get(p.b, j * k + x);
      sum *= get(p.a_scale, 0) * get(p.b_scale, 0);
      if (p.bias) sum += get(p.bias, j);
      if (p.accumulate) sum += get(p.out, i * n + j);
      set(p.out, i * n + j, sum);
    }
  }
}

void amax_history(const AmaxHistory& p, Stream) {
  const int64_t steps = p.history.shape.cols();
  for (int64_t i = 0; i < p.amax.numel(); ++i) {
    set(p.history, i * steps + p.at, std::isfinite(get(p.step_amax, i)) ? get(p.step_amax, i) : 0);
    double most = 0;
    for (int64_t k = 0; k < steps; ++k) most = std::max(most, get(p.history, i * steps + k));
    set(p.amax, i, most);
  }
}

}  // namespace gt::test::reference
