// Optimizer steps on the CPU: one pass over the flat range, bound by memory (AdamW: 28 bytes a parameter in f32); LAMB
// two passes, the first with the norms that its trust ratio needs.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kChunk = 4096;  // elements updated, then rounded to the compute type while in cache

// What all steps ask of their arguments. False: the step is skipped.
bool ready(const char* op, const Tensor& master, const Tensor& value, const Tensor& scalars,
           const Tensor& grad, std::initializer_list<Named> state) {
  require_float(op, {"master", master});
  require_f32(op, {{"scalars", scalars}});
  require_gradient(op, {{"grad", grad}});
  if (grad) require_numel(op, master.numel(), {{"grad", grad}});
  require_f32(op, state);
  for (const Named& n : state)
    if (n.tensor) require_numel(op, master.numel(), {n});
  require_numel(op, kNumScalars, {{"scalars", scalars}});
  if (value) require_numel(op, master.numel(), {{"value", value}});
  require_float(op, {"value", value});
  GT_REQUIRE(!value || !is_half(master.dtype), Exit::kUsage, op, " on the CPU: master is ", name_of(master.dtype),
             " and there is a value beside it; a master of a half type is the value itself");
  return scalars.as<float>()[kSkip] == 0;
}

// update(master, grad, i, n) for chunks of the range, whose masters and gradients (null without `grad`) it is given as
// floats, masters rounded to `value` behind it.
template <class F>
void update_chunks(Stream s, const Tensor& master, const Tensor& grad, const Tensor& value, F update) {
  parallel_for(s, master.numel(), kChunk, [&, &f = simd()](int64_t begin, int64_t end, int) {
    float room[kChunk], grad_room[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      float* from = const_cast<float*>(read(f, master, i, n, room));
      update(from, grad ? read(f, grad, i, n, grad_room) : nullptr, i, n);
      write(f, master, i, n, from);
      if (!value) continue;
      if (value.dtype == DType::kF32) std::copy(from, from + n, value.as<float>() + i);
      write(f, value, i, n, from);
    }
  });
}

float* at(const Tensor& t, int64_t i) { return t ? t.as<float>() + i : nullptr; }

LambArgs lamb_args(const LambRule& r, const float* scalars, float ratio) {
  const float bias1 = scalars[kBiasCorrection1], bias2 = scalars[kBiasCorrection2];
  return {.beta1 = scalars[kBeta1],
          .share = r.grad_averaging ? 1.0f - scalars[kBeta1] : 1.0f,
          .beta2 = scalars[kBeta2],
          .multiplier = scalars[kGradMultiplier],
          .correction1 = r.corrected ? 1.0f / bias1 : 1.0f,
          .correction2 = r.corrected ? 1.0f / bias2 : 1.0f,
          .eps = r.eps,
          .weight_decay = r.weight_decay,
          .l2 = r.l2,
          .eps_inside_sqrt = r.eps_inside_sqrt,
          .step = scalars[kLr] * (r.corrected ? 1.0f : std::sqrt(bias2) / bias1) * ratio};
}

double trust_ratio(const LambRule& r, const double* squares) {
  if (!r.adapt || squares[0] == 0 || squares[1] == 0) return 1;
  const double norm = std::clamp<double>(std::sqrt(squares[0]), r.min_norm, r.max_norm);
  return std::clamp<double>(norm / std::sqrt(squares[1]), r.min_ratio, r.max_ratio);
}

}  // namespace

void adamw(const AdamW& p, Stream s) {
  if (!ready("adamw", p.master, p.value, p.scalars, p.grad, {{"m", p.m}, {"v", p.v}})) return;
  const float* scalars = p.scalars.as<float>();
  const AdamWArgs args{scalars[kLr],
                       scalars[kBeta1],
                       scalars[kBeta2],
                       scalars[kBiasCorrection1],
                       scalars[kBiasCorrection2],
                       scalars[kGradMultiplier],
                       p.eps,
                       p.weight_decay,
                       p.adam_l2};
  update_chunks(s, p.master, p.grad, p.value, [&, &f = simd()](float* master, const float* grad, int64_t i, int64_t n) {
    f.adamw(master, grad, at(p.m, i), at(p.v, i), n, args);
  });
}

