// Shared by the layer norm and RMSNorm kernels: arguments, one row in registers, the register shape for a row length.
#pragma once
#include <type_traits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/ops.h"

namespace gt::cuda {

// gamma or beta, f32 or the storage type of x; the branch is uniform over the grid. RMSNorm has no beta.
template <class T>
struct Weights {
  const void* data;
  bool f32;
  __device__ explicit operator bool() const { return data != nullptr; }
  template <int V>
  __device__ void get(int64_t c, float (&w)[V]) const {
    if (f32)
      load<V>(static_cast<const float*>(data) + c, w);
    else
      load<V>(static_cast<const T*>(data) + c, w);
  }
};

// V elements of a branch in flight: raw words of the one dtype that it has.
template <int V, class T>
struct BranchLoad {
  Stored<V, T> same;
};
template <int V>
struct BranchLoad<V, float> {
  Stored<V, float> same;
  Stored<V, __nv_bfloat16> bf16;
  Stored<V, __half> f16;
};

// The branch added to x, or its gradient: of x's type, or a 16-bit type beside f32 x. issue() issues a load, get()
// converts it to f32, put() rounds and stores.
template <class T>
struct Branch {
  void* data;
  DType type;
  __device__ explicit operator bool() const { return data != nullptr; }
  template <int V>
  __device__ void issue(int64_t i, BranchLoad<V, T>& a) const {
    if constexpr (std::is_same_v<T, float>) {
      if (type == DType::kBF16) return a.bf16.load(static_cast<const __nv_bfloat16*>(data) + i);
      if (type == DType::kF16) return a.f16.load(static_cast<const __half*>(data) + i);
    }
    a.same.load(static_cast<const T*>(data) + i);
  }
  template <int V>
  __device__ void get(const BranchLoad<V, T>& a, float (&d)[V]) const {
    if constexpr (std::is_same_v<T, float>) {
      if (type == DType::kBF16) return a.bf16.get(d);
      if (type == DType::kF16) return a.f16.get(d);
    }
    a.same.get(d);
  }
  template <int V>
  __device__ void get(int64_t i, float (&d)[V]) const {
    BranchLoad<V, T> a;
    issue(i, a);
    get(a, d);
  }
  template <int V>
  __device__ void put(int64_t i, const float (&d)[V]) const {
    if (std::is_same_v<T, float> && type == DType::kBF16)
      store<V>(static_cast<__nv_bfloat16*>(data) + i, d);
    else if (std::is_same_v<T, float> && type == DType::kF16)
      store<V>(static_cast<__half*>(data) + i, d);
    else
      store<V>(static_cast<T*>(data) + i, d);
  }
  // Rounds d as put() stores it.
  template <int V>
  __device__ void round(float (&d)[V]) const {
    if (std::is_same_v<T, float> && type == DType::kBF16)
      round_all<__nv_bfloat16>(d);
    else if (std::is_same_v<T, float> && type == DType::kF16)
      round_all<__half>(d);
    else
      round_all<T>(d);
  }
};

// Kernel arguments of the forward pass; see LayerNorm in kernels/ops.h.
template <class T>
struct Forward {
  const T* x;
  Branch<T> delta;
  Weights<T> gamma, beta;
  T *sum, *out;
  float *mean, *rstd;
  int64_t n;
  int cols;
  float inverse_cols;
  float eps;
  RowDrop drop;
  bool rms;
  float gamma_offset;

