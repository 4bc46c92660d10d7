// Sums in double by fixed blocks, the clip factor, AdamW, SGD, Lion, stochastic rounding. Scalars of a step are read on
// the device.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.cuh"
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

__global__ void clip_factor_kernel(const double* squares, int64_t scopes, const double* guard, int64_t guards,
                                   float* scalars, float* norm, float clip, float denominator, double slack) {
  double s = 0;
  for (int64_t i = 0; i < scopes; ++i) s += squares[i];
  const double total = sqrt(s) / denominator;
  const double factor = clip > 0 ? fmin(1.0, clip / (total + slack)) : 1.0;
  scalars[kGradMultiplier] = static_cast<float>(factor / denominator);
  bool finite = isfinite(total);
  for (int64_t i = 0; i < guards; ++i) finite = finite && isfinite(guard[i]);
  scalars[kSkip] = finite ? 0.0f : 1.0f;
  norm[0] = static_cast<float>(total);
}

__global__ void judge_step_kernel(const double* losses, const double* counts, int64_t n, const float* norm,
                                  const double* limits, float* scalars) {
  const double loss = mean_loss(losses, counts, n, limits[kTargets]);
  if (scalars[kSkip] == 0 && is_bad_step(loss, norm[0], limits)) scalars[kSkip] = scalars[kLeftOut] = 1;
}

struct StepScalars {
  float lr, beta1, beta2, bias1, bias2, multiplier, share;
  __device__ explicit StepScalars(const float* s)
      : lr(s[kLr]),
        beta1(s[kBeta1]),
        beta2(s[kBeta2]),
        bias1(s[kBiasCorrection1]),
        bias2(s[kBiasCorrection2]),
        multiplier(s[kGradMultiplier]),
        share(s[kGradShare]) {}
};

// V elements of every tensor from element i on. Each rule loads what it needs, stores its state and leaves the new
// masters in p.
struct AdamRule {
  float *m, *v;
  float eps, weight_decay;
  bool l2;
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float m1[V], m2[V];
    load<V>(m + i, m1);
    load<V>(v + i, m2);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (l2) g[j] += weight_decay * p[j];
      m1[j] = k.beta1 * m1[j] + (1.0f - k.beta1) * g[j];
      m2[j] = k.beta2 * m2[j] + (1.0f - k.beta2) * g[j] * g[j];
      const float decay = l2 ? 0.0f : weight_decay * p[j];
      p[j] -= k.lr * ((m1[j] / k.bias1) / (sqrtf(m2[j] / k.bias2) + eps) + decay);
    }
    store<V>(m + i, m1);
    store<V>(v + i, m2);
  }
};

struct SgdRule {
  float* m;  // may be null
  float weight_decay;
  bool nesterov;
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float m1[V];
    if (m != nullptr) load<V>(m + i, m1);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      g[j] += weight_decay * p[j];
      float update = g[j];
      if (m != nullptr) {
        m1[j] = k.beta1 * m1[j] + k.share * g[j];
        update = nesterov ? g[j] + k.beta1 * m1[j] : m1[j];
      }
      p[j] -= k.lr * update;
    }
    if (m != nullptr) store<V>(m + i, m1);
  }
};

struct LionRule {
  float* m;
  float weight_decay;
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float m1[V];
    load<V>(m + i, m1);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float u = k.beta1 * m1[j] + (1.0f - k.beta1) * g[j];
      p[j] -= k.lr * ((u > 0 ? 1.0f : u < 0 ? -1.0f : 0.0f) + weight_decay * p[j]);
      m1[j] = k.beta2 * m1[j] + (1.0f - k.beta2) * g[j];
    }
    store<V>(m + i, m1);
  }
};

template <int V, class M, class G, class U, class Rule>
__device__ inline void update_at(const Rule& rule, const StepScalars& k, M* master, const G* grad, U* value,
                                 int64_t i) {
  float p[V], g[V];
  load<V>(master + i, p);
  load<V>(grad + i, g);
#pragma unroll
  for (int j = 0; j < V; ++j) g[j] *= k.multiplier;
  rule.template operator()<V>(k, i, p, g);
  store<V>(master + i, p);
  if (value != nullptr) store<V>(value + i, p);
}

template <int V, class M, class G, class U, class Rule>
__global__ void __launch_bounds__(kThreads)
    update_kernel(Rule rule, const float* scalars, M* master, const G* grad, U* value, int64_t n) {
  if (scalars[kSkip] != 0.0f) return;
  const StepScalars k(scalars);
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads,
                packs = n / V;
  for (int64_t i = first; i < packs; i += step) update_at<V>(rule, k, master, grad, value, i * V);
  if (packs * V + first < n) update_at<1>(rule, k, master, grad, value, packs * V + first);
}

