// model.moe_*: requirements of routed experts on the rest of the config.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Reports routers that cannot be trained, and what is not built for experts. Requires: the rules of the model have run.
void check_moe(const Config&, const RuleContext&);

}  // namespace gt