void sgd(const Sgd& p, Stream s) {
  if (!ready("sgd", p.master, p.value, p.scalars, p.grad, {{"m", p.m}})) return;
  const float* scalars = p.scalars.as<float>();
  const SgdArgs args{scalars[kLr],   scalars[kBeta1], scalars[kGradShare], scalars[kGradMultiplier],
                     p.weight_decay, p.nesterov};
  update_chunks(s, p.master, p.grad, p.value, [&, &f = simd()](float* master, const float* grad, int64_t i, int64_t n) {
    f.sgd(master, grad, at(p.m, i), n, args);
  });
}

void lion(const Lion& p, Stream s) {
  if (!ready("lion", p.master, p.value, p.scalars, p.grad, {{"m", p.m}})) return;
  const float* scalars = p.scalars.as<float>();
  const LionArgs args{scalars[kLr], scalars[kBeta1], scalars[kBeta2], scalars[kGradMultiplier], p.weight_decay};
  update_chunks(s, p.master, p.grad, p.value, [&, &f = simd()](float* master, const float* grad, int64_t i, int64_t n) {
    f.lion(master, grad, at(p.m, i), n, args);
  });
}

void lamb_moments(const LambMoments& p, Stream s) {
  require_dtype("lamb_moments", DType::kF64, {{"norms", p.norms}});
  if (p.norms) require_numel("lamb_moments", 2, {{"norms", p.norms}});
  double total[2] = {};
  if (ready("lamb_moments", p.master, {}, p.scalars, p.grad, {{"m", p.m}, {"v", p.v}})) {
    const int64_t count = p.master.numel(), blocks = (count + kLambBlock - 1) / kLambBlock;
    const LambArgs args = lamb_args(p.rule, p.scalars.as<float>(), 1);
    double* partial = cpu_context(s).scratch<double>(2 * blocks);
    parallel_for(s, blocks, 4, [&, &f = simd()](int64_t begin, int64_t end, int) {
      float room[kLambBlock], grad_room[kLambBlock];
      for (int64_t b = begin; b < end; ++b) {
        const int64_t i = b * kLambBlock, n = std::min(kLambBlock, count - i);
        f.lamb_moments(read(f, p.master, i, n, room), read(f, p.grad, i, n, grad_room), at(p.m, i), at(p.v, i), n, args,
                       partial + 2 * b);
      }
    });
    for (int64_t b = 0; b < blocks; ++b)
      for (int k : {0, 1}) total[k] += partial[2 * b + k];
  }
  if (!p.norms) return;
  double* out = p.norms.as<double>();
  for (int k : {0, 1}) out[k] = p.accumulate ? out[k] + total[k] : total[k];
}

void lamb_apply(const LambApply& p, Stream s) {
  require_dtype("lamb_apply", DType::kF64, {{"norms", p.norms}});
  require_numel("lamb_apply", 2, {{"norms", p.norms}});
  if (p.ratio) require_numel("lamb_apply", 1, {{"ratio", p.ratio}});
  if (!ready("lamb_apply", p.master, p.value, p.scalars, {}, {{"m", p.m}, {"v", p.v}})) return;
  const auto ratio = static_cast<float>(trust_ratio(p.rule, p.norms.as<double>()));
  if (p.ratio) *p.ratio.as<float>() = ratio;
  const LambArgs args = lamb_args(p.rule, p.scalars.as<float>(), ratio);
  update_chunks(s, p.master, {}, p.value, [&, &f = simd()](float* master, const float*, int64_t i, int64_t n) {
    f.lamb_apply(master, at(p.m, i), at(p.v, i), n, args);
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
      f.stochastic_bf16(p.key, step, p.base + row * p.stride + col, p.src.as<float>() + i,
                        p.dst.as<uint16_t>() + i, n);
    }
  });
}

}  // namespace gt::cpu
