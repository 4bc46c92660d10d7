// LAMB in two passes over a segment table. lamb_moments updates the moments and sums the squares of weights and update,
// per tile in double. lamb_apply takes the step; every block derives the trust ratio from the norms of the whole
// tensor. Both passes recompute the update from the same values rather than storing it.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

template <class M, class G>
struct Moments {
  float *m, *v;
  const M* master;
  const G* grad;
  float weight_decay;
  __device__ explicit Moments(const Segment& s)
      : m(s.m),
        v(s.v),
        master(reinterpret_cast<const M*>(s.master)),
        grad(reinterpret_cast<const G*>(s.grad)),
        weight_decay(s.weight_decay) {}
};

// The step's coefficients under the variant's rules (LambRule).
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

// Update before the trust ratio. Both passes call it on equal values, so its bits agree with the norm taken of it.
__device__ inline float update_of(const LambRule& r, const Factors& k, float decay, float w, float m, float v) {
  const float second = v * k.c2, root = r.eps_inside_sqrt ? sqrtf(second + r.eps) : sqrtf(second) + r.eps;
  return m * k.c1 / root + (r.l2 ? 0.0f : decay * w);
}

template <int V, class M, class G>
__device__ inline void moments_at(const Moments<M, G>& a, const LambRule& r, const Factors& k, int64_t i,
                                  double* squares) {
  float w[V], g[V], m[V], v[V];
  load<V>(on_device(a.master) + i, w);
  load<V>(on_device(a.grad) + i, g);
  load<V>(on_device(a.m) + i, m);
  load<V>(on_device(a.v) + i, v);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    g[j] *= k.multiplier;
    if (r.l2) g[j] += a.weight_decay * w[j];
    m[j] = k.beta1 * m[j] + k.share * g[j];
    v[j] = k.beta2 * v[j] + (1.0f - k.beta2) * g[j] * g[j];
    const double u = static_cast<double>(update_of(r, k, a.weight_decay, w[j], m[j], v[j]));
    squares[0] += static_cast<double>(w[j]) * w[j];
    squares[1] += u * u;
  }
  store_at_once<V>(on_device(a.m) + i, m);
  store_at_once<V>(on_device(a.v) + i, v);
}

// One block per tile.
template <class M, class G>
__global__ void __launch_bounds__(kThreads)
    moments_kernel(const Segment* table, int segments, const float* scalars, LambRule r, double* partial) {
  __shared__ double shared[kThreads / 32];
  double squares[2] = {0, 0};
  if (scalars[kSkip] == 0.0f) {
    const Segment& s = segment_of(table, segments, blockIdx.x);
    const int64_t begin = (int64_t{blockIdx.x} - s.first_tile) * kSegmentTile, end = min(s.count, begin + kSegmentTile);
    const Moments<M, G> a(s);
    const Factors k(r, scalars);
    int64_t i = begin + threadIdx.x;
    if (aligned16(a.master, a.grad, a.m, a.v)) {
      for (i = begin + int64_t{threadIdx.x} * 4; i + 4 <= end; i += kThreads * 4) moments_at<4>(a, r, k, i, squares);
      i = begin + (end - begin) / 4 * 4 + threadIdx.x;
    }
    for (; i < end; i += kThreads) moments_at<1>(a, r, k, i, squares);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const double sum = group_sum<kThreads / 32>(squares[k], shared);
    if (threadIdx.x == 0) partial[2 * int64_t{blockIdx.x} + k] = sum;
  }
}

// You et al. 2020 (arXiv 1904.00962). 1 where a norm is 0: new weights of zeros would never move.
__device__ inline float trust_ratio(const LambRule& r, float weight_decay, const double* squares) {
  if ((!r.adapt_undecayed && weight_decay == 0) || squares[0] == 0 || squares[1] == 0) return 1.0f;
  const double norm = fmin(fmax(sqrt(squares[0]), static_cast<double>(r.min_norm)), static_cast<double>(r.max_norm));
  return static_cast<float>(
      fmin(fmax(norm / sqrt(squares[1]), static_cast<double>(r.min_ratio)), static_cast<double>(r.max_ratio)));
}

template <class M, class U>
struct Step {
  M* master;
  const float *m, *v;
  U* value;
  float weight_decay, step;
  __device__ Step(const Segment& s, float size)
      : master(reinterpret_cast<M*>(s.master)),
        m(s.m),
        v(s.v),
        value(reinterpret_cast<U*>(s.value)),
        weight_decay(s.weight_decay),
        step(size) {}
};

