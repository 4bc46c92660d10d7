// precision.fp8: requirements of FP8 GEMMs on the rest of the config.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Reports precision levels, layer widths and sequence lengths unsupported by FP8 GEMMs, and notes models too small to
// gain. Requires: the rules of model, layout, precision, batch and curriculum have run.
void check_fp8(const Config&, const RuleContext&);

}  // namespace gt
