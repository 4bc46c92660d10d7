// Ops at the end of a step: sums and norms of accumulated gradients, the anomaly check, optimizers. Dtypes (including
// G) and kernel invariants: ops.h, which includes this file and lists the ops.
#pragma once
#include "kernels/core/segments.h"
#include "kernels/core/step_limits.h"
#include "kernels/operands.h"

namespace gt {

// out[0] f64 (+)= sum of x, each element widened to f64, fixed blocks in order. inf and NaN propagate.
struct Sum {
  Tensor x, out;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).control("out", o.out))
};
// out[group] f64 = sum of squares of the gradients of a group's counted segments, in segment order, by fixed blocks.
// Entries of groups absent from the table are left unchanged. Gradients: G. known, on a CPU, f64 [segments], may be
// empty: sums of whole segments that were computed with them, which are then not read; -1: none.
struct SumSquares {
  SegmentTable table;
  Tensor out, known;
  GT_OPERANDS(.control("out", o.out).control("known", o.known))
};

// out = x / (sqrt(squares[0]) + eps). x f32, squares f64 [1] (SumSquares), out T; out may alias an x of its dtype.
struct Normalize {
  Tensor x, squares, out;
  float eps = 0;
  GT_OPERANDS(.in("x", o.x).control("squares", o.squares).out("out", o.out))
};

// Device-resident scalars of one optimizer step, f32 [kNumScalars], so a captured step replays with new values.
enum StepScalar : int {
  kLr,
  kBeta1,
  kBiasCorrection1,
  kBiasCorrection2,
  kGradMultiplier,
  kSkip,
  kBeta2,
  kGradCoefficient,  // gradient coefficient of a non-averaging first moment: SGD's 1 - dampening
  kStepLow,          // index of the applied step, from 1, modulo 2^16
  kStepHigh,         // its high part; both are integers exact in f32
  kAnomalous,        // nonzero: gradients are finite, but the anomaly check rejected the step
  kNumScalars = 16
};
// Global-norm clipping and overflow check. From norm_squares f64 [units] (reduced over all ranks):
// total = sqrt(sum in order) / denominator;
// scalars[kGradMultiplier] = min(1, clip / (total + slack)) / denominator (clip 0: no clipping);
// scalars[kSkip] = 1 if the total or an entry of `guard` is not finite, else 0; norm f32 [1] = total. guard f64, may be
// empty: sums that are excluded from the norm but must be finite.
struct ClipFactor {
  Tensor norm_squares, scalars, norm;
  float clip = 1, denominator = 1;
  double slack = 1e-6;
  Tensor guard;
  GT_OPERANDS(.control("norm_squares", o.norm_squares)
                  .control("scalars", o.scalars)
                  .control("norm", o.norm)
                  .control("guard", o.guard))
};
// Anomaly check before the update (step_limits.h; limits f64 [kNumLimits]) on losses f64 [sums * n], sums per
// microbatch, whose objective is mean_loss() with shares f64 [sums, 2], and on norm f32 [1]. An anomalous step sets
// scalars[kSkip] and scalars[kAnomalous] to 1; both stay unchanged if the step is already skipped. counts f64 [n],
// targets per microbatch, are read for shares with divisor 0; else empty.
struct CheckStep {
  Tensor losses, shares, counts, norm, limits, scalars;
  GT_OPERANDS(.control("losses", o.losses)
                  .control("shares", o.shares)
                  .control("counts", o.counts)
                  .control("norm", o.norm)
                  .control("limits", o.limits)
                  .control("scalars", o.scalars))
};

// Optimizer steps over the segments of a table (kernels/core/segments.h): one call updates everything a rank trains.
// Master weights f32, moments f32, grad G. value: compute dtype, = round(master), or nullptr when the master is the
// value. A 16-bit master (AMP O3, no master weights) is the value: widened, stepped in f32 and rounded back. All read g
// = grad * scalars[kGradMultiplier], lr, beta1 (b1), beta2 (b2) from scalars and weight_decay from the segment. Nothing
// is written when scalars[kSkip] != 0.

