// Ops on FP8 tensors and the FP8 outputs of other ops. Part of the op list (kernels/ops.h), whose conventions hold; F8
// is f8e4m3 or f8e5m2.
#pragma once
#include <cstdint>

#include "kernels/core/tensor.h"
#include "kernels/operands.h"

namespace gt {

// FP8 outputs of an op for a tensor h that it computes or reads. With scale = fp8_scale(amax[0]) (kernels/core/fp8.h):
// rowwise [r, c] = quantized h * scale; columnwise [c, r] = the transpose; same F8 dtype, either may be empty.
// scale_inv f32 [1] = 1 / scale. step_amax f32 [1] = max(step_amax, max |h|), or max |h| with overwrite_amax; may be
// empty. Without rowwise and columnwise data, amax and scale_inv are empty too. h is rounded to its storage dtype
// before quantization, whether or not it is stored.
struct Fp8Out {
  Tensor amax, rowwise, columnwise, scale_inv, step_amax;
  bool overwrite_amax = false;
  bool quantizes() const { return rowwise || columnwise; }
  explicit operator bool() const { return quantizes() || step_amax; }
  GT_OPERANDS(.control("amax", o.amax)
                  .out("rowwise", o.rowwise)
                  .out("columnwise", o.columnwise)
                  .control("scale_inv", o.scale_inv)
                  .control("step_amax", o.step_amax))
};

// Source of quantized data: x, gelu(x), or x * gelu'(pre) (the gradient through a GELU). Rounded to T first, so the
// result is bitwise that of quantizing the stored tensor.
enum class Fp8Source : uint8_t { kPlain, kGelu, kGeluGrad };
// Quantizes h = x, or what `of` derives from x, to FP8 (Fp8Out), f8e4m3 or f8e5m2. x, pre [r, c] T. sums [c] G, may be
// empty: (+)= column sums of h (bias gradient). Requires: fp8 or sums is given.
struct QuantizeFp8 {
  Tensor x;
  Fp8Out fp8;
  Fp8Source of = Fp8Source::kPlain;
  Tensor pre, sums;
  bool accumulate = false;
  GT_OPERANDS(.in("x", o.x).in("pre", o.pre).out("sums", o.sums, o.accumulate).all(o.fp8))
};
// FP8 GEMM: out (+)= (a b^T) a_scale[0] b_scale[0] + bias, accumulated in f32, rounded once. a [m, k], b [n, k] F8, at
// most one of them f8e5m2. Tensor cores require m, n, k to be multiples of 16; scales f32 [1], 16-byte aligned. out
// [m, n]: f32 or 16-bit; bias [n] of out's dtype, excludes accumulate. Accumulators may keep fewer bits:
// GemmTuning::fp8_fast_accum.
struct GemmFp8 {
  Tensor a, b, a_scale, b_scale, bias, out;
  bool accumulate = false;
  // Gradients are f8e5m2.
  Direction direction() const { return a.dtype == DType::kF8E4M3 ? Direction::kForward : Direction::kBackward; }
  GT_OPERANDS(.in("a", o.a)
                  .in("b", o.b)
                  .in("bias", o.bias)
                  .out("out", o.out, o.accumulate)
                  .control("a_scale", o.a_scale)
                  .control("b_scale", o.b_scale))
};
// Amax history of delayed scaling: history[:, at] = step_amax, or 0 where not finite; amax = row maxima of history.
// history [n, steps], step_amax, amax [n], all f32.
struct AmaxHistory {
  Tensor step_amax, history, amax;
  int64_t at = 0;
  GT_OPERANDS(.control("step_amax", o.step_amax).control("history", o.history).control("amax", o.amax))
};

// Lines of GT_OPS (kernels/ops.h).
#define GT_FP8_OPS(X)                                                             \
  X(quantize_fp8, QuantizeFp8, kKeep, kNeither, kElementwise, kOfParameter, kOwn) \
  X(gemm_fp8, GemmFp8, kLow, kByArguments, kGemm, kOfParameter, kOwn)             \
  X(amax_history, AmaxHistory, kKeep, kNeither, kElementwise, kOfParameter, kOwn)

}  // namespace gt
