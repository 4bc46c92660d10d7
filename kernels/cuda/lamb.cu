// LAMB in two passes: moments with the sums of squares of weights and update, by fixed blocks in double; then the step,
// whose trust ratio every block makes from the norms of the whole tensor. The update is computed in both passes from
// the same numbers rather than stored.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = 32768;  // of one partial sum: part of the definition of the result

template <class M, class G>
struct Moments {
  float *m, *v;
  const M* master;
  const G* grad;
  const float* scalars;
};

struct Factors {
  float beta1, share, beta2, multiplier, c1, c2;
  __device__ Factors(const LambRule& r, const float* s)
      : beta1(s[kBeta1]),
        share(r.grad_averaging ? 1.0f - s[kBeta1] : 1.0f),
        beta2(s[kBeta2]),
        multiplier(s[kGradMultiplier]),
        c1(r.corrected ? 1.0f / s[kBiasCorrection1] : 1.0f),
        c2(r.corrected ? 1.0f / s[kBiasCorrection2] : 1.0f) {}
};

__device__ inline float update_of(const LambRule& r, const Factors& k, float w, float m, float v) {
  const float second = v * k.c2, root = r.eps_inside_sqrt ? sqrtf(second + r.eps) : sqrtf(second) + r.eps;
  return m * k.c1 / root + (r.l2 ? 0.0f : r.weight_decay * w);
}

template <int V, class M, class G>
__device__ inline void moments_at(const Moments<M, G>& a, const LambRule& r, const Factors& k, int64_t i,
                                  double* squares) {
  float w[V], g[V], m[V], v[V];
  load<V>(a.master + i, w);
  load<V>(a.grad + i, g);
  load<V>(a.m + i, m);
  load<V>(a.v + i, v);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    g[j] *= k.multiplier;
    if (r.l2) g[j] += r.weight_decay * w[j];
    m[j] = k.beta1 * m[j] + k.share * g[j];
    v[j] = k.beta2 * v[j] + (1.0f - k.beta2) * g[j] * g[j];
    const double u = static_cast<double>(update_of(r, k, w[j], m[j], v[j]));
    squares[0] += static_cast<double>(w[j]) * w[j];
    squares[1] += u * u;
  }
  store<V>(a.m + i, m);
  store<V>(a.v + i, v);
}

template <int V, class M, class G>
__global__ void __launch_bounds__(kThreads) moments_kernel(Moments<M, G> a, LambRule r, double* partial, int64_t n) {
  __shared__ double shared[kThreads / 32];
  double squares[2] = {0, 0};
  if (a.scalars[kSkip] == 0.0f) {
    const Factors k(r, a.scalars);
    const int64_t begin = int64_t{blockIdx.x} * kBlockElements, end = min(n, begin + kBlockElements);
    for (int64_t i = begin + int64_t{threadIdx.x} * V; i + V <= end; i += int64_t{kThreads} * V)
      moments_at<V>(a, r, k, i, squares);
    const int64_t rest = begin + (end - begin) / V * V + threadIdx.x;  // fewer than V elements, only in the last block
    if (rest < end) moments_at<1>(a, r, k, rest, squares);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const double sum = group_sum<kThreads / 32>(squares[k], shared);
    if (threadIdx.x == 0) partial[2 * int64_t{blockIdx.x} + k] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    norms_kernel(const double* partial, int64_t parts, double* out, bool accumulate) {
  __shared__ double shared[kThreads / 32];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    double s = 0;
    for (int64_t i = threadIdx.x; i < parts; i += kThreads) s += partial[2 * i + k];
    s = group_sum<kThreads / 32>(s, shared);
    if (threadIdx.x == 0) out[k] = accumulate ? out[k] + s : s;
  }
}

template <class M>
struct Step {
  M* master;
  const float *m, *v, *scalars;
  const double* norms;
  float* ratio;
};

__device__ inline float trust_ratio(const LambRule& r, const double* squares) {
  if (!r.adapt || squares[0] == 0 || squares[1] == 0) return 1.0f;
  const double norm = fmin(fmax(sqrt(squares[0]), static_cast<double>(r.min_norm)), static_cast<double>(r.max_norm));
  return static_cast<float>(
      fmin(fmax(norm / sqrt(squares[1]), static_cast<double>(r.min_ratio)), static_cast<double>(r.max_ratio)));
}

template <int V, class M, class U>
__device__ inline void apply_at(const Step<M>& a, const LambRule& r, const Factors& k, float step, U* value,
                                int64_t i) {
  float w[V], m[V], v[V];
  load<V>(a.master + i, w);
  load<V>(a.m + i, m);
  load<V>(a.v + i, v);
#pragma unroll
  for (int j = 0; j < V; ++j) w[j] -= step * update_of(r, k, w[j], m[j], v[j]);
  store<V>(a.master + i, w);
  if (value != nullptr) store<V>(value + i, w);
}

template <int V, class M, class U>
__global__ void __launch_bounds__(kThreads) apply_kernel(Step<M> a, LambRule r, U* value, int64_t n) {
  const float* s = a.scalars;
  if (s[kSkip] != 0.0f) return;
  const float ratio = trust_ratio(r, a.norms);
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, stride = int64_t{gridDim.x} * kThreads,
                packs = n / V;
  if (first == 0 && a.ratio != nullptr) *a.ratio = ratio;
  const Factors k(r, s);
  const float late = r.corrected ? 1.0f : sqrtf(s[kBiasCorrection2]) / s[kBiasCorrection1],
              step = s[kLr] * late * ratio;
  for (int64_t i = first; i < packs; i += stride) apply_at<V>(a, r, k, step, value, i * V);
  if (packs * V + first < n) apply_at<1>(a, r, k, step, value, packs * V + first);
}

void check_ranges(const char* op, int64_t n, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors) {
    want(op, "m or v", *t, DType::kF32);
    GT_CHECK(t->numel() == n, op, ": ranges of ", n, " and ", t->numel(), " elements");
  }
}

}  // namespace

