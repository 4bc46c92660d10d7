// Residual add + norm with FP8 output, rowwise and columnwise: writes the inputs of the following FP8 GEMM directly, so
// the norm's own result need not be stored. And its backward, which also quantizes delta's gradient. Each block
// processes 16 rows, so that it writes 16 values of a column at once; they are staged in shared memory. Longer rows
// than one warp holds (four in the backward) take two passes: eight warps wait for each other in each of 16 rows, which
// was slower on an H200 than a plain norm and quantize_fp8 after it (220 us beside 167, backward 274 beside 199).
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/norm/norm_grad.cuh"

namespace gt::cuda {

namespace {

constexpr int kRows = 16;
constexpr int kStatic = 1024;  // shared memory reserved for static use: limits cover static and dynamic together

// Any pointer may be nullptr; `scale_inv` only when no FP8 values are written.
struct Fp8Outputs {
  const float* amax;
  uint8_t *rowwise, *columnwise;
  float *scale_inv, *step_amax;
  bool columns_aligned;  // columnwise data may be written R values at a time
  bool overwrite_amax;   // zero step_amax first; host side only
};

// Writes FP8 values [R][cols] of rows r0 and on from shared memory to columnwise data of row length n; whole: R at a
// time.
template <int R>
__device__ inline void store_columns(const uint8_t* tile, int cols, int64_t n, int64_t r0, uint8_t* columnwise,
                                     bool whole) {
  for (int c = 4 * static_cast<int>(threadIdx.x); c < cols; c += 4 * static_cast<int>(blockDim.x)) {
    uint32_t codes[R / 4][4];
#pragma unroll
    for (int g = 0; g < R / 4; ++g) {
#pragma unroll
      for (int k = 0; k < 4; ++k) codes[g][k] = *reinterpret_cast<const uint32_t*>(tile + (4 * g + k) * cols + c);
      transpose(codes[g]);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t column[R / 4];
#pragma unroll
      for (int g = 0; g < R / 4; ++g) column[g] = codes[g][k];
      store_words(columnwise + (c + k) * n + r0, column, n - r0, whole);
    }
  }
}

// Threads of a block of norm_fp8_kernel: fewer where a row takes more registers, so that several blocks are resident.
template <int V, int K>
constexpr int kThreads = K* V > kForward ? 128 : 256;

// A warp per row, kRows rows per block; otherwise as norm_kernel.
template <class T, int V, int K, bool Drop>
__global__ void __launch_bounds__(kThreads<V, K>) norm_fp8_kernel(Forward<T> p, Fp8Outputs to) {
  extern __shared__ float4 memory[];  // FP8 values [kRows][cols], if columnwise data is requested
  constexpr int kWarps = kThreads<V, K> / 32;
  __shared__ float shared[kWarps];
  auto* tile = reinterpret_cast<uint8_t*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t r0 = int64_t{blockIdx.x} * kRows;
  const bool quantizes = to.scale_inv != nullptr;
  const float scale = quantizes ? fp8_scale(to.amax[0], fp8_format(DType::kF8E4M3)) : 1.0f;
  if (quantizes && blockIdx.x == 0 && threadIdx.x == 0) to.scale_inv[0] = 1.0f / scale;
  float most = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kRows; i += kWarps) {
    const int64_t row = r0 + i;
    if (row >= p.n) break;
    norm_row<V, K, 1, Drop>(p, row, lane, shared, [&](int c, float(&v)[V]) {
      const int64_t at = row * p.cols + c;
      round_all<T>(v);
#pragma unroll
      for (int j = 0; j < V; ++j) most = fmaxf(most, fabsf(v[j]));
      if (p.out != nullptr) store<V>(p.out + at, v);
      if (!quantizes) return;
      uint32_t words[V / 4];
      quantize<DType::kF8E4M3>(v, scale, words);
      if (to.rowwise != nullptr) store_words(to.rowwise + at, words, V, true);
      if (to.columnwise != nullptr) store_words(tile + i * p.cols + c, words, V, true);
    });
  }
  __syncthreads();
  if (to.step_amax != nullptr) raise_amax<kWarps>(most, to.step_amax, shared);
  if (to.columnwise == nullptr) return;
  store_columns<kRows>(tile, p.cols, p.n, r0, to.columnwise, to.columns_aligned);
}

// Returns whether a kernel may use this much dynamic plus static shared memory. Above 48 KiB raises the kernel's limit
// to the maximum: the attribute belongs to the kernel, and other launches may need more.
bool shared_fits(const void* kernel, int dynamic, int fixed, const Context& c) {
  if (dynamic + fixed > c.shared_per_block) return false;
  if (dynamic + fixed > 48 << 10)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, c.shared_per_block - fixed),
          "layer_norm");
  return true;
}