// state: what the rule reads besides, for its checks and alignment; empty tensors are skipped.
template <class Args, class Rule>
void update(const char* op, const Args& a, std::initializer_list<const Tensor*> state, const Rule& rule, Stream s) {
  const int64_t n = a.master.numel();
  if (n == 0) return;
  Context& c = enter(s, op);
  bool wide = aligned16({a.master.data, a.grad.data, a.value.data});
  const auto check_range = [&](const Tensor& t) {
    GT_CHECK(t.numel() == n, op, ": ranges of ", n, " and ", t.numel(), " elements");
    wide = wide && aligned16({t.data});
  };
  check_range(a.grad);
  for (const Tensor* t : state) {
    if (!*t) continue;
    want(op, "state", *t, DType::kF32);
    check_range(*t);
  }
  GT_CHECK(!a.value || a.value.numel() == n, op, ": value has ", a.value.numel(), " elements, master ", n);
  by_master(op, a.master, a.value, [&](auto t, auto u) {
    by_gradient(op, "grad", a.grad.dtype, [&](auto g) {
      using M = decltype(t);
      using U = decltype(u);
      using G = decltype(g);
      const int64_t blocks = std::min<int64_t>(ceil_div(ceil_div(n, wide ? 4 : 1), kThreads), 1 << 20);
      auto* kernel = wide ? update_kernel<4, M, G, U, Rule> : update_kernel<1, M, G, U, Rule>;
      kernel<<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(
          rule, a.scalars.template as<float>(), a.master.template as<M>(), a.grad.template as<G>(),
          a.value.template as<U>(), n);
    });
  });
  leave(c, op);
}

// What StochasticRound does, a thread an element. An exponent of ones must not move: infinity, NaN.
__global__ void __launch_bounds__(kThreads)
    stochastic_round_kernel(const float* src, uint16_t* dst, const float* scalars, int64_t n, StochasticRound a) {
  if (scalars[kSkip] != 0.0f) return;
  const uint64_t step = static_cast<uint64_t>(scalars[kStepLow]) + (static_cast<uint64_t>(scalars[kStepHigh]) << 16);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = (a.first + i) / a.cols, e = a.base + row * a.stride + (a.first + i - row * a.cols);
    uint32_t u;
    memcpy(&u, src + i, sizeof u);
    const bool finite = (u & 0x7F800000u) != 0x7F800000u;
    const uint32_t quiet = (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x40u : 0u;
    dst[i] = static_cast<uint16_t>(((finite ? u + (random_word(a.key, step, e) >> 16) : u) >> 16) | quiet);
  }
}

}  // namespace

void sum(const Sum& a, Stream s) { sum_of<false>("sum", a.x, a.out, a.accumulate, s); }

void sum_squares(const SumSquares& a, Stream s) { sum_of<true>("sum_squares", a.x, a.out, a.accumulate, s); }

void clip_factor(const ClipFactor& a, Stream s) {
  Context& c = enter(s, "clip_factor");
  want("clip_factor", "norm_squares", a.norm_squares, DType::kF64);
  want("clip_factor", "scalars", a.scalars, DType::kF32);
  GT_CHECK(a.scalars.numel() >= kNumScalars, "clip_factor: scalars ", to_string(a.scalars.shape));
  if (a.guard) want("clip_factor", "guard", a.guard, DType::kF64);
  clip_factor_kernel<<<1, 1, 0, c.stream>>>(a.norm_squares.as<double>(), a.norm_squares.numel(),
                                            a.guard ? a.guard.as<double>() : nullptr, a.guard ? a.guard.numel() : 0,
                                            a.scalars.as<float>(), a.norm.as<float>(), a.clip, a.denominator, a.slack);
  leave(c, "clip_factor");
}

void judge_step(const JudgeStep& a, Stream s) {
  Context& c = enter(s, "judge_step");
  for (const Tensor* t : {&a.losses, &a.limits}) want("judge_step", t == &a.losses ? "losses" : "limits", *t, DType::kF64);
  if (a.counts) want("judge_step", "counts", a.counts, DType::kF64);
  want("judge_step", "scalars", a.scalars, DType::kF32);
  GT_CHECK(a.scalars.numel() >= kNumScalars && a.limits.numel() == kNumLimits &&
               (!a.counts || a.counts.numel() == a.losses.numel()),
           "judge_step: losses ", to_string(a.losses.shape), " counts ", to_string(a.counts.shape), " limits ",
           to_string(a.limits.shape), " scalars ", to_string(a.scalars.shape));
  judge_step_kernel<<<1, 1, 0, c.stream>>>(a.losses.as<double>(), a.counts ? a.counts.as<double>() : nullptr,
                                           a.losses.numel(), a.norm.as<float>(), a.limits.as<double>(),
                                           a.scalars.as<float>());
  leave(c, "judge_step");
}

void adamw(const AdamW& a, Stream s) {
  update("adamw", a, {&a.m, &a.v}, AdamRule{a.m.as<float>(), a.v.as<float>(), a.eps, a.weight_decay, a.adam_l2}, s);
}

void sgd(const Sgd& a, Stream s) {
  update("sgd", a, {&a.m}, SgdRule{a.m ? a.m.as<float>() : nullptr, a.weight_decay, a.nesterov}, s);
}

void stochastic_round(const StochasticRound& a, Stream s) {
  constexpr const char* kOp = "stochastic_round";
  const int64_t n = a.src.numel();
  if (n == 0) return;
  want(kOp, "src", a.src, DType::kF32);
  want(kOp, "dst", a.dst, DType::kBF16);
  want(kOp, "scalars", a.scalars, DType::kF32);
  GT_CHECK(a.dst.numel() == n && a.cols > 0, kOp, ": src ", to_string(a.src.shape), " dst ", to_string(a.dst.shape));
  Context& c = enter(s, kOp);
  const int64_t blocks = std::min<int64_t>(ceil_div(n, kThreads), 1 << 20);
  stochastic_round_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(
      a.src.as<float>(), a.dst.as<uint16_t>(), a.scalars.as<float>(), n, a);
  leave(c, kOp);
}

void lion(const Lion& a, Stream s) { update("lion", a, {&a.m}, LionRule{a.m.as<float>(), a.weight_decay}, s); }

}  // namespace gt::cuda
