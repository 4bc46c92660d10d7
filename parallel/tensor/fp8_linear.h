// FP8 linear layer (Micikevicius et al. 2022): x and w in E4M3, dL/dy in E5M2. Each has one scale that maps its amax to
// the largest FP8 value. Accumulation is f32. y and dL/dx have the dtype of x, dL/dw its own; the bias and its gradient
// are not quantized. The op that produces x writes its FP8 data (autograd/fp8_tensor.h), and so does the norm that
// produces dL/dy, so these need no separate quantization pass. Exceptions: the output of attention, which cuDNN writes
// in 16 bits, and other gradients. The latter are read once, for rowwise and columnwise data and the bias gradient.
#pragma once
#include <string>

#include "autograd/ops.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Scaling of one tensor that a layer reads, or of its output gradient: by the amax of the logical tensor. Quantized
// values thus do not depend on the layout.
struct Fp8State {
  std::string name;               // "layers.0.attn.qkv.input", "layers.0.attn.qkv.output_grad"
  ProcessGroup* split = nullptr;  // ranks that each hold columns of it and reduce the amax; nullptr: not split
  Fp8Scaling scale = {};          // delayed scaling; memory owned by the engine
};

struct Fp8Linear {
  Fp8State input, output_grad;
};

namespace ops {

// Quantizes x, or `of` applied to x, for fp8_linear. Columnwise data are kept or, with Keep::kInputs, recomputed in the
// backward from x, which must have been rebuilt by then.
Fp8Tensor quantize(Tape&, Var x, Fp8Source of, const Fp8State&, Keep);

// y [n, out] = x [n, in] w^T + b, with n, in and out multiples of 16. Frees the rowwise data of x.
Var fp8_linear(Tape&, const Fp8Tensor& x, Parameter& w, Parameter* b, const Fp8Linear&, Output = Output::kKept);
// The same for an unquantized x.
inline Var fp8_linear(Tape& t, Var x, Parameter& w, Parameter* b, const Fp8Linear& layer, Keep keep,
                      Output where = Output::kKept) {
  return fp8_linear(t, quantize(t, x, Fp8Source::kPlain, layer.input, keep), w, b, layer, where);
}

// One of the two linear layers of an MLP.
struct Fp8MlpLayer {
  Parameter& w;
  Parameter* b;
  const Fp8Linear& scales;
};
// down(gelu(up(x))). The GELU output and its gradient exist in FP8 only; the 16-bit GELU input is kept. kInputs: the
// FP8 GELU output is recomputed.
Var fp8_mlp(Tape&, const Fp8Tensor& x, Fp8MlpLayer up, Fp8MlpLayer down, Keep, Output = Output::kKept);

}  // namespace ops
}  // namespace gt
