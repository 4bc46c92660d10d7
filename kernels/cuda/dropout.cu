// Dropout of rows: each thread processes one 16-byte pack, with factors from a counter-based generator.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

// Requires: V divides cols; for V > 1, d.width and d.first_column are multiples of 4.
template <int V, class T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const T* x, T* out, int64_t packs, int64_t cols, RowDrop d) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    const int64_t at = i * V, row = at / cols;
    float v[V];
    load<V>(x + at, v);
    const auto [sequence, in_sequence] = d.rows.in_sequence(row);
    drop<V>(d.mask, sequence + first_sample(d.mask),
            d.rows.position_of_row(in_sequence) * d.width + d.first_column + at - row * cols, v);
    store<V>(out + at, v);
  }
}

template <int V, class T>
void launch(const Context& c, const Dropout& a, int64_t cols) {
  const int64_t packs = a.x.numel() / V, blocks = std::min<int64_t>(ceil_div(packs, kThreads), 1 << 20);
  RowDrop d = a.drop;
  if (d.width == 0) d.width = cols;
  dropout_kernel<V, T>
      <<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(a.x.as<T>(), a.out.as<T>(), packs, cols, d);
}

}  // namespace

void dropout(const Dropout& a, Stream s) {
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "dropout");
  GT_CHECK(a.out.numel() == a.x.numel() && a.drop.rows.seq > 0, "dropout: x ", to_string(a.x.shape), " out ",
           to_string(a.out.shape), " seq ", a.drop.rows.seq);
  require_dtype("dropout", "out", a.out, a.x.dtype);
  const int64_t cols = a.x.shape.cols();
  by_dtype("dropout", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kV = kPack<T>;
    if (cols % kV == 0 && a.drop.width % 4 == 0 && a.drop.first_column % 4 == 0 && aligned16({a.x.data, a.out.data}))
      launch<kV, T>(c, a, cols);
    else
      launch<1, T>(c, a, cols);
  });
  leave(c, "dropout");
}

}  // namespace gt::cuda