void lamb_moments(const LambMoments& a, Stream s) {
  const int64_t n = a.master.numel(), parts = ceil_div(n, kBlockElements);
  Context& c = enter(s, "lamb_moments");
  check_ranges("lamb_moments", n, {&a.m, &a.v});
  GT_CHECK(a.grad.numel() == n, "lamb_moments: ranges of ", n, " and ", a.grad.numel(), " elements");
  if (a.norms) want("lamb_moments", "norms", a.norms, DType::kF64);
  auto* partial = reinterpret_cast<double*>(c.scratch(std::max<int64_t>(parts, 1) * 16));
  by_dtype("lamb_moments", "master", a.master.dtype, [&](auto t) {
    by_gradient("lamb_moments", "grad", a.grad.dtype, [&](auto g) {
      using M = decltype(t);
      using G = decltype(g);
      const Moments<M, G> p{a.m.as<float>(), a.v.as<float>(), a.master.as<M>(), a.grad.as<G>(),
                            a.scalars.as<float>()};
      const bool wide = aligned16({a.master.data, a.grad.data, a.m.data, a.v.data});
      auto* kernel = wide ? moments_kernel<4, M, G> : moments_kernel<1, M, G>;
      if (parts > 0) kernel<<<static_cast<unsigned>(parts), kThreads, 0, c.stream>>>(p, a.rule, partial, n);
    });
  });
  if (a.norms) norms_kernel<<<1, kThreads, 0, c.stream>>>(partial, parts, a.norms.as<double>(), a.accumulate);
  leave(c, "lamb_moments");
}

void lamb_apply(const LambApply& a, Stream s) {
  const int64_t n = a.master.numel();
  Context& c = enter(s, "lamb_apply");
  check_ranges("lamb_apply", n, {&a.m, &a.v});
  want("lamb_apply", "norms", a.norms, DType::kF64);
  GT_CHECK(!a.value || a.value.numel() == n, "lamb_apply: value has ", a.value.numel(), " elements, master ", n);
  by_master("lamb_apply", a.master, a.value, [&](auto t, auto u) {
    using M = decltype(t);
    using U = decltype(u);
    const Step<M> p{a.master.as<M>(),      a.m.as<float>(),      a.v.as<float>(),
                    a.scalars.as<float>(), a.norms.as<double>(), a.ratio ? a.ratio.as<float>() : nullptr};
    const bool wide = aligned16({a.master.data, a.m.data, a.v.data, a.value.data});
    const int64_t blocks = std::clamp<int64_t>(ceil_div(ceil_div(n, wide ? 4 : 1), kThreads), 1, 1 << 20);
    auto* kernel = wide ? apply_kernel<4, M, U> : apply_kernel<1, M, U>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(p, a.rule, a.value.as<U>(), n);
  });
  leave(c, "lamb_apply");
}

}  // namespace gt::cuda
