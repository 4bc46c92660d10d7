// micro_batch, global_batch and grad_accum: what follows from what.
#pragma once
#include "launch/config/config_check.h"
#include "launch/options/rule_context.h"

namespace gt {

// Any two of the three give the third; two from flags overrule a third from the file. A DeepSpeed file's batch follows
// DeepSpeed's rules (batch.h). After the mesh is known.
void check_batch(Config&, const CheckContext&, const RuleContext&);

}  // namespace gt
