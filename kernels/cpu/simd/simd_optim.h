// Optimizer updates over flat ranges; part of every simd_table.h. Formulas: kernels/ops.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_step.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

void adamw_n(float* master, const float* grad, float* m, float* v, int64_t n, const AdamWArgs& a) {
  const Vec mult = splat(a.multiplier), b1 = splat(a.beta1), c1 = splat(1.0f - a.beta1), b2 = splat(a.beta2);
  const Vec c2 = splat(1.0f - a.beta2), r1 = splat(1.0f / a.bias_correction1), r2 = splat(1.0f / a.bias_correction2);
  const Vec eps = splat(a.eps), lr = splat(a.lr);
  const Vec l2 = splat(a.l2 ? a.weight_decay : 0.0f), decay = splat(a.l2 ? 0.0f : a.weight_decay);
  const bool with_l2 = a.l2;
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(master + i), prefetch(grad + i), prefetch(m + i), prefetch(v + i);
    const Vec w = lanes.load(master + i);
    Vec g = lanes.load(grad + i) * mult;
    if (with_l2) g = fma(l2, w, g);
    const Vec first = fma(b1, lanes.load(m + i), c1 * g), second = fma(b2, lanes.load(v + i), c2 * (g * g));
    lanes.store(m + i, first);
    lanes.store(v + i, second);
    const Vec update = first * r1 / (sqrt(second * r2) + eps);
    lanes.store(master + i, w - lr * fma(decay, w, update));
  });
}

void sgd_n(float* master, const float* grad, float* m, int64_t n, const SgdArgs& a) {
  const Vec mult = splat(a.multiplier), mu = splat(a.momentum), share = splat(a.share), lr = splat(a.lr),
            decay = splat(a.weight_decay);
  const bool nesterov = a.nesterov;
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(master + i), prefetch(grad + i);
    if (m != nullptr) prefetch(m + i);
    const Vec w = lanes.load(master + i), g = fma(decay, w, lanes.load(grad + i) * mult);
    Vec update = g;
    if (m != nullptr) {
      const Vec first = fma(mu, lanes.load(m + i), share * g);
      lanes.store(m + i, first);
      update = nesterov ? fma(mu, first, g) : first;
    }
    lanes.store(master + i, w - lr * update);
  });
}

inline Vec sign(Vec x) {
  const Vec one = splat(1.0f), minus = splat(-1.0f);
  return x > Vec{} ? one : (x < Vec{} ? minus : Vec{});
}

void lion_n(float* master, const float* grad, float* m, int64_t n, const LionArgs& a) {
  const Vec mult = splat(a.multiplier), b1 = splat(a.beta1), c1 = splat(1.0f - a.beta1), b2 = splat(a.beta2);
  const Vec c2 = splat(1.0f - a.beta2), lr = splat(a.lr), decay = splat(a.weight_decay);
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(master + i), prefetch(grad + i), prefetch(m + i);
    const Vec w = lanes.load(master + i), g = lanes.load(grad + i) * mult, first = lanes.load(m + i);
    lanes.store(master + i, w - lr * fma(decay, w, sign(fma(b1, first, c1 * g))));
    lanes.store(m + i, fma(b2, first, c2 * g));
  });
}

void adagrad_n(float* master, const float* grad, float* squares, int64_t n, const AdagradArgs& a) {
  const Vec mult = splat(a.multiplier), eps = splat(a.eps), lr = splat(a.lr), decay = splat(a.weight_decay);
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(master + i), prefetch(grad + i), prefetch(squares + i);
    const Vec w = lanes.load(master + i), g = fma(decay, w, lanes.load(grad + i) * mult);
    const Vec sum = fma(g, g, lanes.load(squares + i));
    lanes.store(squares + i, sum);
    lanes.store(master + i, w - lr * (g / (sqrt(sum) + eps)));
  });
}

// LAMB update before its trust ratio. Both passes compute it from the same inputs, hence bitwise identically.
struct LambUpdate {
  Vec c1, c2, eps, decay;
  bool inside;
  explicit LambUpdate(const LambArgs& a)
      : c1(splat(a.correction1)),
        c2(splat(a.correction2)),
        eps(splat(a.eps)),
        decay(splat(a.l2 ? 0.0f : a.weight_decay)),
        inside(a.eps_inside_sqrt) {}
  Vec operator()(Vec w, Vec m, Vec v) const {
    const Vec second = v * c2, root = inside ? sqrt(second + eps) : sqrt(second) + eps;
    return fma(decay, w, m * c1 / root);
  }
};

// Processes runs short enough that their updates are still in L1 when summed.
void lamb_moments_n(const float* master, const float* grad, float* m, float* v, int64_t n, const LambArgs& a,
                    double* sums) {
  constexpr int64_t kRun = 512;
  const Vec mult = splat(a.multiplier), b1 = splat(a.beta1), share = splat(a.share), b2 = splat(a.beta2);
  const Vec c2 = splat(1.0f - a.beta2), l2 = splat(a.l2 ? a.weight_decay : 0.0f);
  const LambUpdate update(a);
  const bool with_l2 = a.l2;
  float run[kRun];
  sums[0] = sums[1] = 0;
  for (int64_t begin = 0; begin < n; begin += kRun) {
    const int64_t count = n - begin < kRun ? n - begin : kRun;
    sweep(count, [=, u = run](int64_t k, auto lanes) {
      const int64_t i = begin + k;
      prefetch(master + i), prefetch(grad + i), prefetch(m + i), prefetch(v + i);
      const Vec w = lanes.load(master + i);
      Vec g = lanes.load(grad + i) * mult;
      if (with_l2) g = fma(l2, w, g);
      const Vec first = fma(b1, lanes.load(m + i), share * g), second = fma(b2, lanes.load(v + i), c2 * (g * g));
      lanes.store(m + i, first);
      lanes.store(v + i, second);
      lanes.store(u + k, update(w, first, second));
    });
    sums[0] += sum_squares_n(master + begin, count);
    sums[1] += sum_squares_n(run, count);
  }
}

void lamb_apply_n(float* master, const float* m, const float* v, int64_t n, const LambArgs& a) {
  const LambUpdate update(a);
  const Vec step = splat(a.step);
  sweep(n, [=](int64_t i, auto lanes) {
    prefetch(master + i), prefetch(m + i), prefetch(v + i);
    const Vec w = lanes.load(master + i);
    lanes.store(master + i, w - step * update(w, lanes.load(m + i), lanes.load(v + i)));
  });
}

}  // namespace
}  // namespace gt::cpu
