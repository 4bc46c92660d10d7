// Rules of log.*.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

void check_log(const Config&, const RuleContext&);

}  // namespace gt
