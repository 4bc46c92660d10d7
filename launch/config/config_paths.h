// Rules of paths that hold for every option that takes one.
#pragma once
#include "launch/config/config.h"
#include "launch/options/rule_context.h"

namespace gt {

// Refuses URLs, and control characters in folders that a run makes. Returns whether there were no URLs.
bool check_paths(Config&, const RuleContext&);

}  // namespace gt
