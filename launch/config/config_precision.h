// The rules of the section precision: what half is, which settings belong to which level and to which way of loss
// scaling.
#pragma once
#include "launch/config/config.h"
#include "launch/config/rule_context.h"

namespace gt {

// Fills in dtype (bf16 at O1 to O3, fp32 at O0), takes back what a file says for another level than a flag asks for
// (with a note), and reports everything wrong.
void check_precision(Config&, const RuleContext&);

}  // namespace gt
