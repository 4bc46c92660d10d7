#include "kernels/cpu/gemm/gemm_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kFew = 16;       // columns of a single row at a time: a whole vector on every instruction set
constexpr int64_t kTallest = 512;  // rows of results held at a time: 128 KiB with a panel's columns

void validate(const Gemm& g, int64_t m, int64_t n, int64_t k) {
  GT_CHECK(g.trans_b && !g.trans_a && !g.accumulate && !g.dbias && g.epilogue != Epilogue::kGeluGrad,
           "gemm by rows: forward GEMMs only");
  GT_CHECK(g.a.numel() == m * k && g.b.shape.cols() == k && g.b.numel() == n * k, "gemm by rows: a ",
           to_string(g.a.shape), ", b ", to_string(g.b.shape), " transposed, out ", to_string(g.out.shape));
  GT_CHECK(!g.bias || g.bias.numel() == n, "gemm by rows: bias ", to_string(g.bias.shape), " for ", n, " columns");
  require_same("gemm", {"a", g.a}, {{"b", g.b}});
  require_same_or_f32("gemm", {"a", g.a}, {{"bias", g.bias}, {"out", g.out}});
  if (g.epilogue == Epilogue::kNone) return;
  require_same_or_f32("gemm", {"a", g.a}, {{"aux", g.aux}});
  require_numel("gemm", m * n, {{"aux", g.aux}});
}

// Copies `n` values z to elements [at, at + n) of t.
void put(const Simd& f, const Tensor& t, int64_t at, const float* z, int64_t n) {
  if (t.dtype == DType::kF32) {
    std::memcpy(t.as<float>() + at, z, static_cast<size_t>(n) * sizeof(float));
  } else {
    write(f, t, at, n, z);
  }
}

// Applies bias and GELU to a row `z` of results and writes it to element `at` of out.
void finish_row(const Simd& f, const Gemm& g, float* z, const float* bias, int64_t at, int64_t n) {
  if (bias != nullptr) f.add(z, bias, z, n);
  float scratch[kRowsPanel];
  if (g.epilogue == Epilogue::kGelu) {
    put(f, g.aux, at, z, n);  // GELU of the stored value
    gelu(f, read(f, g.aux, at, n, scratch), z, n);
  }
  put(f, g.out, at, z, n);
}

}  // namespace

void gemm_by_rows(const Gemm& g, Stream s) {
  const int64_t m = g.out.shape.rows(), n = g.out.shape.cols(), k = g.b.shape.cols();
  validate(g, m, n, k);
  const Simd& f = simd();
  CpuContext& context = cpu_context(s);
  const float* a = g.a.as<float>();
  if (is_16bit(g.a.dtype)) {
    float* wide = context.scratch<float>(m * k);
    parallel_for(s, m, 16, [&](int64_t begin, int64_t end, int) {
      widen(f, g.a.dtype, g.a.as<uint16_t>() + begin * k, wide + begin * k, (end - begin) * k);
    });
    a = wide;
  }
  constexpr int64_t kTurned = kRowsDepth * kRowsPanel;
  const bool b_16bit = is_16bit(g.b.dtype);
  const int64_t deepest = m == 1 && !b_16bit ? k : kRowsDepth;
  parallel_for(s, (n + kRowsPanel - 1) / kRowsPanel, 1, [&](int64_t begin, int64_t end, int thread) {
    const int64_t tall = std::min(m, kTallest);
    float* turned = context.thread_scratch<float>(thread, 2 * kTurned + tall * kRowsPanel);
    float *wide = turned + kTurned, *tile = wide + kTurned;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t col = panel * kRowsPanel, cols = std::min(kRowsPanel, n - col);
      float scratch[kRowsPanel];
      const float* bias = g.bias ? read(f, g.bias, col, cols, scratch) : nullptr;
      for (int64_t row = 0; row < m; row += tall) {
        const int64_t count = std::min(tall, m - row);
        if (k == 0) std::memset(tile, 0, static_cast<size_t>(count * kRowsPanel) * sizeof(float));
        for (int64_t at = 0; at < k; at += deepest) {
          const int64_t depth = std::min(deepest, k - at), ldw = b_16bit ? kRowsDepth : k;
          const float* w = b_16bit ? wide : g.b.as<float>() + col * k + at;
          const auto widen_rows = [&](int64_t from, int64_t to) {
            for (int64_t c = from; b_16bit && c < to; ++c)
              read(f, g.b, (col + c) * k + at, depth, wide + (c - from) * kRowsDepth);
          };
          if (m > 1) {
            widen_rows(0, cols);
            f.gemm_rows(count, cols, depth, a + row * k + at, k, w, ldw, tile, at > 0, turned);
            continue;
          }
          for (int64_t c = 0; c < cols; c += kFew) {  // widened values stay in L1
            const int64_t few = std::min(kFew, cols - c);
            widen_rows(c, c + few);
            f.gemv_rows(few, depth, a + at, b_16bit ? w : w + c * ldw, ldw, tile + c, at > 0);
          }
        }
        for (int64_t r = 0; r < count; ++r) finish_row(f, g, tile + r * kRowsPanel, bias, (row + r) * n + col, cols);
      }
    }
  });
}

}  // namespace gt::cpu
