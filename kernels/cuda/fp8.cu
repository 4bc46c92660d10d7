// FP8 quantization, rowwise and columnwise (transposed) in one pass. Hopper's FP8 tensor cores require the GEMM's inner
// dimension to be contiguous, so a tensor used by two GEMMs needs both layouts. Elementwise work before a GEMM (GELU,
// its gradient) and the column sums of a bias gradient are fused. Each block processes a 64 x 128 tile; each thread
// four rows of eight neighbours, so that it transposes 4 x 4 bytes in registers before the tile is transposed in shared
// memory.
#include <cmath>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kTileRows = 64, kTileCols = 128, kThreads = 256;
constexpr int kWide = 8, kDeep = 4;                                    // per thread
constexpr int kAcross = kTileCols / kWide, kDown = kTileRows / kDeep;  // threads per tile dimension
constexpr int kPitch =
    kTileCols + 4;  // words per row of words; the padding limits transposed reads to 2-way bank conflicts
static_assert(kAcross * kDown == kThreads);

// Sources: V values from element i on, rounded as if stored in T. Rows are fetched first and evaluated later, so that a
// thread's loads are in flight together.
template <class T>
struct Plain {
  using Type = T;
  const T* x;
  template <int V>
  using Fetched = Stored<V, T>;
  template <int V>
  __device__ void fetch(int64_t i, Fetched<V>& f) const {
    f.load(x + i);
  }
  template <int V>
  __device__ void get(const Fetched<V>& f, float (&v)[V]) const {
    f.get(v);
  }
};

template <class T>
struct ThroughGelu : Plain<T> {
  template <int V>
  __device__ void get(const Stored<V, T>& f, float (&v)[V]) const {
    f.get(v);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = gelu_of(v[j]);
    round_all<T>(v);
  }
};

template <class T>
struct ThroughGeluGrad {
  using Type = T;
  const T *dout, *pre;
  template <int V>
  struct Fetched {
    Stored<V, T> dout, pre;
  };
  template <int V>
  __device__ void fetch(int64_t i, Fetched<V>& f) const {
    f.pre.load(pre + i);
    f.dout.load(dout + i);
  }
  template <int V>
  __device__ void get(const Fetched<V>& f, float (&v)[V]) const {
    float a[V];
    f.pre.get(a);
    f.dout.get(v);
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = v[j] * gelu_slope(a[j]) + 0.0f;  // as gelu_grad: + 0.0f turns -0 into +0
    round_all<T>(v);
  }
};

// Any pointer may be nullptr; `scale_inv` only when no FP8 values are written.
struct Fp8Outputs {
  const float* amax;
  uint8_t *rowwise, *columnwise;
  float *scale_inv, *step_amax;
  float* partial;  // [row tiles][width]: column sums of each tile
  int64_t height, width;
  bool rows_aligned, columns_aligned;  // rowwise data and source, columnwise data: whole packs are aligned
};

// Resident blocks per SM. Loads in flight take twice the registers in f32. Software FP8 conversion takes more (before
// sm_89, where FP8 GEMMs do not exist either).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
template <class Source>
constexpr int kHeld = 2;
#else
template <class Source>
constexpr int kHeld = 8 / sizeof(typename Source::Type);
#endif

