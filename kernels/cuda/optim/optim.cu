// Sums in double over fixed blocks, clip factor, AdamW, SGD, Lion, Adagrad, stochastic rounding. A step's scalars and
// its segment table are read on the device: one launch steps all parameters, whichever buffers hold them.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

__device__ inline double block_sum(double x) {
  __shared__ double shared[kThreads / 32];
  return group_sum<kThreads / 32>(x, shared);
}

// Sum, or sum of squares, of x[begin, end) in double; returned to every thread.
template <int V, bool Squares, class T>
__device__ inline double sum_of_block(const T* x, int64_t begin, int64_t end) {
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
  return block_sum(s);
}

// One block per tile, of a size that depends on nothing: the sum has one order on every device.
template <int V, class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(const T* x, double* partial, int64_t n) {
  const int64_t begin = int64_t{blockIdx.x} * kSegmentTile;
  const double s = sum_of_block<V, false>(x, begin, min(n, begin + kSegmentTile));
  if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

// One block per tile.
template <class T>
__global__ void __launch_bounds__(kThreads) squares_kernel(const Segment* table, int segments, double* partial) {
  const Segment& s = segment_of(table, segments, blockIdx.x);
  const T* x = on_device(reinterpret_cast<const T*>(s.grad));
  const int64_t begin = (int64_t{blockIdx.x} - s.first_tile) * kSegmentTile, end = min(s.count, begin + kSegmentTile);
  const double sum = aligned16(x) ? sum_of_block<kPack<T>, true>(x, begin, end) : sum_of_block<1, true>(x, begin, end);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One block adds what the tiles left, always in the same order: atomics would add in that of their arrival.
__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(const double* partial, int64_t parts, double* out, bool accumulate) {
  double s = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < parts; i += kThreads) s += partial[i];
  s = block_sum(s);
  if (threadIdx.x == 0) out[0] = accumulate ? out[0] + s : s;
}

// One thread. `squares` has an entry per FSDP unit in model order, so the norm does not depend on the layout. A guard
// that is not finite skips the step as well: it sums what the norm leaves out, such as the replicas of a parameter.
__global__ void clip_factor_kernel(const double* squares, int64_t units, const double* guard, int64_t guards,
                                   float* scalars, float* norm, float clip, float denominator, double slack) {
  double s = 0;
  for (int64_t i = 0; i < units; ++i) s += squares[i];
  const double total = sqrt(s) / denominator;
  const double factor = clip > 0 ? fmin(1.0, clip / (total + slack)) : 1.0;
  scalars[kGradMultiplier] = static_cast<float>(factor / denominator);
  bool finite = isfinite(total);
  for (int64_t i = 0; i < guards; ++i) finite = finite && isfinite(guard[i]);
  scalars[kSkip] = finite ? 0.0f : 1.0f;
  norm[0] = static_cast<float>(total);
}

// The limits come from earlier steps; the host reads the verdict with the step's values, after the update kernels.
__global__ void check_step_kernel(const double* losses, int64_t sums, int64_t n, const double* shares,
                                  const double* counts, const float* norm, const double* limits, float* scalars) {
  const double loss = mean_loss(losses, sums, n, shares, counts);
  if (scalars[kSkip] == 0 && is_anomalous_step(loss, norm[0], limits)) scalars[kSkip] = scalars[kAnomalous] = 1;
}

// Scalars of the step, read on the device: a recorded graph stays valid while they change.
struct StepScalars {
  float lr, beta1, beta2, bias1, bias2, multiplier, share;
  __device__ explicit StepScalars(const float* s)
      : lr(s[kLr]),
        beta1(s[kBeta1]),
        beta2(s[kBeta2]),
        bias1(s[kBiasCorrection1]),
        bias2(s[kBiasCorrection2]),
        multiplier(s[kGradMultiplier]),
        share(s[kGradCoefficient]) {}
};

// Update rules, each bound to a segment. A rule loads its state for V elements from i on, stores the new state and
// leaves the new master weights in p.
// AdamW (Loshchilov and Hutter 2019); with `l2` Adam, where decay is part of the gradient and enters the moments.
struct AdamRule {
  float eps;
  bool l2;
  float* m = nullptr;
  float* v = nullptr;
  float weight_decay = 0;
  __device__ void bind(const Segment& s) { m = s.m, v = s.v, weight_decay = s.weight_decay; }
  __device__ bool aligned() const { return aligned16(m, v); }
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float m1[V], m2[V];
    load<V>(on_device(m) + i, m1);
    load<V>(on_device(v) + i, m2);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (l2) g[j] += weight_decay * p[j];
      m1[j] = k.beta1 * m1[j] + (1.0f - k.beta1) * g[j];
      m2[j] = k.beta2 * m2[j] + (1.0f - k.beta2) * g[j] * g[j];
      const float decay = l2 ? 0.0f : weight_decay * p[j];
      p[j] -= k.lr * ((m1[j] / k.bias1) / (sqrtf(m2[j] / k.bias2) + eps) + decay);
    }
    store_at_once<V>(on_device(m) + i, m1);
    store_at_once<V>(on_device(v) + i, m2);
  }
};

