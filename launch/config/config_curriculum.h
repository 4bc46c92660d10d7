// data.curriculum: rules between its keys, and what it becomes.
#pragma once
#include "data/curriculum.h"
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Fills in what is derived and reports what is wrong: lengths that the model or the layout cannot have, lists that do
// not fit each other. After the rules of model, layout and steps.
void check_curriculum(Config&, const RuleContext&);

// Of a checked config; off without data.curriculum.
Curriculum curriculum_of(const Config&);

}  // namespace gt
