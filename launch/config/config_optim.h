// The rules of the sections optim and schedule: defaults that follow from the type, what belongs to which type, and the
// options of optimizer and schedule that the config stands for.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"
#include "optim/optimizer.h"

namespace gt {

OptimizerOptions optimizer_options(const Config&);
LrOptions lr_options(const Config&);

// Fills in what the types set and the user did not give, takes back what a file says for another type than a flag asks
// for (with a note), and reports everything wrong.
void check_optimizer(Config&, const RuleContext&);

}  // namespace gt