// SGD as in PyTorch: the momentum takes a share of the gradient, 1 without dampening and in the first step.
struct SgdRule {
  bool nesterov;
  float* m = nullptr;  // stays nullptr for a segment without momentum
  float weight_decay = 0;
  __device__ void bind(const Segment& s) { m = s.m, weight_decay = s.weight_decay; }
  __device__ bool aligned() const { return aligned16(m); }
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float m1[V];
    if (m != nullptr) load<V>(on_device(m) + i, m1);
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
    if (m != nullptr) store_at_once<V>(on_device(m) + i, m1);
  }
};

// Lion (Chen et al. 2023, arXiv 2302.06675): the sign of an interpolation that is not the one stored.
struct LionRule {
  float* m = nullptr;
  float weight_decay = 0;
  __device__ void bind(const Segment& s) { m = s.m, weight_decay = s.weight_decay; }
  __device__ bool aligned() const { return aligned16(m); }
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float m1[V];
    load<V>(on_device(m) + i, m1);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float u = k.beta1 * m1[j] + (1.0f - k.beta1) * g[j];
      p[j] -= k.lr * ((u > 0 ? 1.0f : u < 0 ? -1.0f : 0.0f) + weight_decay * p[j]);
      m1[j] = k.beta2 * m1[j] + (1.0f - k.beta2) * g[j];
    }
    store_at_once<V>(on_device(m) + i, m1);
  }
};

struct AdagradRule {
  float eps;
  float* squares = nullptr;
  float weight_decay = 0;
  __device__ void bind(const Segment& s) { squares = s.m, weight_decay = s.weight_decay; }
  __device__ bool aligned() const { return aligned16(squares); }
  template <int V>
  __device__ void operator()(const StepScalars& k, int64_t i, float* p, float* g) const {
    float sum[V];
    load<V>(on_device(squares) + i, sum);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      g[j] += weight_decay * p[j];
      sum[j] += g[j] * g[j];
      p[j] -= k.lr * (g[j] / (sqrtf(sum[j]) + eps));
    }
    store_at_once<V>(on_device(squares) + i, sum);
  }
};

// Typed pointers of a segment.
template <class M, class G, class U>
struct Typed {
  M* master;
  const G* grad;
  U* value;
  __device__ explicit Typed(const Segment& s)
      : master(reinterpret_cast<M*>(s.master)),
        grad(reinterpret_cast<const G*>(s.grad)),
        value(reinterpret_cast<U*>(s.value)) {}
  __device__ bool aligned() const { return aligned16(master, grad, value); }
};

template <int V, class T, class Rule>
__device__ inline void update_at(const Rule& rule, const StepScalars& k, const T& t, int64_t i) {
  float p[V], g[V];
  load<V>(on_device(t.master) + i, p);
  load<V>(on_device(t.grad) + i, g);
#pragma unroll
  for (int j = 0; j < V; ++j) g[j] *= k.multiplier;
  rule.template operator()<V>(k, i, p, g);
  store_at_once<V>(on_device(t.master) + i, p);
  if (t.value != nullptr) store_at_once<V>(on_device(t.value) + i, p);
}

