// A linear layer whose products read numbers of 8 bits (Micikevicius et al. 2022): x and w as f8e4m3, the gradient of y
// as f8e5m2, each times one factor that takes its largest element to the largest code. Sums are f32, y and the gradient
// of x have the type of x, the weight's gradient its own; the bias is added, and summed up, outside of the codes.
#pragma once
#include <string>

#include "autograd/ops.h"
#include "parallel/comm/process_group.h"

namespace gt {

// How one tensor that a layer encodes anew at every use is scaled: by the largest |x| of the logical tensor, so that no
// layout changes its codes.
struct Fp8Range {
  std::string name;               // "layers.0.attn.qkv.input", "layers.0.attn.qkv.output_grad"
  ProcessGroup* split = nullptr;  // ranks that hold columns of it each, and agree on the largest; nullptr: all have all
  // Delayed scaling, both f32 [1] on the device, the memory is the engine's: the largest of steps before, which stands
  // still within a step, and of this step on this rank. Empty: what is encoded is measured first.
  Tensor amax, seen;
  bool known = false;  // there have been steps before that saw something: amax is used
};

struct Fp8Linear {
  Fp8Range input, output_grad;
};

namespace ops {

// y [n, out] = x [n, in] w^T + b, with n, in and out multiples of 16. The tape keeps codes of x for the weight's
// gradient, or (Keep::kInputs) makes them again from x, which then has to be rebuilt by then.
Var fp8_linear(Tape&, Var x, Parameter& w, Parameter* b, const Fp8Linear&, Keep, Output = Output::kKept);

}  // namespace ops
}  // namespace gt
