// precision.fp8: what products of 8 bits need of the rest of a config.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Reports levels, sizes and lengths that such products cannot have, and notes a model too small to gain. After the
// rules of model, layout, precision, batch and curriculum.
void check_fp8(const Config&, const RuleContext&);

}  // namespace gt