// One block per part of a tile.
template <class M, class G, class U, class Rule>
__global__ void __launch_bounds__(kThreads)
    update_kernel(Rule rule, const float* scalars, const Segment* table, int segments) {
  if (scalars[kSkip] != 0.0f) return;
  const Segment& s = segment_of(table, segments, blockIdx.x / kPartsOfTile);
  const PartOfSegment part(s, blockIdx.x);
  if (part.begin >= part.end) return;
  const Typed<M, G, U> t(s);
  rule.bind(s);
  const StepScalars k(scalars);
  // Segments begin where a parameter's shard does, at any element: four at once only where all pointers allow it.
  int64_t i = part.begin + int64_t{threadIdx.x} * 4;
  if (t.aligned() && rule.aligned()) {
    for (; i + 4 <= part.end; i += kThreads * 4) update_at<4>(rule, k, t, i);
    i = part.begin + (part.end - part.begin) / 4 * 4 + threadIdx.x;
  } else {
    i = part.begin + threadIdx.x;
  }
  for (; i < part.end; i += kThreads) update_at<1>(rule, k, t, i);
}

template <class Rule>
void update(const char* op, const SegmentTable& table, const Tensor& scalars, const Rule& rule, Stream s) {
  require_dtype(op, "scalars", scalars, DType::kF32);
  if (table.count == 0) return;
  Context& c = enter(s, op);
  by_master(table, [&](auto t, auto u) {
    by_gradient(op, "grad", table.grad, [&](auto g) {
      using M = decltype(t);
      using U = decltype(u);
      using G = decltype(g);
      update_kernel<M, G, U, Rule><<<static_cast<unsigned>(table.tiles * kPartsOfTile), kThreads, 0, c.stream>>>(
          rule, scalars.as<float>(), table.device.as<const Segment>(), table.count);
    });
  });
  leave(c, op);
}

// See StochasticRound. One thread per element. An exponent of all ones (infinity, NaN) is left unchanged.
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

void sum(const Sum& a, Stream s) {
  require_dtype("sum", "out", a.out, DType::kF64);
  Context& c = enter(s, "sum");
  const int64_t parts = ceil_div(a.x.numel(), kSegmentTile);
  auto* partial = reinterpret_cast<double*>(c.scratch(std::max<int64_t>(parts, 1) * 8));
  if (parts > 0)
    by_dtype("sum", "x", a.x.dtype, [&](auto t) {
      using T = decltype(t);
      auto* kernel = aligned16({a.x.data}) ? sum_kernel<kPack<T>, T> : sum_kernel<1, T>;
      kernel<<<static_cast<unsigned>(parts), kThreads, 0, c.stream>>>(a.x.as<T>(), partial, a.x.numel());
    });
  sum_partials_kernel<<<1, kThreads, 0, c.stream>>>(partial, parts, a.out.as<double>(), a.accumulate);
  leave(c, "sum");
}

void sum_squares(const SumSquares& a, Stream s) {
  constexpr const char* kOp = "sum_squares";
  require_gradients(kOp, a.table);
  require_dtype(kOp, "out", a.out, DType::kF64);
  if (a.table.count == 0) return;
  Context& c = enter(s, kOp);
  auto* partial = reinterpret_cast<double*>(c.scratch(int64_t{a.table.tiles} * 8));
  const auto* segments = a.table.device.as<const Segment>();
  by_gradient(kOp, "grad", a.table.grad, [&](auto t) {
    squares_kernel<decltype(t)>
        <<<static_cast<unsigned>(a.table.tiles), kThreads, 0, c.stream>>>(segments, a.table.count, partial);
  });
  sum_groups_kernel<1><<<static_cast<unsigned>(a.table.count), kThreads, 0, c.stream>>>(segments, a.table.count,
                                                                                        partial, a.out.as<double>());
  leave(c, kOp);
}