template <int V, class M, class U>
__device__ inline void apply_at(const Step<M, U>& a, const LambRule& r, const Factors& k, int64_t i) {
  float w[V], m[V], v[V];
  load<V>(on_device(a.master) + i, w);
  load<V>(on_device(a.m) + i, m);
  load<V>(on_device(a.v) + i, v);
#pragma unroll
  for (int j = 0; j < V; ++j) w[j] -= a.step * update_of(r, k, a.weight_decay, w[j], m[j], v[j]);
  store_at_once<V>(on_device(a.master) + i, w);
  if (a.value != nullptr) store_at_once<V>(on_device(a.value) + i, w);
}

// One segment of a group, the last, writes the group's ratio, as calls in segment order would.
__device__ inline bool last_of_group(const Segment* table, int segments, const Segment& s) {
  return &s + 1 == table + segments || (&s)[1].group != s.group;
}

// One block per part of a tile.
template <class M, class U>
__global__ void __launch_bounds__(kThreads) apply_kernel(const Segment* table, int segments, const float* scalars,
                                                         const double* norms, float* ratios, LambRule r) {
  if (scalars[kSkip] != 0.0f) return;
  const Segment& s = segment_of(table, segments, blockIdx.x / kPartsOfTile);
  const PartOfSegment part(s, blockIdx.x);
  if (part.begin >= part.end) return;
  const float ratio = trust_ratio(r, s.weight_decay, norms + 2 * int64_t{s.group});
  if (part.begin == 0 && threadIdx.x == 0 && ratios != nullptr && last_of_group(table, segments, s))
    ratios[s.group] = ratio;
  const Factors k(r, scalars);
  const float late = r.corrected ? 1.0f : sqrtf(scalars[kBiasCorrection2]) / scalars[kBiasCorrection1];
  const Step<M, U> a(s, scalars[kLr] * late * ratio);
  int64_t i = part.begin + threadIdx.x;
  if (aligned16(a.master, a.m, a.v, a.value)) {
    for (i = part.begin + int64_t{threadIdx.x} * 4; i + 4 <= part.end; i += kThreads * 4) apply_at<4>(a, r, k, i);
    i = part.begin + (part.end - part.begin) / 4 * 4 + threadIdx.x;
  }
  for (; i < part.end; i += kThreads) apply_at<1>(a, r, k, i);
}

}  // namespace

void lamb_moments(const LambMoments& a, Stream s) {
  constexpr const char* kOp = "lamb_moments";
  const SegmentTable& t = a.table;
  require_segments(kOp, t, true, true);
  require_dtype(kOp, "scalars", a.scalars, DType::kF32);
  require_dtype(kOp, "norms", a.norms, DType::kF64);
  if (t.count == 0) return;
  Context& c = enter(s, kOp);
  auto* partial = reinterpret_cast<double*>(c.scratch(int64_t{t.tiles} * 16));
  const auto* segments = t.device.as<const Segment>();
  by_dtype(kOp, "master", t.master, [&](auto m) {
    by_gradient(kOp, "grad", t.grad, [&](auto g) {
      moments_kernel<decltype(m), decltype(g)><<<static_cast<unsigned>(t.tiles), kThreads, 0, c.stream>>>(
          segments, t.count, a.scalars.as<float>(), a.rule, partial);
    });
  });
  sum_groups_kernel<2>
      <<<static_cast<unsigned>(t.count), kThreads, 0, c.stream>>>(segments, t.count, partial, a.norms.as<double>());
  leave(c, kOp);
}

void lamb_apply(const LambApply& a, Stream s) {
  constexpr const char* kOp = "lamb_apply";
  const SegmentTable& t = a.table;
  require_segments(kOp, t, true, true);
  require_dtype(kOp, "scalars", a.scalars, DType::kF32);
  require_dtype(kOp, "norms", a.norms, DType::kF64);
  if (t.count == 0) return;
  Context& c = enter(s, kOp);
  by_master(t, [&](auto m, auto u) {
    apply_kernel<decltype(m), decltype(u)><<<static_cast<unsigned>(t.tiles * kPartsOfTile), kThreads, 0, c.stream>>>(
        t.device.as<const Segment>(), t.count, a.scalars.as<float>(), a.norms.as<double>(),
        a.ratio ? a.ratio.as<float>() : nullptr, a.rule);
  });
  leave(c, kOp);
}

}  // namespace gt::cuda