template <class T, int K, bool Drop>
bool launch(const Forward<T>& p, const Fp8Outputs& to, Context& c) {
  const auto kernel = norm_fp8_kernel<T, kPack<T>, K, Drop>;
  const int bytes = to.columnwise != nullptr ? kRows * p.cols : 0;
  if (!shared_fits(reinterpret_cast<const void*>(kernel), bytes, kStatic, c)) return false;
  if (to.overwrite_amax) check(cudaMemsetAsync(to.step_amax, 0, sizeof(float), c.stream), "layer_norm");
  const auto blocks = static_cast<unsigned>(ceil_div(p.n, kRows));
  kernel<<<blocks, kThreads<kPack<T>, K>, static_cast<size_t>(bytes), c.stream>>>(p, to);
  return true;
}

// For a norm or its backward.
template <class Args>
Fp8Outputs made_of(const Args& a, int64_t n) {
  const Fp8Out& fp8 = a.fp8;
  return {fp8.amax.as<float>(),
          fp8.rowwise.as<uint8_t>(),
          fp8.columnwise.as<uint8_t>(),
          fp8.quantizes() ? fp8.scale_inv.as<float>() : nullptr,
          fp8.step_amax.as<float>(),
          n % 16 == 0 && aligned16({fp8.columnwise.data}),
          fp8.step_amax && fp8.overwrite_amax};
}

template <class T>
bool norm_fp8_of(const LayerNorm& a, Context& c) {
  const Forward<T> p = forward_of<T>(a);
  const Fp8Outputs to = made_of(a, p.n);
  if (!aligned16({a.x.data, a.delta.data, a.gamma.data, a.beta.data, a.sum.data, a.out.data, a.fp8.rowwise.data}))
    return false;
  bool done = false;
  by_drop(a.drop, [&](auto drops) {
    constexpr bool kDrops = decltype(drops)::value;
    by_row_shape<T, kForward, true>(p.cols, [&](auto shape) {
      using S = decltype(shape);
      if constexpr (S::w == 1) done = launch<T, S::k, kDrops>(p, to, c);
    });
  });
  return done;
}

// Resident blocks of norm_grad_fp8_kernel per SM: as without FP8, where registers allow. Software FP8 conversion
// takes more (before sm_89, where FP8 GEMMs do not exist either).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
constexpr int kResidentWarps = 16;
#else
constexpr int kResidentWarps = 24;
#endif
template <int V, int K, int W>
constexpr int kResidentFp8Blocks = K* V > 8 ? kResidentBlocks<V, K, W, false> : kResidentWarps / W;

// Blocks iterate over groups of kRows rows, split among the warps if W == 1; otherwise as norm_grad_kernel.
template <class T, int V, int K, int W, bool Drop>
__global__ void __launch_bounds__(W == 1 ? 128 : 32 * W, kResidentFp8Blocks<V, K, W>)
    norm_grad_fp8_kernel(Backward<T> p, Fp8Outputs to) {
  constexpr int kWarps = W == 1 ? 4 : W, kApart = W == 1 ? 4 : 1;
  extern __shared__ float4 memory[];  // optional: dbias partial sums, then FP8 values [kRows][cols]
  __shared__ float shared[2 * kWarps];
  auto* bias_shares = reinterpret_cast<float*>(memory);
  auto* tile = reinterpret_cast<uint8_t*>(memory) + (p.bias_partial != nullptr ? kBiasShareBytes<V, K, W> : 0);
  const int lane = static_cast<int>(threadIdx.x) % (32 * W);
  const bool quantizes = to.scale_inv != nullptr;
  const float scale = quantizes ? fp8_scale(to.amax[0], fp8_format(DType::kF8E5M2)) : 1.0f;
  if (quantizes && blockIdx.x == 0 && threadIdx.x == 0) to.scale_inv[0] = 1.0f / scale;
  float dgamma[K][V] = {}, dbeta[K][V] = {}, most = 0.0f;
  float* dbias = bias_share<V, K, W>(p, bias_shares, lane);
  for (int64_t r0 = int64_t{blockIdx.x} * kRows; r0 < p.n; r0 += int64_t{gridDim.x} * kRows) {
    for (int i = static_cast<int>(threadIdx.x) / (32 * W); i < kRows; i += kApart) {
      const int64_t row = r0 + i;
      if (row >= p.n) break;  // uniform over the warps of a row
      norm_grad_row<V, K, W, Drop>(p, row, lane, shared, dgamma, dbeta, [&](int k, int c, float(&v)[V]) {
        p.ddelta.round(v);
#pragma unroll
        for (int j = 0; j < V; ++j) most = fmaxf(most, fabsf(v[j]));
        if (p.bias_partial != nullptr) add_bias_share<V, W>(v, k, dbias);
        if (!quantizes) return;
        uint32_t words[V / 4];
        quantize<DType::kF8E5M2>(v, scale, words);
        if (to.rowwise != nullptr) store_words(to.rowwise + row * p.cols + c, words, V, true);
        if (to.columnwise != nullptr) store_words(tile + i * p.cols + c, words, V, true);
      });
    }
    if (to.columnwise == nullptr) continue;
    __syncthreads();
    store_columns<kRows>(tile, p.cols, p.n, r0, to.columnwise, true);
    __syncthreads();  // the next rows overwrite the tile
  }
  __syncthreads();
  if (to.step_amax != nullptr) raise_amax<kWarps>(most, to.step_amax, shared);
  if (p.bias_partial != nullptr) put_bias_share<V, K, W>(p, bias_shares);
  put_weight_shares<V, K, W>(p, dgamma, dbeta, lane);
}

