// data.curriculum: rules and conversion to a Curriculum.
#pragma once
#include "data/samples/curriculum.h"
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Derives unset values and reports errors: lengths illegal for the model or layout, lists of inconsistent lengths.
// Requires: the rules of model, layout and steps have run.
void check_curriculum(Config&, const RuleContext&);

// Returns the curriculum of a checked config; off if data.curriculum is none.
Curriculum curriculum_of(const Config&);

}  // namespace gt