void clip_factor(const ClipFactor& a, Stream s) {
  Context& c = enter(s, "clip_factor");
  require_dtype("clip_factor", "norm_squares", a.norm_squares, DType::kF64);
  require_dtype("clip_factor", "scalars", a.scalars, DType::kF32);
  GT_CHECK(a.scalars.numel() >= kNumScalars, "clip_factor: scalars ", to_string(a.scalars.shape));
  if (a.guard) require_dtype("clip_factor", "guard", a.guard, DType::kF64);
  clip_factor_kernel<<<1, 1, 0, c.stream>>>(a.norm_squares.as<double>(), a.norm_squares.numel(),
                                            a.guard ? a.guard.as<double>() : nullptr, a.guard ? a.guard.numel() : 0,
                                            a.scalars.as<float>(), a.norm.as<float>(), a.clip, a.denominator, a.slack);
  leave(c, "clip_factor");
}

void check_step(const CheckStep& a, Stream s) {
  Context& c = enter(s, "check_step");
  require_dtype("check_step", "losses", a.losses, DType::kF64);
  require_dtype("check_step", "shares", a.shares, DType::kF64);
  require_dtype("check_step", "limits", a.limits, DType::kF64);
  if (a.counts) require_dtype("check_step", "counts", a.counts, DType::kF64);
  require_dtype("check_step", "scalars", a.scalars, DType::kF32);
  const int64_t sums = a.shares.numel() / 2, n = a.losses.numel() / sums;
  GT_CHECK(a.scalars.numel() >= kNumScalars && a.limits.numel() == kNumLimits && a.losses.numel() == sums * n &&
               (!a.counts || a.counts.numel() == n),
           "check_step: losses ", to_string(a.losses.shape), " shares ", to_string(a.shares.shape), " counts ",
           to_string(a.counts.shape), " limits ", to_string(a.limits.shape), " scalars ", to_string(a.scalars.shape));
  check_step_kernel<<<1, 1, 0, c.stream>>>(a.losses.as<double>(), sums, n, a.shares.as<double>(),
                                           a.counts ? a.counts.as<double>() : nullptr, a.norm.as<float>(),
                                           a.limits.as<double>(), a.scalars.as<float>());
  leave(c, "check_step");
}

void adamw(const AdamW& a, Stream s) {
  require_segments("adamw", a.table, true, true);
  update("adamw", a.table, a.scalars, AdamRule{a.eps, a.adam_l2}, s);
}

void sgd(const Sgd& a, Stream s) {
  require_segments("sgd", a.table, false, false);
  update("sgd", a.table, a.scalars, SgdRule{a.nesterov}, s);
}

void lion(const Lion& a, Stream s) {
  require_segments("lion", a.table, true, false);
  update("lion", a.table, a.scalars, LionRule{}, s);
}

void adagrad(const Adagrad& a, Stream s) {
  require_segments("adagrad", a.table, true, false);
  update("adagrad", a.table, a.scalars, AdagradRule{a.eps}, s);
}

void stochastic_round(const StochasticRound& a, Stream s) {
  constexpr const char* kOp = "stochastic_round";
  const int64_t n = a.src.numel();
  if (n == 0) return;
  require_dtype(kOp, "src", a.src, DType::kF32);
  require_dtype(kOp, "dst", a.dst, DType::kBF16);
  require_dtype(kOp, "scalars", a.scalars, DType::kF32);
  GT_CHECK(a.dst.numel() == n && a.cols > 0, kOp, ": src ", to_string(a.src.shape), " dst ", to_string(a.dst.shape));
  Context& c = enter(s, kOp);
  const int64_t blocks = std::min<int64_t>(ceil_div(n, kThreads), 1 << 20);
  stochastic_round_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(
      a.src.as<float>(), a.dst.as<uint16_t>(), a.scalars.as<float>(), n, a);
  leave(c, kOp);
}

}  // namespace gt::cuda
