// Rules of the sections optim and schedule: defaults that depend on the type, keys that belong to one type, and
// conversion to OptimizerOptions and LrOptions.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"
#include "optim/optimizer.h"

namespace gt {

OptimizerOptions optimizer_options(const Config&);
LrOptions lr_options(const Config&);

// Fills in the defaults of the chosen types and reports errors. Drops file settings that belong to another type than
// the one a flag selects, with a note.
void check_optimizer(Config&, const RuleContext&);

}  // namespace gt