// AdamW (Loshchilov & Hutter 2019), decoupled decay:
//   m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
//   master -= lr * ((m / bc1) / (sqrt(v / bc2) + eps) + weight_decay * master)
// adam_l2: g += weight_decay * master before the moments, no decoupled decay (Adam, Kingma & Ba 2015).
struct AdamW {
  SegmentTable table;
  Tensor scalars;
  float eps = 1e-8f;
  bool adam_l2 = false;
  GT_OPERANDS(.control("scalars", o.scalars))
};

// SGD with momentum as in PyTorch: g += weight_decay * master; m = b1 m + scalars[kGradCoefficient] g;
// master -= lr * (nesterov ? g + b1 m : m). Segments without m: master -= lr * g.
struct Sgd {
  SegmentTable table;
  Tensor scalars;
  bool nesterov = false;
  GT_OPERANDS(.control("scalars", o.scalars))
};

// Lion (Chen et al. 2023): u = sign(b1 m + (1-b1) g), sign(0) = 0; master -= lr * (u + weight_decay * master);
// m = b2 m + (1-b2) g.
struct Lion {
  SegmentTable table;
  Tensor scalars;
  GT_OPERANDS(.control("scalars", o.scalars))
};

// Adagrad (Duchi et al. 2011) as in PyTorch: g += weight_decay * master; s += g^2;
// master -= lr * g / (sqrt(s) + eps), with s in the segment's m.
struct Adagrad {
  SegmentTable table;
  Tensor scalars;
  float eps = 1e-10f;
  GT_OPERANDS(.control("scalars", o.scalars))
};

// LAMB (You et al. 2020) with the variants of apex and DeepSpeed. Two passes, since the update of a tensor needs norms
// over all of it. With corrections c = 1 / bc, or 1 when not `corrected`:
//   u = m c1 / (sqrt(v c2) + eps) + weight_decay * master    (eps_inside_sqrt: sqrt(v c2 + eps))
//   ratio = both norms nonzero ? clamp(clamp(|master|, min_norm, max_norm) / |u|, min_ratio, max_ratio) : 1
struct LambRule {
  float eps = 1e-6f;
  bool l2 = false;             // g += weight_decay * master before the moments, u without decay (apex's L2 mode)
  bool grad_averaging = true;  // m = b1 m + (1-b1) g; else m = b1 m + g (apex)
  bool corrected = true;       // bias corrections inside u; else the step is scaled by sqrt(bc2) / bc1 (DeepSpeed)
  bool eps_inside_sqrt = false;
  bool adapt_undecayed = true;  // false: the ratio is 1 where weight_decay is 0 (apex)
  float min_norm = 0, max_norm = __builtin_inff(), min_ratio = 0, max_ratio = __builtin_inff();
};
// LAMB pass 1: m, v as in AdamW. norms f64 [groups, 2] = sums of squares of master (before the step) and of u over a
// group's counted segments, by fixed blocks in order; 0 in a skipped step. Groups absent from the table are left
// unchanged.
struct LambMoments {
  SegmentTable table;
  Tensor scalars, norms;
  LambRule rule;
  GT_OPERANDS(.control("scalars", o.scalars).control("norms", o.norms))
};
// LAMB pass 2: master -= lr * ratio * u, with the ratio from norms [groups, 2] of whole tensors (group = tensor), even
// if the table holds only a part. ratio f32 [groups], may be empty: output for the groups of the table.
struct LambApply {
  SegmentTable table;
  Tensor scalars, norms, ratio;
  LambRule rule;
  GT_OPERANDS(.control("scalars", o.scalars).control("norms", o.norms).control("ratio", o.ratio))
};

// Stochastic rounding: dst bf16 = src f32 rounded to a neighbour, upwards with a probability equal to the truncated
// fraction. Adds 16 random bits to the bits of src and drops the lower half. bf16 values, infinities and NaN are
// unchanged. Element i of src is element e = base + (first + i) / cols * stride + (first + i) % cols of a stream; its
// random bits are the upper half of word e mod 4 of philox(key, e / 4, n) (kernels/core/rng.h), n = the step index in
// `scalars`. Writes nothing when scalars[kSkip] != 0.
struct StochasticRound {
  Tensor src, dst, scalars;
  uint64_t key = 0;
  int64_t base = 0, first = 0, cols = 1, stride = 1;
  GT_OPERANDS(.in("src", o.src).out("dst", o.dst).control("scalars", o.scalars))
};

}  // namespace gt
