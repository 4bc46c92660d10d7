// A linear layer whose products read numbers of 8 bits (Micikevicius et al. 2022): x and w as f8e4m3, the gradient of y
// as f8e5m2, each times one factor that takes its largest element to the largest code. Sums are f32, y and the gradient
// of x have the type of x, the weight's gradient its own; the bias is added, and its gradient summed, outside of the
// codes. Who makes x writes its codes (autograd/coded.h), and so does the norm that makes the gradient of y: no product
// is preceded by a pass that only encodes, but for attention's result, which cuDNN gives as halves, and for other
// gradients, which are read once, for codes both ways round and for the bias.
#pragma once
#include <string>

#include "autograd/ops.h"
#include "parallel/comm/process_group.h"

namespace gt {

// How one tensor that a layer reads, or gets back, is scaled: by the largest element of the logical tensor, so that no
// layout changes its codes.
struct Fp8Range {
  std::string name;               // "layers.0.attn.qkv.input", "layers.0.attn.qkv.output_grad"
  ProcessGroup* split = nullptr;  // ranks that hold columns of it each, and agree on the largest; nullptr: all have all
  CodeScale scale = {};           // delayed scaling: the memory is the engine's
};

struct Fp8Linear {
  Fp8Range input, output_grad;
};

namespace ops {

// Codes of x, or of what `of` makes of it, for fp8_linear. The columns are kept, or (Keep::kInputs) made again from x,
// which then has to be rebuilt by then.
Coded encode(Tape&, Var x, CodesOf of, const Fp8Range&, Keep);

// y [n, out] = x [n, in] w^T + b, with n, in and out multiples of 16. Gives the rows of x back.
Var fp8_linear(Tape&, const Coded& x, Parameter& w, Parameter* b, const Fp8Linear&, Output = Output::kKept);
// The same of values.
inline Var fp8_linear(Tape& t, Var x, Parameter& w, Parameter* b, const Fp8Linear& layer, Keep keep,
                      Output where = Output::kKept) {
  return fp8_linear(t, encode(t, x, CodesOf::kPlain, layer.input, keep), w, b, layer, where);
}

// One of the two layers of a perceptron.
struct Fp8Half {
  Parameter& w;
  Parameter* b;
  const Fp8Linear& scales;
};
// down(gelu(up(x))). The GELU's result and its gradient are codes alone: what is kept in half is what enters it.
// kInputs: codes of the GELU's result are made again.
Var fp8_mlp(Tape&, const Coded& x, Fp8Half up, Fp8Half down, Keep, Output = Output::kKept);

}  // namespace ops
}  // namespace gt