template <class Source, DType F>
__global__ void __launch_bounds__(kThreads, kHeld<Source>) quantize_kernel(Source source, Fp8Outputs to) {
  __shared__ uint4 tile[kDown][kPitch / 4];  // [group of four rows][column]: four FP8 values per word
  __shared__ float sums[kDown][kTileCols];
  __shared__ float most_of[kThreads / 32];
  const int tx = static_cast<int>(threadIdx.x) % kAcross, ty = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t across = (to.width + kTileCols - 1) / kTileCols;
  const int64_t r0 = int64_t{blockIdx.x} / across * kTileRows, c0 = int64_t{blockIdx.x} % across * kTileCols;
  const int64_t c = c0 + kWide * tx, first = r0 + kDeep * ty;
  const auto left = [&](int k) { return first + k < to.height && c < to.width ? to.width - c : 0; };
  const auto at = [&](int k) { return (first + k) * to.width + c; };
  typename Source::template Fetched<kWide> fetched[kDeep];
  if (to.rows_aligned) {
#pragma unroll
    for (int k = 0; k < kDeep; ++k)
      if (left(k) > 0) source.template fetch<kWide>(at(k), fetched[k]);
  }
  const float scale = to.scale_inv != nullptr ? fp8_scale(to.amax[0], fp8_format(F)) : 1.0f;
  if (blockIdx.x == 0 && threadIdx.x == 0 && to.scale_inv != nullptr) to.scale_inv[0] = 1.0f / scale;
  float most = 0.0f, sum[kWide] = {};
  uint32_t low[kDeep], high[kDeep];  // FP8 values of the first and the last four neighbours, one word per row
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
    float v[kWide] = {};
    if (to.rows_aligned) {
      if (left(k) > 0) source.template get<kWide>(fetched[k], v);
    } else {
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        typename Source::template Fetched<1> one;
        float value[1];
        if (i >= left(k)) continue;
        source.template fetch<1>(at(k) + i, one);
        source.template get<1>(one, value);
        v[i] = value[0];
      }
    }
    uint32_t words[kWide / 4];
    quantize<F>(v, scale, words);
    low[k] = words[0];
    high[k] = words[1];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      most = fmaxf(most, fabsf(v[i]));
      sum[i] += v[i];
    }
  }
  if (to.rowwise != nullptr) {
#pragma unroll
    for (int k = 0; k < kDeep; ++k)
      if (left(k) > 0) store_words(to.rowwise + at(k), {low[k], high[k]}, left(k), to.rows_aligned);
  }
  if (to.columnwise != nullptr) {
    transpose(low);
    transpose(high);
    tile[ty][2 * tx] = make_uint4(low[0], low[1], low[2], low[3]);
    tile[ty][2 * tx + 1] = make_uint4(high[0], high[1], high[2], high[3]);
  }
  if (to.partial != nullptr) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) sums[ty][kWide * tx + i] = sum[i];
  }
  __syncthreads();
  if (to.step_amax != nullptr) raise_amax<kThreads / 32>(most, to.step_amax, most_of);
  if (to.partial != nullptr && threadIdx.x < kTileCols && c0 + threadIdx.x < to.width) {
    float all = sums[0][threadIdx.x];
#pragma unroll
    for (int y = 1; y < kDown; ++y) all += sums[y][threadIdx.x];
    to.partial[r0 / kTileRows * to.width + c0 + threadIdx.x] = all;
  }
  if (to.columnwise == nullptr) return;
  constexpr int kPacks = kTileRows / 16;  // packs of 16 FP8 values per column of the tile
  const auto* words = reinterpret_cast<const uint32_t*>(tile);
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTileCols * kPacks; i += kThreads) {
    const int column = i / kPacks, pack = i % kPacks;
    const int64_t r = r0 + 16 * pack, left = c0 + column < to.width && r < to.height ? to.height - r : 0;
    if (left == 0) continue;
    uint32_t codes[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) codes[k] = words[(4 * pack + k) * kPitch + column];
    store_words(to.columnwise + (c0 + column) * to.height + r, codes, left, to.columns_aligned);
  }
}

__global__ void scale_inv_kernel(const float* amax, float* scale_inv, DType dtype) {
  scale_inv[0] = 1.0f / fp8_scale(amax[0], fp8_format(dtype));
}

__global__ void __launch_bounds__(kThreads)
    amax_history_kernel(const float* step_amax, float* history, float* amax, int64_t steps, int64_t at) {
  __shared__ float most_of[kThreads];
  float* row = history + int64_t{blockIdx.x} * steps;
  const float now = isfinite(step_amax[blockIdx.x]) ? step_amax[blockIdx.x] : 0.0f;
  float most = now;
  for (int64_t i = threadIdx.x; i < steps; i += kThreads)
    if (i != at) most = fmaxf(most, row[i]);
  if (threadIdx.x == 0) row[at] = now;
  most_of[threadIdx.x] = most;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) most_of[threadIdx.x] = fmaxf(most_of[threadIdx.x], most_of[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) amax[blockIdx.x] = most_of[0];
}

void require_fp8(const char* tensor, const Tensor& t, int64_t numel) {
  if (!t) return;
  GT_REQUIRE(is_fp8(t.dtype), Exit::kUsage, "cuda quantize_fp8: ", tensor, " is ", name_of(t.dtype),
             "; f8e4m3 and f8e5m2 are supported");
  GT_CHECK(t.numel() == numel, "quantize_fp8: ", tensor, ' ', to_string(t.shape), " for ", numel, " elements");
}

