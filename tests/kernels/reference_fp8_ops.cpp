// What numbers of 8 bits mean. Factors and their product with x are those of f32, because a product next to a tie
// decides the code.
#include <algorithm>
#include <cmath>

#include "tests/kernels/reference_ops.h"

namespace gt::test::reference {

void quantize_fp8(const QuantizeFp8& p, Stream) {
  const float largest = (p.rows ? p.rows : p.columns).dtype == DType::kF8E5M2 ? 57344 : 448;
  const auto amax = static_cast<float>(get(p.amax, 0));
  const float scale = amax == 0 ? 1 : std::min(largest / amax, 0x1p126f);
  set(p.inverse, 0, double{1 / scale});
  const int64_t rows = p.x.shape.rows(), cols = p.x.shape.cols();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto x = static_cast<float>(get(p.x, r * cols + c));
      if (p.rows) set(p.rows, r * cols + c, double{x * scale});
      if (p.columns) set(p.columns, c * rows + r, double{x * scale});
      if (p.seen) set(p.seen, 0, std::max(get(p.seen, 0), double{std::fabs(x)}));
    }
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
    set(p.history, i * steps + p.at, std::isfinite(get(p.seen, i)) ? get(p.seen, i) : 0);
    double most = 0;
    for (int64_t k = 0; k < steps; ++k) most = std::max(most, get(p.history, i * steps + k));
    set(p.amax, i, most);
  }
}

}  // namespace gt::test::reference
