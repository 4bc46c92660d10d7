// Machines, slots and cores that ranks may use.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config_check.h"
#include "launch/options/rule_context.h"

namespace gt {

// Checks hostfile, filters, launcher and cores. Slots that this process may start ranks on; 0: nothing restricts them,
// or a launcher has chosen already. Notes that begin with "launch: " are what only the process knows that starts ranks.
int check_hosts(const Config&, const CheckContext&, const RuleContext&);

// Of SLURM_STEP_TASKS_PER_NODE: "2(x2),1" is 2, 2, 1.
std::vector<int> tasks_per_node(const std::string&);

}  // namespace gt
