// The rules of the section precision: what half is, which settings belong to which level and to which way of loss
// scaling.
#pragma once
#include <string>

#include "autograd/precision.h"
#include "launch/config/config.h"
#include "launch/options/rule_context.h"
#include "optim/loss_scaler.h"

namespace gt {

// Fills in dtype (bf16 at O1 to O3, fp32 at O0), takes back what a file says for another level than a flag asks for
// (with a note), and reports everything wrong.
void check_precision(Config&, const RuleContext&);

// Says what gradients in bf16 cost. The batch has been worked out.
void note_gradients(const Config&, const RuleContext&);

// Of a checked config: none is the level's own, what is 0 (delta: -1) the profile's.
LossScaleOptions loss_scale_options(const Config&);

Precision precision_of(const Config&);

// For the start banner: what the level says and, where settings overrule it, what is done.
std::string precision_text(const Config&);

}  // namespace gt
