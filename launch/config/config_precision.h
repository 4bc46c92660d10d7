// Rules of the section precision: the 16-bit dtype, and which settings belong to which level and loss scaler.
#pragma once
#include <string>

#include "autograd/precision.h"
#include "launch/config/config.h"
#include "launch/options/rule_context.h"
#include "optim/loss_scaler.h"

namespace gt {

// Fills in dtype (bf16 at O1 to O3, fp32 at O0) and reports errors. Drops file settings that belong to another level
// than the one a flag selects, with a note.
void check_precision(Config&, const RuleContext&);

// Notes the precision lost by bf16 gradients. Requires: the batch has been resolved.
void note_gradients(const Config&, const RuleContext&);

// Requires: a checked config. Resolves "none" to the level's default and 0 (delta: -1) to the profile's.
LossScaleOptions loss_scale_options(const Config&);

Precision precision_of(const Config&);

// Start banner text: the contents of the level, and the settings that override it.
std::string precision_text(const Config&);

}  // namespace gt
