// Reference optimizer steps, element by element in f64.
#include <algorithm>
#include <cmath>

#include "kernels/core/rng.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {
namespace {

struct Scalars {
  double lr, beta1, beta2, bias1, bias2, multiplier, share;
  bool skip;
  explicit Scalars(const Tensor& t)
      : lr(get(t, kLr)),
        beta1(get(t, kBeta1)),
        beta2(get(t, kBeta2)),
        bias1(get(t, kBiasCorrection1)),
        bias2(get(t, kBiasCorrection2)),
        multiplier(get(t, kGradMultiplier)),
        share(get(t, kGradCoefficient)),
        skip(get(t, kSkip) != 0) {}
};

// A segment's tensors; absent ones are empty.
struct Tensors {
  Tensor master, grad, m, v, value;
  double weight_decay;
  Tensors(const SegmentTable& t, const Segment& s)
      : master{s.master, {s.count}, t.master, {}},
        grad{const_cast<std::byte*>(s.grad), {s.count}, t.grad, {}},
        m{reinterpret_cast<std::byte*>(s.m), {s.count}, DType::kF32, {}},
        v{reinterpret_cast<std::byte*>(s.v), {s.count}, DType::kF32, {}},
        value{s.value, {s.count}, t.value, {}},
        weight_decay(s.weight_decay) {}
  void store(int64_t i, double updated) const {
    set(master, i, updated);
    if (value) set(value, i, get(master, i));  // the rounded master, so both agree
  }
};

// Rounds up with a probability equal to the truncated fraction: 16 random bits against the 16 that bf16 drops.
void round_at_random(const StochasticRound& p, int64_t i, uint64_t step) {
  const int64_t at = p.first + i, e = p.base + at / p.cols * p.stride + at % p.cols;
  const double x = get(p.src, i);
  if (!std::isfinite(x) || x == 0) return set(p.dst, i, x);
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1, std::max(exponent - 8, -133));  // weight of bf16's last bit; subnormals share one
  const double below = std::floor(std::fabs(x) / unit), rest = std::fabs(x) / unit - below;  // both exact
  const uint32_t bits = philox(p.key, static_cast<uint64_t>(e) / 4, step)[static_cast<size_t>(e % 4)] >> 16;
  const double up = rest * 65536 + bits >= 65536 ? 1 : 0;
  set(p.dst, i, std::copysign((below + up) * unit, x));
}

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

double lamb_update(const LambRule& r, const Scalars& k, double decay, double w, double m, double v) {
  if (r.corrected) m /= k.bias1, v /= k.bias2;
  const double root = r.eps_inside_sqrt ? std::sqrt(v + r.eps) : std::sqrt(v) + r.eps;
  return m / root + (r.l2 ? 0 : decay * w);
}

double trust_ratio(const LambRule& r, double decay, double norm, double update) {
  if (norm == 0 || update == 0 || (decay == 0 && !r.adapt_undecayed)) return 1;
  const double ratio = std::min<double>(std::max<double>(norm, r.min_norm), r.max_norm) / update;
  return std::min<double>(std::max<double>(ratio, r.min_ratio), r.max_ratio);
}

}  // namespace

void adamw(const AdamW& p, Stream) {
  const Scalars k(p.scalars);
  if (k.skip) return;
  for (const Segment& s : p.table.segments()) {
    const Tensors t(p.table, s);
    for (int64_t i = 0; i < s.count; ++i) {
      const double w = get(t.master, i), g = get(t.grad, i) * k.multiplier + (p.adam_l2 ? t.weight_decay * w : 0);
      const double m = k.beta1 * get(t.m, i) + (1 - k.beta1) * g;
      const double v = k.beta2 * get(t.v, i) + (1 - k.beta2) * g * g;
      const double step = m / k.bias1 / (std::sqrt(v / k.bias2) + p.eps);
      set(t.m, i, m);
      set(t.v, i, v);
      t.store(i, w - k.lr * (step + (p.adam_l2 ? 0 : t.weight_decay * w)));
    }
  }
}

