// Values to codes of 8 bits, as they lie and transposed, in one pass: what tensor cores of Hopper multiply has its
// inner dimension last, so a tensor that is read in two products is needed both ways. A block makes a tile of 64 x 64
// and turns it in shared memory.
#include <cuda_fp8.h>

#include "kernels/core/fp8.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kTile = 64, kWide = 4;                // kWide: neighbours that a thread encodes, and stores at once
constexpr int kAcross = kTile / kWide, kDown = 16;  // threads
constexpr int kPitch = kTile + 4;                   // bytes of a row of the tile in shared memory

template <DType F>
__device__ inline uint8_t encode(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, F == DType::kF8E5M2 ? __NV_E5M2 : __NV_E4M3);
#else
  return fp8_encode(x, fp8_format(F));
#endif
}

__device__ inline uint32_t packed(const uint8_t (&codes)[kWide]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kWide; ++i) word |= uint32_t{codes[i]} << (8 * i);
  return word;
}

// The first n bytes of the word, one store where all of it is wanted and the address allows.
__device__ inline void store_codes(uint8_t* to, uint32_t word, int64_t n, bool whole) {
  if (whole) {
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i)
    if (i < n) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

// by_rows, by_columns: row lengths of the two results, and their addresses, are multiples of 4 codes.
template <class T, DType F>
__global__ void __launch_bounds__(kAcross* kDown)
    quantize_fp8_kernel(const T* x, const float* amax, uint8_t* rows, uint8_t* columns, float* inverse, float* seen,
                        int64_t height, int64_t width, bool by_rows, bool by_columns) {
  __shared__ uint8_t tile[kTile * kPitch];  // [column][row]
  __shared__ float most_of[kDown * kAcross];
  const int tx = static_cast<int>(threadIdx.x) % kAcross, ty = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t across = (width + kTile - 1) / kTile;
  const int64_t r0 = int64_t{blockIdx.x} / across * kTile, c0 = int64_t{blockIdx.x} % across * kTile;
  const float scale = fp8_scale(amax[0], fp8_format(F));
  if (blockIdx.x == 0 && threadIdx.x == 0) inverse[0] = 1.0f / scale;
  const int64_t c = c0 + kWide * tx;
  float most = 0.0f;
  for (int r = ty; r < kTile; r += kDown) {
    uint8_t codes[kWide] = {};
    const int64_t left = r0 + r < height && c < width ? width - c : 0, at = (r0 + r) * width + c;
    float v[kWide] = {};
    if (by_rows && left >= kWide) {
      load<kWide>(x + at, v);
    } else {
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        if (i < left) v[i] = to_float(x[at + i]);
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      most = fmaxf(most, fabsf(v[i]));
      codes[i] = encode<F>(v[i] * scale);
      tile[(kWide * tx + i) * kPitch + r] = codes[i];
    }
    if (rows != nullptr && left > 0) store_codes(rows + at, packed(codes), left, by_rows && left >= kWide);
  }
  most_of[threadIdx.x] = most;
  __syncthreads();
  if (seen != nullptr) {
    for (unsigned half = kDown * kAcross / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) most_of[threadIdx.x] = fmaxf(most_of[threadIdx.x], most_of[threadIdx.x + half]);
      __syncthreads();
    }
    // Numbers that are not negative are ordered as their bits are.
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(seen), __float_as_int(most_of[0]));
  }
  if (columns == nullptr) return;
  const int64_t r = r0 + kWide * tx;
  for (int k = ty; k < kTile; k += kDown) {
    const int64_t left = c0 + k < width && r < height ? height - r : 0;
    if (left == 0) continue;
    uint8_t codes[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) codes[i] = tile[k * kPitch + kWide * tx + i];
    store_codes(columns + (c0 + k) * height + r, packed(codes), left, by_columns && left >= kWide);
  }
}

__global__ void inverse_kernel(const float* amax, float* inverse, DType codes) {
  inverse[0] = 1.0f / fp8_scale(amax[0], fp8_format(codes));
}

