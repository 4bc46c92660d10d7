// Residual add + layer norm whose result is codes of 8 bits, as it lies and transposed: what products of 8 bits read is
// written at once, and what is norm's own result need not be stored at all. A block takes 16 rows, so that it writes 16
// codes of a column at a time; they wait in shared memory until all rows are there.
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/norm.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kStatic = 1024;  // shared memory that is kept free for what is not dynamic: limits are for both together

// Any may be nullptr; inverse where there are no codes.
struct Made {
  const float* amax;
  uint8_t *rows, *columns;
  float *inverse, *seen;
  bool by_columns;  // columns of codes may be written R at a time
  bool seen_anew;   // for the host
};

// R rows a block; the rest as in norm_kernel.
template <class T, int V, int K, int W, bool Drop, int R>
__global__ void __launch_bounds__(kThreads) norm_codes_kernel(Forward<T> p, Made to) {
  extern __shared__ float4 memory[];  // codes [R][cols], where columns are wanted
  __shared__ float shared[kThreads / 32];
  constexpr int kLanes = 32 * W;
  auto* tile = reinterpret_cast<uint8_t*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t r0 = int64_t{blockIdx.x} * R;
  const bool encodes = to.inverse != nullptr;
  const float scale = encodes ? fp8_scale(to.amax[0], fp8_format(DType::kF8E4M3)) : 1.0f;
  if (encodes && blockIdx.x == 0 && threadIdx.x == 0) to.inverse[0] = 1.0f / scale;
  float most = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) / kLanes; i < R; i += kThreads / kLanes) {
    const int64_t row = r0 + i;
    if (row >= p.n) break;  // all who share the row
    norm_row<V, K, W, Drop>(p, row, lane, shared, [&](int c, float(&v)[V]) {
      const int64_t at = row * p.cols + c;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        v[j] = rounded<T>(v[j]);
        most = fmaxf(most, fabsf(v[j]));
      }
      if (p.out != nullptr) store<V>(p.out + at, v);
      if (!encodes) return;
      uint32_t words[V / 4];
      encode<DType::kF8E4M3>(v, scale, words);
      if (to.rows != nullptr) store_words(to.rows + at, words, V, true);
      if (to.columns != nullptr) store_words(tile + i * p.cols + c, words, V, true);
    });
  }
  __syncthreads();
  if (to.seen != nullptr) raise_seen<kThreads / 32>(most, to.seen, shared);
  if (to.columns == nullptr) return;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < p.cols; c += 4 * kThreads) {
    uint32_t codes[R / 4][4];
#pragma unroll
    for (int g = 0; g < R / 4; ++g) {
#pragma unroll
      for (int k = 0; k < 4; ++k) codes[g][k] = *reinterpret_cast<const uint32_t*>(tile + (4 * g + k) * p.cols + c);
      transpose(codes[g]);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t column[R / 4];
#pragma unroll
      for (int g = 0; g < R / 4; ++g) column[g] = codes[g][k];
      store_words(to.columns + (c + k) * p.n + r0, column, p.n - r0, to.by_columns);
    }
  }
}

template <class T, int K, int W, bool Drop, int R>
bool launch(const Forward<T>& p, const Made& to, Context& c) {
  const auto kernel = norm_codes_kernel<T, kPack<T>, K, W, Drop, R>;
  const int bytes = to.columns != nullptr ? R * p.cols : 0;
  if (bytes + kStatic > c.shared_per_block) return false;
  if (bytes + kStatic > 48 << 10)
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "layer_norm");
  if (to.seen_anew) check(cudaMemsetAsync(to.seen, 0, sizeof(float), c.stream), "layer_norm");
  const auto blocks = static_cast<unsigned>(ceil_div(p.n, R));
  kernel<<<blocks, kThreads, static_cast<size_t>(bytes), c.stream>>>(p, to);
  return true;
}

template <class T>
bool norm_codes_of(const LayerNorm& a, Context& c) {
  const Forward<T> p = forward_of<T>(a);
  const Made to{a.amax.as<float>(),      a.rows.as<uint8_t>(),
                a.columns.as<uint8_t>(), a.rows || a.columns ? a.inverse.as<float>() : nullptr,
                a.seen.as<float>(),      p.n % 16 == 0 && aligned16({a.columns.data}),
                a.seen && a.seen_anew};
  if (!aligned16({a.x.data, a.delta.data, a.gamma.data, a.beta.data, a.sum.data, a.out.data, a.rows.data}))
    return false;
  bool done = false;
  by_drop(a.drop, [&](auto drops) {
    by_row_shape<T, kForward>(p.cols, [&](auto shape) {
      using S = decltype(shape);
      constexpr int kRows = S::w > 1 && S::k * kPack < T >> 16 ? 8 : 16;  // some 64 KiB of codes at most
      done = launch<T, S::k, S::w, decltype(drops)::value, kRows>(p, to, c);
    });
  });
  return done;
}

}  // namespace

bool norm_codes(const LayerNorm& a, Context& c) {
  if (a.x.dtype == DType::kF32) return false;  // products of 8 bits stand between halves
  if (a.rows || a.columns) {
    want("layer_norm", "amax", a.amax, DType::kF32);
    want("layer_norm", "inverse", a.inverse, DType::kF32);
  }
  if (a.seen) want("layer_norm", "seen", a.seen, DType::kF32);
  if (a.x.dtype == DType::kBF16) return norm_codes_of<__nv_bfloat16>(a, c);
  return norm_codes_of<__half>(a, c);
}

}  // namespace gt::cuda
