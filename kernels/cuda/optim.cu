// Sums in double by fixed blocks, the clip factor, AdamW. Scalars of a step are read on the device.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = 32768;  // of one partial sum: part of the definition of the result

__device__ inline double block_sum(double x) {
  __shared__ double shared[kThreads / 32];
  return group_sum<kThreads / 32>(x, shared);
}

template <int V, bool Squares, class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* x, double* partial, int64_t n) {
  const int64_t begin = int64_t{blockIdx.x} * kBlockElements, end = min(n, begin + kBlockElements);
  double s = 0;
#pragma unroll 4
  for (int64_t i = begin + int64_t{threadIdx.x} * V; i + V <= end; i += int64_t{kThreads} * V) {
    float v[V];
    load<V>(x + i, v);
#pragma unroll
    for (int j = 0; j < V; ++j) s += Squares ? static_cast<double>(v[j]) * v[j] : static_cast<double>(v[j]);
  }
  const int64_t rest = begin + (end - begin) / V * V + threadIdx.x;  // fewer than V elements, only in the last block
  if (rest < end) {
    const double v = to_float(x[rest]);
    s += Squares ? v * v : v;
  }
  s = block_sum(s);
  if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(const double* partial, int64_t parts, double* out, bool accumulate) {
  double s = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < parts; i += kThreads) s += partial[i];
  s = block_sum(s);
  if (threadIdx.x == 0) out[0] = accumulate ? out[0] + s : s;
}

template <bool Squares>
void sum_of(const char* op, const Tensor& x, const Tensor& out, bool accumulate, Stream s) {
  want(op, "out", out, DType::kF64);
  Context& c = enter(s, op);
  const int64_t parts = ceil_div(x.numel(), kBlockElements);
  auto* partial = reinterpret_cast<double*>(c.scratch(std::max<int64_t>(parts, 1) * 8));
  if (parts > 0)
    by_dtype(op, "x", x.dtype, [&](auto t) {
      using T = decltype(t);
      auto* kernel = aligned16({x.data}) ? sum_kernel<kPack<T>, Squares, T> : sum_kernel<1, Squares, T>;
      kernel<<<static_cast<unsigned>(parts), kThreads, 0, c.stream>>>(x.as<T>(), partial, x.numel());
    });
  sum_partials_kernel<<<1, kThreads, 0, c.stream>>>(partial, parts, out.as<double>(), accumulate);
  leave(c, op);
}

__global__ void clip_factor_kernel(const double* squares, int64_t scopes, float* scalars, float* norm, float clip,
                                   float denominator) {
  double s = 0;
  for (int64_t i = 0; i < scopes; ++i) s += squares[i];
  const double total = sqrt(s) / denominator;
  const double factor = clip > 0 ? fmin(1.0, clip / (total + 1e-6)) : 1.0;
  scalars[kGradMultiplier] = static_cast<float>(factor / denominator);
  scalars[kSkip] = isfinite(total) ? 0.0f : 1.0f;
  norm[0] = static_cast<float>(total);
}

struct Adam {
  float *master, *m, *v;
  const float *grad, *scalars;
  float beta2, eps, weight_decay;
  bool l2;
};

struct AdamScalars {
  float lr, beta1, bias1, bias2, multiplier;
};

template <int V, class U>
__device__ inline void adam_at(const Adam& a, const AdamScalars& k, U* value, int64_t i) {
  float p[V], g[V], m[V], v[V];
  load<V>(a.master + i, p);
  load<V>(a.grad + i, g);
  load<V>(a.m + i, m);
  load<V>(a.v + i, v);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    g[j] *= k.multiplier;
    if (a.l2) g[j] += a.weight_decay * p[j];
    m[j] = k.beta1 * m[j] + (1.0f - k.beta1) * g[j];
    v[j] = a.beta2 * v[j] + (1.0f - a.beta2) * g[j] * g[j];
    const float decay = a.l2 ? 0.0f : a.weight_decay * p[j];
    p[j] -= k.lr * ((m[j] / k.bias1) / (sqrtf(v[j] / k.bias2) + a.eps) + decay);
  }
  store<V>(a.master + i, p);
  store<V>(a.m + i, m);
  store<V>(a.v + i, v);
  if (value != nullptr) store<V>(value + i, p);
}

template <int V, class U>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Adam a, U* value, int64_t n) {
  if (a.scalars[kSkip] != 0.0f) return;
  const AdamScalars k{a.scalars[kLr], a.scalars[kBeta1], a.scalars[kBiasCorrection1], a.scalars[kBiasCorrection2],
                      a.scalars[kGradMultiplier]};
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads,
                packs = n / V;
  for (int64_t i = first; i < packs; i += step) adam_at<V>(a, k, value, i * V);
  if (packs * V + first < n) adam_at<1>(a, k, value, packs * V + first);
}

}  // namespace

void sum(const Sum& a, Stream s) { sum_of<false>("sum", a.x, a.out, a.accumulate, s); }

void sum_squares(const SumSquares& a, Stream s) { sum_of<true>("sum_squares", a.x, a.out, a.accumulate, s); }

void clip_factor(const ClipFactor& a, Stream s) {
  Context& c = enter(s, "clip_factor");
  want("clip_factor", "norm_squares", a.norm_squares, DType::kF64);
  want("clip_factor", "scalars", a.scalars, DType::kF32);
  GT_CHECK(a.scalars.numel() >= kNumScalars, "clip_factor: scalars ", to_string(a.scalars.shape));
  clip_factor_kernel<<<1, 1, 0, c.stream>>>(a.norm_squares.as<double>(), a.norm_squares.numel(), a.scalars.as<float>(),
                                            a.norm.as<float>(), a.clip, a.denominator);
  leave(c, "clip_factor");
}

void adamw(const AdamW& a, Stream s) {
  const int64_t n = a.master.numel();
  if (n == 0) return;
  Context& c = enter(s, "adamw");
  for (const Tensor* t : {&a.master, &a.grad, &a.m, &a.v}) {
    want("adamw", "master, grad, m or v", *t, DType::kF32);
    GT_CHECK(t->numel() == n, "adamw: ranges of ", n, " and ", t->numel(), " elements");
  }
  GT_CHECK(!a.value || a.value.numel() == n, "adamw: value has ", a.value.numel(), " elements, master ", n);
  const Adam p{
      a.master.as<float>(), a.m.as<float>(), a.v.as<float>(), a.grad.as<float>(), a.scalars.as<float>(), a.beta2, a.eps,
      a.weight_decay,       a.adam_l2};
  by_dtype("adamw", "value", a.value ? a.value.dtype : DType::kF32, [&](auto u) {
    using U = decltype(u);
    const bool wide = aligned16({a.master.data, a.grad.data, a.m.data, a.v.data, a.value.data});
    const int64_t blocks = std::min<int64_t>(ceil_div(ceil_div(n, wide ? 4 : 1), kThreads), 1 << 20);
    auto* kernel = wide ? adamw_kernel<4, U> : adamw_kernel<1, U>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(p, a.value.as<U>(), n);
  });
  leave(c, "adamw");
}

}  // namespace gt::cuda
