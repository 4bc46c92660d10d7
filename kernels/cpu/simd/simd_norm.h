// LayerNorm and RMSNorm of one row and their gradients; part of every simd_table.h.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

inline Vec plus(Vec a, Vec b) { return a + b; }

// kRms: no mean and no beta.
template <bool kRms>
void norm_row(const float* x, const float* delta, const float* gamma, const float* beta, float* sum, float* out,
              float* mean, float* rstd, int64_t n, float eps) {
  Vec total{};
  if (delta != nullptr) {
    total = fold(
        n, Vec{},
        [=](Vec acc, int64_t i, auto lanes) {
          prefetch(x + i), prefetch(delta + i), prefetch_result(sum + i), prefetch_result(out + i);
          const Vec v = lanes.load(x + i) + lanes.load(delta + i);
          lanes.store(sum + i, v);
          return acc + v;
        },
        plus);
    x = sum;
  } else if constexpr (!kRms) {
    total = fold(
        n, Vec{}, [=](Vec acc, int64_t i, auto lanes) { return acc + lanes.load(x + i); }, plus);
  }
  const float mu = kRms ? 0.0f : sum_lanes(total) / static_cast<float>(n);
  const Vec center = splat(mu);
  const Vec squares = fold(
      n, Vec{},
      [=](Vec acc, int64_t i, auto lanes) {
        const Vec d = lanes.keep(lanes.load(x + i) - center);
        return fma(d, d, acc);
      },
      plus);
  const float r = 1.0f / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(n) + eps);
  const Vec scale = splat(r);
  sweep(n, [=](int64_t i, auto lanes) {
    const Vec hat = (lanes.load(x + i) - center) * scale, g = lanes.load(gamma + i);
    if constexpr (kRms)
      lanes.store(out + i, hat * g);
    else
      lanes.store(out + i, fma(hat, g, lanes.load(beta + i)));
  });
  if constexpr (!kRms) *mean = mu;
  *rstd = r;
}

// With g = dout * gamma and h = (x - mean) * rstd: dx = rstd * (g - avg(g) - h * avg(g * h)). RMSNorm drops mean and
// avg(g).
template <bool kRms>
void norm_grad_row(const float* x, const float* gamma, float mean, float rstd, const float* dout, const float* dsum,
                   float* dx, float* dgamma, float* dbeta, int64_t n, bool accumulate, bool first) {
  const Vec center = splat(kRms ? 0.0f : mean), scale = splat(rstd);
  Vec sum_g{};
  if constexpr (!kRms)
    sum_g = fold(
        n, Vec{}, [=](Vec acc, int64_t i, auto lanes) { return fma(lanes.load(dout + i), lanes.load(gamma + i), acc); },
        plus);
  const Vec sum_gh = fold(
      n, Vec{},
      [=](Vec acc, int64_t i, auto lanes) {
        prefetch(x + i), prefetch(dout + i), prefetch_result(dx + i);
        const Vec h = (lanes.load(x + i) - center) * scale;  // inactive lanes: gamma is 0 there
        return fma(h, lanes.load(dout + i) * lanes.load(gamma + i), acc);
      },
      plus);
  const Vec avg_g = splat(sum_lanes(sum_g) / static_cast<float>(n));
  const Vec avg_gh = splat(sum_lanes(sum_gh) / static_cast<float>(n));
  sweep(n, [=](int64_t i, auto lanes) {
    const Vec d = lanes.load(dout + i), h = (lanes.load(x + i) - center) * scale;
    Vec g = (fma(d, lanes.load(gamma + i), -avg_g) - h * avg_gh) * scale;
    if (dsum != nullptr) g += lanes.load(dsum + i);
    if (accumulate) g += lanes.load(dx + i);
    lanes.store(dx + i, g);
    if (dgamma != nullptr) lanes.store(dgamma + i, first ? d * h : fma(d, h, lanes.load(dgamma + i)));
    if (dbeta != nullptr) lanes.store(dbeta + i, first ? d : lanes.load(dbeta + i) + d);
  });
}

}  // namespace
}  // namespace gt::cpu
