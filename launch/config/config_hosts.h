// Machines, slots and cores that ranks may use.
#pragma once
#include "launch/config/config_check.h"
#include "launch/config/rule_context.h"

namespace gt {

// Checks hostfile, filters, launcher and cores. Slots that this process may start ranks on; 0: nothing restricts them,
// or a launcher has chosen already. Notes that begin with "launch: " are what only the process knows that starts ranks.
int check_hosts(const Config&, const CheckContext&, const RuleContext&);

}  // namespace gt