void sgd(const Sgd& p, Stream) {
  const Scalars k(p.scalars);
  if (k.skip) return;
  for (const Segment& s : p.table.segments()) {
    const Tensors t(p.table, s);
    for (int64_t i = 0; i < s.count; ++i) {
      const double w = get(t.master, i), g = get(t.grad, i) * k.multiplier + t.weight_decay * w;
      double step = g;
      if (t.m) {
        const double m = k.beta1 * get(t.m, i) + k.share * g;
        step = p.nesterov ? g + k.beta1 * m : m;
        set(t.m, i, m);
      }
      t.store(i, w - k.lr * step);
    }
  }
}

void lion(const Lion& p, Stream) {
  const Scalars k(p.scalars);
  if (k.skip) return;
  for (const Segment& s : p.table.segments()) {
    const Tensors t(p.table, s);
    for (int64_t i = 0; i < s.count; ++i) {
      const double w = get(t.master, i), g = get(t.grad, i) * k.multiplier, m = get(t.m, i);
      const double u = sign(k.beta1 * m + (1 - k.beta1) * g);
      set(t.m, i, k.beta2 * m + (1 - k.beta2) * g);
      t.store(i, w - k.lr * (u + t.weight_decay * w));
    }
  }
}

void adagrad(const Adagrad& p, Stream) {
  const Scalars k(p.scalars);
  if (k.skip) return;
  for (const Segment& s : p.table.segments()) {
    const Tensors t(p.table, s);
    for (int64_t i = 0; i < s.count; ++i) {
      const double w = get(t.master, i), g = get(t.grad, i) * k.multiplier + t.weight_decay * w;
      const double squares = get(t.m, i) + g * g;
      set(t.m, i, squares);
      t.store(i, w - k.lr * g / (std::sqrt(squares) + p.eps));
    }
  }
}

void lamb_moments(const LambMoments& p, Stream) {
  const Scalars k(p.scalars);
  const LambRule& r = p.rule;
  for (const Segment& s : p.table.segments())
    for (int j : {0, 1}) set(p.norms, 2 * s.group + j, 0);
  for (const Segment& s : p.table.segments()) {
    const Tensors t(p.table, s);
    double total[2] = {};
    for (int64_t i = 0; !k.skip && i < s.count; ++i) {
      const double w = get(t.master, i), g = get(t.grad, i) * k.multiplier + (r.l2 ? t.weight_decay * w : 0);
      const double m = k.beta1 * get(t.m, i) + (r.grad_averaging ? 1 - k.beta1 : 1) * g;
      const double v = k.beta2 * get(t.v, i) + (1 - k.beta2) * g * g;
      const double u = lamb_update(r, k, t.weight_decay, w, m, v);
      set(t.m, i, m);
      set(t.v, i, v);
      total[0] += w * w;
      total[1] += u * u;
    }
    for (int j : {0, 1})
      if (s.counted != 0) set(p.norms, 2 * s.group + j, get(p.norms, 2 * s.group + j) + total[j]);
  }
}

void lamb_apply(const LambApply& p, Stream) {
  const Scalars k(p.scalars);
  if (k.skip) return;
  const double late = p.rule.corrected ? 1 : std::sqrt(k.bias2) / k.bias1;
  for (const Segment& s : p.table.segments()) {
    const Tensors t(p.table, s);
    const double norm = std::sqrt(get(p.norms, 2 * s.group)), update = std::sqrt(get(p.norms, 2 * s.group + 1));
    const double ratio = trust_ratio(p.rule, t.weight_decay, norm, update);
    if (p.ratio) set(p.ratio, s.group, ratio);
    for (int64_t i = 0; i < s.count; ++i) {
      const double w = get(t.master, i), u = lamb_update(p.rule, k, t.weight_decay, w, get(t.m, i), get(t.v, i));
      t.store(i, w - k.lr * late * ratio * u);
    }
  }
}

void stochastic_round(const StochasticRound& p, Stream) {
  if (get(p.scalars, kSkip) != 0) return;
  const auto step = static_cast<uint64_t>(get(p.scalars, kStepLow) + 65536 * get(p.scalars, kStepHigh));
  for (int64_t i = 0; i < p.src.numel(); ++i) round_at_random(p, i, step);
}

}  // namespace gt::test::reference