void validate(const QuantizeFp8& a) {
  constexpr const char* kOp = "quantize_fp8";
  const Fp8Out& to = a.fp8;
  require_fp8("rowwise", to.rowwise, a.x.numel());
  require_fp8("columnwise", to.columnwise, a.x.numel());
  GT_CHECK(to || a.sums, kOp, ": none of FP8 data, amax and column sums is requested");
  GT_CHECK(!to.rowwise || !to.columnwise || to.rowwise.dtype == to.columnwise.dtype, kOp,
           ": rowwise and columnwise data must have one format");
  if (to.quantizes()) {
    require_dtype(kOp, "amax", to.amax, DType::kF32);
    require_dtype(kOp, "scale_inv", to.scale_inv, DType::kF32);
  }
  if (to.step_amax) require_dtype(kOp, "step_amax", to.step_amax, DType::kF32);
  if (a.of == Fp8Source::kGeluGrad) {
    require_dtype(kOp, "pre", a.pre, a.x.dtype);
    GT_CHECK(a.pre.numel() == a.x.numel(), kOp, ": x ", to_string(a.x.shape), " pre ", to_string(a.pre.shape));
  }
  GT_CHECK(!a.sums || a.sums.numel() == a.x.shape.cols(), kOp, ": x ", to_string(a.x.shape), " sums ",
           to_string(a.sums.shape));
}

// Calls f(source) for the value that is quantized.
template <class T, class F>
void by_source(const QuantizeFp8& a, F&& f) {
  switch (a.of) {
    case Fp8Source::kPlain: return f(Plain<T>{a.x.as<T>()});
    case Fp8Source::kGelu: return f(ThroughGelu<T>{{a.x.as<T>()}});
    case Fp8Source::kGeluGrad: return f(ThroughGeluGrad<T>{a.x.as<T>(), a.pre.as<T>()});
  }
}

}  // namespace

void quantize_fp8(const QuantizeFp8& a, Stream s) {
  constexpr const char* kOp = "quantize_fp8";
  validate(a);
  const Fp8Out& out = a.fp8;
  const bool quantizes = out.quantizes();
  const DType codes = out.rowwise ? out.rowwise.dtype : out.columnwise.dtype;
  Context& c = enter(s, kOp);
  if (out.step_amax && out.overwrite_amax) check(cudaMemsetAsync(out.step_amax.data, 0, sizeof(float), c.stream), kOp);
  const int64_t height = a.x.shape.rows(), width = a.x.shape.cols();
  if (a.x.numel() == 0) {
    if (quantizes) scale_inv_kernel<<<1, 1, 0, c.stream>>>(out.amax.as<float>(), out.scale_inv.as<float>(), codes);
    return leave(c, kOp);
  }
  const int64_t down = ceil_div(height, kTileRows), blocks = down * ceil_div(width, kTileCols);
  Fp8Outputs to{out.amax.as<float>(),
                out.rowwise.as<uint8_t>(),
                out.columnwise.as<uint8_t>(),
                quantizes ? out.scale_inv.as<float>() : nullptr,
                out.step_amax.as<float>(),
                a.sums ? reinterpret_cast<float*>(c.scratch(down * width * size_of(DType::kF32))) : nullptr,
                height,
                width,
                width % kWide == 0 && aligned16({a.x.data, a.pre.data, out.rowwise.data}),
                height % 16 == 0 && aligned16({out.columnwise.data})};
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    by_source<decltype(t)>(a, [&](auto source) {
      const auto launch = [&](auto kernel) {
        kernel<<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(source, to);
      };
      using Source = decltype(source);
      quantizes&& codes == DType::kF8E5M2 ? launch(quantize_kernel<Source, DType::kF8E5M2>)
                                          : launch(quantize_kernel<Source, DType::kF8E4M3>);
    });
  });
  if (a.sums) combine_partials(c, to.partial, static_cast<int>(down), width, width, a.sums, {}, a.accumulate, kOp);
  leave(c, kOp);
}

void amax_history(const AmaxHistory& a, Stream s) {
  constexpr const char* kOp = "amax_history";
  const int64_t n = a.amax.numel(), steps = a.history.shape.cols();
  if (n == 0) return;
  require_dtype(kOp, "step_amax", a.step_amax, DType::kF32);
  require_dtype(kOp, "history", a.history, DType::kF32);
  require_dtype(kOp, "amax", a.amax, DType::kF32);
  GT_CHECK(a.step_amax.numel() == n && a.history.numel() == n * steps && a.at >= 0 && a.at < steps, kOp, ": step_amax ",
           to_string(a.step_amax.shape), ", history ", to_string(a.history.shape), ", amax ", to_string(a.amax.shape),
           ", column ", a.at);
  Context& c = enter(s, kOp);
  amax_history_kernel<<<static_cast<unsigned>(n), kThreads, 0, c.stream>>>(
      a.step_amax.as<float>(), a.history.as<float>(), a.amax.as<float>(), steps, a.at);
  leave(c, kOp);
}

}  // namespace gt::cuda
