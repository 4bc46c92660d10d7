// Fake quantization to int8, one thread per element, and row-wise absolute maxima, several blocks per row.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    fake_quant_kernel(const T* x, const float* limits, T* out, int64_t n, int64_t cols) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const float limit = limits[i / cols];
    float v[1];
    load<1>(x + i, v);
    if (limit != 0.0f) {
      const float scale = fmaxf(limit / 127.0f, 1.17549435e-38f), q = rintf(v[0] / scale) + 0.0f;  // no -0
      v[0] = (q != q ? q : fminf(127.0f, fmaxf(-127.0f, q))) * scale;
    }
    store<1>(out + i, v);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    fake_quant_grad_kernel(const T* x, const float* limits, const T* dout, T* dx, int64_t n, int64_t cols, bool add) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const float limit = limits[i / cols];
    float v[1], g[1], old[1];
    load<1>(x + i, v);
    load<1>(dout + i, g);
    if (limit != 0.0f && !(fabsf(v[0]) <= limit)) g[0] = 0.0f;
    if (add) {
      load<1>(dx + i, old);
      g[0] += old[0];
    }
    store<1>(dx + i, g);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_int8_kernel(const T* x, const float* scales, int8_t* out, int64_t n, int64_t cols) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const float scale = scales[i / cols];
    float v[1];
    load<1>(x + i, v);
    out[i] = scale == 0.0f ? int8_t{0} : static_cast<int8_t>(fminf(127.0f, fmaxf(-127.0f, rintf(v[0] / scale))));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_int8_kernel(const int8_t* x, const float* scales, T* out, int64_t n, int64_t cols) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const float v[1] = {static_cast<float>(x[i]) * scales[i / cols]};
    store<1>(out + i, v);
  }
}

// Block y of a row covers elements [y * part, (y + 1) * part). Non-negative floats order like their bits, so the blocks
// of a row combine with an integer atomicMax, which is order-independent.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    max_abs_kernel(const T* x, float* out, int64_t cols, int64_t part, bool add) {
  __shared__ float shared[kThreads];
  const int64_t row = blockIdx.x, begin = int64_t{blockIdx.y} * part;
  const int64_t end = begin + part < cols ? begin + part : cols;
  float most = 0.0f;
  for (int64_t c = begin + int64_t{threadIdx.x} * V; c < end; c += int64_t{kThreads} * V) {
    float v[V];
    load<V>(x + row * cols + c, v);
#pragma unroll
    for (int i = 0; i < V; ++i) most = fmaxf(most, fabsf(v[i]));
  }
  shared[threadIdx.x] = most;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  if (gridDim.y > 1)
    atomicMax(reinterpret_cast<int*>(out + row), __float_as_int(shared[0]));
  else
    out[row] = add ? fmaxf(out[row], shared[0]) : shared[0];
}

unsigned blocks_of(int64_t n) { return static_cast<unsigned>(std::min<int64_t>(ceil_div(n, kThreads), 1 << 20)); }

// Returns the elements per row; limits, or scales, holds one value per row.
int64_t cols_of(const char* op, const Tensor& x, const Tensor& limits, const char* name = "limits") {
  require_dtype(op, name, limits, DType::kF32);
  const int64_t rows = limits.numel();
  GT_CHECK(rows > 0 && x.numel() % rows == 0, op, ": ", to_string(x.shape), " in ", rows, " rows");
  return x.numel() / rows;
}

}  // namespace

void fake_quant(const FakeQuant& a, Stream s) {
  const int64_t n = a.x.numel();
  if (n == 0) return;
  require_dtype("fake_quant", "out", a.out, a.x.dtype);
  const int64_t cols = cols_of("fake_quant", a.x, a.limits);
  Context& c = enter(s, "fake_quant");
  by_dtype("fake_quant", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    fake_quant_kernel<T>
        <<<blocks_of(n), kThreads, 0, c.stream>>>(a.x.as<T>(), a.limits.as<float>(), a.out.as<T>(), n, cols);
  });
  leave(c, "fake_quant");
}

void fake_quant_grad(const FakeQuantGrad& a, Stream s) {
  const int64_t n = a.x.numel();
  if (n == 0) return;
  require_dtype("fake_quant_grad", "dout", a.dout, a.x.dtype);
  require_dtype("fake_quant_grad", "dx", a.dx, a.x.dtype);
  const int64_t cols = cols_of("fake_quant_grad", a.x, a.limits);
  Context& c = enter(s, "fake_quant_grad");
  by_dtype("fake_quant_grad", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    fake_quant_grad_kernel<T><<<blocks_of(n), kThreads, 0, c.stream>>>(
        a.x.as<T>(), a.limits.as<float>(), a.dout.as<T>(), a.dx.as<T>(), n, cols, a.accumulate);
  });
  leave(c, "fake_quant_grad");
}

void quantize_int8(const QuantizeInt8& a, Stream s) {
  const int64_t n = a.x.numel();
  if (n == 0) return;
  require_dtype("quantize_int8", "out", a.out, DType::kI8);
  const int64_t cols = cols_of("quantize_int8", a.x, a.scales, "scales");
  Context& c = enter(s, "quantize_int8");
  by_dtype("quantize_int8", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    quantize_int8_kernel<T>
        <<<blocks_of(n), kThreads, 0, c.stream>>>(a.x.as<T>(), a.scales.as<float>(), a.out.as<int8_t>(), n, cols);
  });
  leave(c, "quantize_int8");
}

void dequantize_int8(const DequantizeInt8& a, Stream s) {
  const int64_t n = a.x.numel();
  if (n == 0) return;
  require_dtype("dequantize_int8", "x", a.x, DType::kI8);
  const int64_t cols = cols_of("dequantize_int8", a.out, a.scales, "scales");
  Context& c = enter(s, "dequantize_int8");
  by_dtype("dequantize_int8", "out", a.out.dtype, [&](auto t) {
    using T = decltype(t);
    dequantize_int8_kernel<T>
        <<<blocks_of(n), kThreads, 0, c.stream>>>(a.x.as<int8_t>(), a.scales.as<float>(), a.out.as<T>(), n, cols);
  });
  leave(c, "dequantize_int8");
}

void max_abs(const MaxAbs& a, Stream s) {
  const int64_t rows = a.out.numel();
  if (rows == 0) return;
  require_dtype("max_abs", "out", a.out, DType::kF32);
  GT_CHECK(a.x.numel() % rows == 0, "max_abs: ", to_string(a.x.shape), " in ", rows, " rows");
  const int64_t cols = a.x.numel() / rows;
  const int64_t parts = std::clamp<int64_t>(4096 / rows, 1, std::max<int64_t>(1, cols / (16 * kThreads)));
  const int64_t part = ceil_div(ceil_div(cols, parts), 8) * 8;
  Context& c = enter(s, "max_abs");
  if (parts > 1 && !a.accumulate)
    check(cudaMemsetAsync(a.out.data, 0, static_cast<size_t>(a.out.bytes()), c.stream), "max_abs");
  by_dtype("max_abs", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(parts));
    const auto launch = [&](auto kernel) {
      kernel<<<grid, kThreads, 0, c.stream>>>(a.x.as<T>(), a.out.as<float>(), cols, part, a.accumulate);
    };
    cols % kPack<T> == 0 && aligned16({a.x.data}) ? launch(max_abs_kernel<T, kPack<T>>) : launch(max_abs_kernel<T, 1>);
  });
  leave(c, "max_abs");
}

}  // namespace gt::cuda