__global__ void __launch_bounds__(kAcross* kDown)
    amax_history_kernel(const float* seen, float* history, float* amax, int64_t steps, int64_t at) {
  __shared__ float most_of[kDown * kAcross];
  float* row = history + int64_t{blockIdx.x} * steps;
  const float now = isfinite(seen[blockIdx.x]) ? seen[blockIdx.x] : 0.0f;
  float most = now;
  for (int64_t i = threadIdx.x; i < steps; i += kDown * kAcross)
    if (i != at) most = fmaxf(most, row[i]);
  if (threadIdx.x == 0) row[at] = now;
  most_of[threadIdx.x] = most;
  __syncthreads();
  for (unsigned half = kDown * kAcross / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) most_of[threadIdx.x] = fmaxf(most_of[threadIdx.x], most_of[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) amax[blockIdx.x] = most_of[0];
}

void want_codes(const char* tensor, const Tensor& t, int64_t numel) {
  if (!t) return;
  GT_REQUIRE(is_fp8(t.dtype), Exit::kUsage, "cuda quantize_fp8: ", tensor, " is ", name_of(t.dtype),
             "; f8e4m3 and f8e5m2 are supported");
  GT_CHECK(t.numel() == numel, "quantize_fp8: ", tensor, ' ', to_string(t.shape), " for ", numel, " elements");
}

}  // namespace

void quantize_fp8(const QuantizeFp8& a, Stream s) {
  constexpr const char* kOp = "quantize_fp8";
  want(kOp, "amax", a.amax, DType::kF32);
  want(kOp, "inverse", a.inverse, DType::kF32);
  if (a.seen) want(kOp, "seen", a.seen, DType::kF32);
  want_codes("rows", a.rows, a.x.numel());
  want_codes("columns", a.columns, a.x.numel());
  GT_CHECK((a.rows || a.columns) && (!a.rows || !a.columns || a.rows.dtype == a.columns.dtype), kOp,
           ": codes of one format are wanted");
  const DType codes = a.rows ? a.rows.dtype : a.columns.dtype;
  Context& c = enter(s, kOp);
  const int64_t height = a.x.shape.rows(), width = a.x.shape.cols();
  if (a.x.numel() == 0) {
    inverse_kernel<<<1, 1, 0, c.stream>>>(a.amax.as<float>(), a.inverse.as<float>(), codes);
    return leave(c, kOp);
  }
  const int64_t blocks = ceil_div(height, kTile) * ceil_div(width, kTile);
  const bool by_rows = width % kWide == 0 && aligned16({a.x.data, a.rows.data});
  const bool by_columns = height % kWide == 0 && aligned16({a.columns.data});
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto launch = [&](auto kernel) {
      kernel<<<static_cast<unsigned>(blocks), kAcross * kDown, 0, c.stream>>>(
          a.x.as<T>(), a.amax.as<float>(), a.rows.as<uint8_t>(), a.columns.as<uint8_t>(), a.inverse.as<float>(),
          a.seen.as<float>(), height, width, by_rows, by_columns);
    };
    codes == DType::kF8E5M2 ? launch(quantize_fp8_kernel<T, DType::kF8E5M2>)
                            : launch(quantize_fp8_kernel<T, DType::kF8E4M3>);
  });
  leave(c, kOp);
}

void amax_history(const AmaxHistory& a, Stream s) {
  constexpr const char* kOp = "amax_history";
  const int64_t n = a.amax.numel(), steps = a.history.shape.cols();
  if (n == 0) return;
  want(kOp, "seen", a.seen, DType::kF32);
  want(kOp, "history", a.history, DType::kF32);
  want(kOp, "amax", a.amax, DType::kF32);
  GT_CHECK(a.seen.numel() == n && a.history.numel() == n * steps && a.at >= 0 && a.at < steps, kOp, ": seen ",
           to_string(a.seen.shape), ", history ", to_string(a.history.shape), ", amax ", to_string(a.amax.shape),
           ", column ", a.at);
  Context& c = enter(s, kOp);
  amax_history_kernel<<<static_cast<unsigned>(n), kAcross * kDown, 0, c.stream>>>(
      a.seen.as<float>(), a.history.as<float>(), a.amax.as<float>(), steps, a.at);
  leave(c, kOp);
}

}  // namespace gt::cuda
