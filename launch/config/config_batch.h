// Rules of micro_batch, global_batch and grad_accum.
#pragma once
#include "launch/config/config_check.h"
#include "launch/options/rule_context.h"

namespace gt {

// Derives each of the three from the other two; two given as flags override the third from the file. With a DeepSpeed
// file its rules apply (batch.h). Requires: the mesh has been resolved.
void check_batch(Config&, const CheckContext&, const RuleContext&);

}  // namespace gt
