// Optimizer steps on the CPU: one memory-bound pass over all segments (AdamW: 28 bytes per parameter in f32). LAMB
// takes two passes, the first with the norms for its trust ratio.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/segments.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kChunk = 4096;         // elements updated, then rounded to the compute dtype while in cache
constexpr int64_t kInCaches = 16 << 20;  // more elements than these are not in cache when they are used next

// Returns whether the step is applied.
bool applied(const char* op, const Tensor& scalars) {
  require_f32(op, {{"scalars", scalars}});
  require_numel(op, kNumScalars, {{"scalars", scalars}});
  return scalars.as<float>()[kSkip] == 0;
}

// Calls update(segment, i, n, master, grad) for chunks of all segments, with masters and gradients as f32; rounds
// masters to `value` afterwards.
template <bool kReadsGrad = true, class F>
void update_segments(Stream stream, const SegmentTable& t, F update) {
  const bool streams = t.value == DType::kBF16 && t.elements > kInCaches;
  parallel_parts(stream, t, 2 * kChunk, [&, &f = simd()](const Segment& s, int64_t begin, int64_t end) {
    float scratch[kChunk], grad_scratch[kChunk];
    const Tensor master{s.master, {s.count}, t.master, {}}, value{s.value, {s.count}, t.value, {}};
    const Tensor grad{const_cast<std::byte*>(s.grad), {s.count}, t.grad, {}};
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      float* from = const_cast<float*>(read(f, master, i, n, scratch));
      update(s, i, n, from, kReadsGrad ? read(f, grad, i, n, grad_scratch) : nullptr);
      write(f, master, i, n, from);
      if (!value) continue;
      if (value.dtype == DType::kF32) std::copy(from, from + n, value.as<float>() + i);
      streams ? f.stream_bf16(from, value.as<uint16_t>() + i, n) : write(f, value, i, n, from);
    }
  });
}

LambArgs lamb_args(const LambRule& r, const float* scalars, float weight_decay, float ratio) {
  const float bias1 = scalars[kBiasCorrection1], bias2 = scalars[kBiasCorrection2];
  return {.beta1 = scalars[kBeta1],
          .share = r.grad_averaging ? 1.0f - scalars[kBeta1] : 1.0f,
          .beta2 = scalars[kBeta2],
          .multiplier = scalars[kGradMultiplier],
          .correction1 = r.corrected ? 1.0f / bias1 : 1.0f,
          .correction2 = r.corrected ? 1.0f / bias2 : 1.0f,
          .eps = r.eps,
          .weight_decay = weight_decay,
          .l2 = r.l2,
          .eps_inside_sqrt = r.eps_inside_sqrt,
          .step = scalars[kLr] * (r.corrected ? 1.0f : std::sqrt(bias2) / bias1) * ratio};
}

float trust_ratio(const LambRule& r, const Segment& s, const double* norms) {
  const double* squares = norms + 2 * int64_t{s.group};
  if ((!r.adapt_undecayed && s.weight_decay == 0) || squares[0] == 0 || squares[1] == 0) return 1;
  const double norm = std::clamp<double>(std::sqrt(squares[0]), r.min_norm, r.max_norm);
  return static_cast<float>(std::clamp<double>(norm / std::sqrt(squares[1]), r.min_ratio, r.max_ratio));
}

}  // namespace

void adamw(const AdamW& p, Stream stream) {
  require_segments("adamw", p.table, true, true);
  if (!applied("adamw", p.scalars)) return;
  const float* k = p.scalars.as<float>();
  const AdamWArgs all{k[kLr], k[kBeta1], k[kBeta2], k[kBiasCorrection1], k[kBiasCorrection2], k[kGradMultiplier],
                      p.eps,  0,         p.adam_l2};
  update_segments(stream, p.table,
                  [&, &f = simd()](const Segment& s, int64_t i, int64_t n, float* master, const float* grad) {
                    AdamWArgs args = all;
                    args.weight_decay = s.weight_decay;
                    f.adamw(master, grad, s.m + i, s.v + i, n, args);
                  });
}

void sgd(const Sgd& p, Stream stream) {
  require_segments("sgd", p.table, false, false);
  if (!applied("sgd", p.scalars)) return;
  const float* k = p.scalars.as<float>();
  const SgdArgs all{k[kLr], k[kBeta1], k[kGradCoefficient], k[kGradMultiplier], 0, p.nesterov};
  update_segments(stream, p.table,
                  [&, &f = simd()](const Segment& s, int64_t i, int64_t n, float* master, const float* grad) {
                    SgdArgs args = all;
                    args.weight_decay = s.weight_decay;
                    f.sgd(master, grad, s.m != nullptr ? s.m + i : nullptr, n, args);
                  });
}

