// Rules of data.curriculum.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Derives unset values and reports errors: lengths illegal for the model or layout, lists of inconsistent lengths.
// Requires: the rules of model, layout and steps have run.
void check_curriculum(Config&, const RuleContext&);

}  // namespace gt
