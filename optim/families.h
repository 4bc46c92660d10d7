// Factories of the optimizer families, one file each, and the step scalars they share.
#pragma once
#include <cmath>

#include "kernels/ops.h"
#include "optim/optimizer.h"

namespace gt {

// One op over all segments, which the row of the table names (optimizer_rules.h).
std::unique_ptr<Optimizer> make_flat(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&, Stream);
std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&, Stream);
std::unique_ptr<Optimizer> make_muon(const OptimizerOptions&, const ParamStore&, const Mesh&, const Backend&, Stream);

// Copies the clipping factor and the skip flag of the first row of scalars to the first row of `own`.
inline void share_verdict(Tensor scalars, Tensor own, const OpTable& ops, Stream stream) {
  static_assert(kSkip == kGradMultiplier + 1);
  ops.copy({.src = scalars.slice(kGradMultiplier, 2), .dst = own.slice(kGradMultiplier, 2)}, stream);
}

inline void fill_step_number(int64_t t, float* s) {
  s[kStepLow] = static_cast<float>(t & 0xffff);
  s[kStepHigh] = static_cast<float>(t >> 16);
}

// Calls fill(group, row of scalars) for the parameters in no group, then for each group.
template <class Fill>
void fill_rows(const OptimizerOptions& o, float* scalars, Fill fill) {
  static const ParamGroup kNone;
  fill(kNone, scalars);
  for (const ParamGroup& g : o.groups) fill(g, scalars += kNumScalars);
}

// Fills lr, both betas and the bias corrections 1 - beta^t. With a schedule that varies beta, the current one enters,
// as in PyTorch.
inline void fill_adam_scalars(const OptimizerOptions& o, int64_t t, const LrPoint& p, float* scalars) {
  const auto correction = [&](float beta) {
    return o.bias_correction ? static_cast<float>(1 - std::pow(static_cast<double>(beta), static_cast<double>(t))) : 1;
  };
  fill_rows(o, scalars, [&](const ParamGroup& g, float* s) {
    s[kLr] = static_cast<float>(p.lr * g.lr_scale);
    s[kBeta1] = p.beta1 != kKeepBeta ? static_cast<float>(p.beta1) : g.betas ? (*g.betas)[0] : o.beta1;
    s[kBeta2] = p.beta2 != kKeepBeta ? static_cast<float>(p.beta2) : g.betas ? (*g.betas)[1] : o.beta2;
    fill_step_number(t, s);
    s[kBiasCorrection1] = correction(s[kBeta1]);
    s[kBiasCorrection2] = correction(s[kBeta2]);
  });
}

}  // namespace gt