template <class T, int K, int W, bool Drop>
bool launch(const LayerNormGrad& a, Backward<T> p, const Fp8Outputs& to, Context& c, PartialSums& shares) {
  constexpr int kV = kPack<T>, kHolds = kResidentFp8Blocks<kV, K, W>;
  const auto kernel = norm_grad_fp8_kernel<T, kV, K, W, Drop>;
  const int bytes = (a.dbias ? kBiasShareBytes<kV, K, W> : 0) + (to.columnwise != nullptr ? kRows * p.cols : 0);
  if (!shared_fits(reinterpret_cast<const void*>(kernel), bytes, kWeightShareBytes<kV, W> + kStatic, c)) return false;
  if (to.overwrite_amax) check(cudaMemsetAsync(to.step_amax, 0, sizeof(float), c.stream), "layer_norm_grad");
  shares.divide(a, std::min<int64_t>(ceil_div(p.n, kRows), kMultiprocessors * kHolds), p, c);
  kernel<<<static_cast<unsigned>(shares.parts), W == 1 ? 128 : 32 * W, static_cast<size_t>(bytes), c.stream>>>(p, to);
  return true;
}

template <class T>
bool norm_grad_fp8_of(const LayerNormGrad& a, const Backward<T>& p, Context& c, PartialSums& shares) {
  const Fp8Outputs to = made_of(a, p.n);
  // Columnwise data in whole packs only, which every FP8 GEMM has: byte stores would take registers.
  if (!aligned16({a.fp8.rowwise.data}) || (a.fp8.columnwise && !to.columns_aligned)) return false;
  bool done = false;
  by_drop(a.drop, [&](auto drops) {
    constexpr bool kDrops = decltype(drops)::value;
    by_row_shape<T, kBackward>(p.cols, [&](auto shape) {
      using S = decltype(shape);
      if constexpr (S::w <= 4) done = launch<T, S::k, S::w, kDrops>(a, p, to, c, shares);
    });
  });
  return done;
}

}  // namespace

bool norm_fp8(const LayerNorm& a, Context& c) {
  if (a.x.dtype == DType::kF32) return false;  // FP8 training has 16-bit activations
  if (a.fp8.quantizes()) {
    require_dtype("layer_norm", "amax", a.fp8.amax, DType::kF32);
    require_dtype("layer_norm", "scale_inv", a.fp8.scale_inv, DType::kF32);
  }
  if (a.fp8.step_amax) require_dtype("layer_norm", "step_amax", a.fp8.step_amax, DType::kF32);
  if (a.x.dtype == DType::kBF16) return norm_fp8_of<__nv_bfloat16>(a, c);
  return norm_fp8_of<__half>(a, c);
}

template <class T>
bool norm_grad_fp8(const LayerNormGrad& a, const Backward<T>& p, Context& c, PartialSums& shares) {
  return norm_grad_fp8_of(a, p, c, shares);
}

template bool norm_grad_fp8(const LayerNormGrad&, const Backward<__half>&, Context&, PartialSums&);
template bool norm_grad_fp8(const LayerNormGrad&, const Backward<__nv_bfloat16>&, Context&, PartialSums&);

}  // namespace gt::cuda