void lion(const Lion& p, Stream stream) {
  require_segments("lion", p.table, true, false);
  if (!applied("lion", p.scalars)) return;
  const float* k = p.scalars.as<float>();
  const LionArgs all{k[kLr], k[kBeta1], k[kBeta2], k[kGradMultiplier], 0};
  update_segments(stream, p.table,
                  [&, &f = simd()](const Segment& s, int64_t i, int64_t n, float* master, const float* grad) {
                    LionArgs args = all;
                    args.weight_decay = s.weight_decay;
                    f.lion(master, grad, s.m + i, n, args);
                  });
}

void adagrad(const Adagrad& p, Stream stream) {
  require_segments("adagrad", p.table, true, false);
  if (!applied("adagrad", p.scalars)) return;
  const float* k = p.scalars.as<float>();
  const AdagradArgs all{k[kLr], p.eps, k[kGradMultiplier], 0};
  update_segments(stream, p.table,
                  [&, &f = simd()](const Segment& s, int64_t i, int64_t n, float* master, const float* grad) {
                    AdagradArgs args = all;
                    args.weight_decay = s.weight_decay;
                    f.adagrad(master, grad, s.m + i, n, args);
                  });
}

void lamb_moments(const LambMoments& p, Stream stream) {
  require_segments("lamb_moments", p.table, true, true);
  require_dtype("lamb_moments", DType::kF64, {{"norms", p.norms}});
  constexpr int64_t kBlocks = kSegmentTile / kLambBlock;  // per tile
  const SegmentTable& t = p.table;
  double* partial = cpu_context(stream).scratch<double>(2 * kBlocks * t.tiles);
  const bool steps = applied("lamb_moments", p.scalars);
  if (steps)
    parallel_parts(stream, t, 2 * kLambBlock, [&, &f = simd()](const Segment& s, int64_t begin, int64_t end) {
      float scratch[kLambBlock], grad_scratch[kLambBlock];
      const Tensor master{s.master, {s.count}, t.master, {}};
      const Tensor grad{const_cast<std::byte*>(s.grad), {s.count}, t.grad, {}};
      const LambArgs args = lamb_args(p.rule, p.scalars.as<float>(), s.weight_decay, 1);
      for (int64_t i = begin; i < end; i += kLambBlock) {
        const int64_t n = std::min(kLambBlock, end - i);
        f.lamb_moments(read(f, master, i, n, scratch), read(f, grad, i, n, grad_scratch), s.m + i, s.v + i, n, args,
                       partial + 2 * (s.first_tile * kBlocks + i / kLambBlock));
      }
    });
  sum_groups<2>(t, kLambBlock, steps ? partial : nullptr, p.norms.as<double>());
}

void lamb_apply(const LambApply& p, Stream stream) {
  require_segments("lamb_apply", p.table, true, true);
  require_dtype("lamb_apply", DType::kF64, {{"norms", p.norms}});
  require_f32("lamb_apply", {{"ratio", p.ratio}});
  if (!applied("lamb_apply", p.scalars)) return;
  const auto* norms = p.norms.as<const double>();
  for (const Segment& s : p.table.segments())
    if (p.ratio) p.ratio.as<float>()[s.group] = trust_ratio(p.rule, s, norms);
  update_segments<false>(
      stream, p.table, [&, &f = simd()](const Segment& s, int64_t i, int64_t n, float* master, const float*) {
        const LambArgs args = lamb_args(p.rule, p.scalars.as<float>(), s.weight_decay, trust_ratio(p.rule, s, norms));
        f.lamb_apply(master, s.m + i, s.v + i, n, args);
      });
}

void stochastic_round(const StochasticRound& p, Stream s) {
  constexpr const char* kOp = "stochastic_round";
  require_f32(kOp, {{"src", p.src}, {"scalars", p.scalars}});
  require_dtype(kOp, DType::kBF16, {{"dst", p.dst}});
  require_numel(kOp, p.src.numel(), {{"dst", p.dst}});
  require_numel(kOp, kNumScalars, {{"scalars", p.scalars}});
  GT_CHECK(p.cols > 0 && p.stride >= p.cols && p.first >= 0 && p.base >= 0, kOp, ": rows of ", p.cols, " every ",
           p.stride);
  const float* scalars = p.scalars.as<float>();
  if (scalars[kSkip] != 0) return;
  const uint64_t step = static_cast<uint64_t>(scalars[kStepLow]) + (static_cast<uint64_t>(scalars[kStepHigh]) << 16);
  parallel_for(s, p.src.numel(), kChunk, [&, &f = simd()](int64_t begin, int64_t end, int) {
    for (int64_t i = begin, n = 0; i < end; i += n) {
      const int64_t row = (p.first + i) / p.cols, col = (p.first + i) % p.cols;
      n = std::min(end - i, p.cols - col);
      f.stochastic_bf16(p.key, step, p.base + row * p.stride + col, p.src.as<float>() + i, p.dst.as<uint16_t>() + i, n);
    }
  });
}

}  // namespace gt::cpu