  // Mean of a row from this thread's partial sum; 0 for RMSNorm.
  template <int W>
  __device__ float mean_of(float sum, float* shared) const {
    return rms ? 0.0f : group_sum<W>(sum, shared) * inverse_cols;
  }
  // Normalizes v, the elements from column c on, and applies gamma and beta.
  template <int V>
  __device__ void scale(int c, float mean, float rstd, float (&v)[V]) const {
    float g[V], b[V] = {};
    gamma.template get<V>(c, g);
    if (rms) {
#pragma unroll
      for (int j = 0; j < V; ++j) g[j] += gamma_offset;
    } else {
      beta.template get<V>(c, b);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = (v[j] - mean) * rstd * g[j] + b[j];
  }
  __device__ void statistics(int64_t row, float m, float r) const {
    if (mean != nullptr) mean[row] = m;
    rstd[row] = r;
  }
};

// 1 / sqrt(x) within 2 ulp, in one instruction; sqrt and division take 30.
__device__ inline float inverse_root(float x) {
#ifdef __CUDA_ARCH__
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
#endif
}

// Normalizes one row of p.cols columns with W warps, K packs of V elements per lane. Writes the residual sum and the
// statistics, and passes the result pack by pack to emit(column, float (&)[V]). Drop: dropout of delta. `shared` holds
// W values.
template <int V, int K, int W, bool Drop, class T, class Emit>
__device__ inline void norm_row(const Forward<T>& p, int64_t row, int lane, float* shared, Emit emit) {
  float v[K][V];
  Stored<V, T> x[K];  // all loads of x and delta are issued before the first use
  BranchLoad<V, T> delta[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = (k * 32 * W + lane) * V;
    if (c >= p.cols) continue;
    x[k].load(p.x + row * p.cols + c);
    if (p.delta) p.delta.issue(row * p.cols + c, delta[k]);
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = (k * 32 * W + lane) * V;
    if (c >= p.cols) continue;
    x[k].get(v[k]);
    if (!p.delta) continue;
    float d[V];
    p.delta.get(delta[k], d);
    if constexpr (Drop) drop<V>(p.drop, row, p.cols, c, d);
#pragma unroll
    for (int j = 0; j < V; ++j) v[k][j] += d[j];
    round_all<T>(v[k]);
    store<V>(p.sum + row * p.cols + c, v[k]);
  }
  float s = 0;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if ((k * 32 * W + lane) * V < p.cols)
#pragma unroll
      for (int j = 0; j < V; ++j) s += v[k][j];
  const float mean = p.template mean_of<W>(s, shared);
  float q = 0;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if ((k * 32 * W + lane) * V < p.cols)
#pragma unroll
      for (int j = 0; j < V; ++j) q += (v[k][j] - mean) * (v[k][j] - mean);
  const float rstd = inverse_root(group_sum<W>(q, shared) * p.inverse_cols + p.eps);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int c = (k * 32 * W + lane) * V;
    if (c >= p.cols) continue;
    p.scale(c, mean, rstd, v[k]);
    emit(c, v[k]);
  }
  if (lane == 0) p.statistics(row, mean, rstd);
}

// The smallest register shape that holds a row: at most 32 elements per lane, at most `Most` with one warp (more spills
// in the backward). Long: one warp also takes rows of 16-bit types with up to 64 elements per lane.
template <int K, int W>
struct RowShape {
  static constexpr int k = K, w = W;
};

// Most elements per lane with one warp: forward, backward; forward with `Long` in two steps.
constexpr int kForward = 32, kBackward = 24, kLong = 56, kLongest = 64;

// Calls f with the shape; returns false when there is none. Four warps are used where one pack per lane suffices: half
// of eight warps would idle.
template <class T, int Most, bool Long = false, class F>
bool by_row_shape(int64_t cols, F&& f) {
  constexpr int kV = kPack<T>;
  if (cols % kV != 0 || cols > 32 * 256) return false;
  if constexpr (Most < 4 * kV)
    if (cols > Most * 32 && cols <= 4 * kV * 32) return f(RowShape<1, 4>{}), true;
  if constexpr (Long && sizeof(T) == 2) {  // faster than eight warps: no barriers, more rows in flight
    if (cols > Most * 32 && cols <= kLong * 32) return f(RowShape<kLong / kV, 1>{}), true;
    if (cols > kLong * 32 && cols <= kLongest * 32) return f(RowShape<kLongest / kV, 1>{}), true;
  }
  if (cols <= 16 * 32)
    f(RowShape<16 / kV, 1>{});
  else if (cols <= 24 * 32)
    f(RowShape<24 / kV, 1>{});
  else if (cols <= Most * 32)
    f(RowShape<Most / kV, 1>{});
  else if (cols <= 8 * 256)
    f(RowShape<8 / kV, 8>{});
  else if (cols <= 16 * 256)
    f(RowShape<16 / kV, 8>{});
  else
    f(RowShape<32 / kV, 8>{});
  return true;
}

// Calls f(std::bool_constant) for with or without dropout.
template <class F>
void by_drop(const RowDrop& d, F&& f) {
  if (d) return f(std::true_type{});
  f(std::false_type{});
}

// Kernel arguments from tensors, optional ones included; throw for unsupported dtypes.
template <class T>
Weights<T> weights(const char* op, const char* name, const Tensor& w, DType main) {
  if (!w) return {nullptr, true};
  GT_REQUIRE(w.dtype == DType::kF32 || w.dtype == main, Exit::kUsage, "cuda ", op, ": ", name, " is ", name_of(w.dtype),
             " beside ", name_of(main), "; f32 or the same is supported");
  return {w.data, w.dtype == DType::kF32};
}

template <class T>
Branch<T> branch(const char* op, const char* name, const Tensor& d, DType main) {
  if (!d) return {nullptr, main};
  if (main == DType::kF32)
    by_dtype(op, name, d.dtype, [](auto) {});
  else
    require_dtype(op, name, d, main);
  return {d.data, d.dtype};
}

template <class T>
Forward<T> forward_of(const LayerNorm& a) {
  return {a.x.as<T>(),
          branch<T>("layer_norm", "delta", a.delta, a.x.dtype),
          weights<T>("layer_norm", "gamma", a.gamma, a.x.dtype),
          weights<T>("layer_norm", "beta", a.beta, a.x.dtype),
          a.sum.as<T>(),
          a.out.as<T>(),
          a.mean.as<float>(),
          a.rstd.as<float>(),
          a.x.shape.rows(),
          static_cast<int>(a.x.shape.cols()),
          1.0f / static_cast<float>(a.x.shape.cols()),
          a.eps,
          a.drop,
          a.kind == NormKind::kRms,
          a.gamma_offset};
}

// Norm with its result quantized to FP8, or its amax observed, in the same pass. Returns false, with nothing queued,
// when no kernel supports this shape, dtype or alignment.
bool norm_fp8(const LayerNorm&, Context&);

}  // namespace gt::cuda
