// Rules of the hosts, slots and cores that ranks may use.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config_check.h"
#include "launch/options/rule_context.h"

namespace gt {

// Checks hostfile, filters, launcher and cores. Returns the number of slots that this process may start ranks on; 0 if
// unrestricted or already chosen by a launcher. Notes that begin with "launch: " apply only to the process that starts
// the ranks.
int check_hosts(const Config&, const CheckContext&, const RuleContext&);

// Parses SLURM_STEP_TASKS_PER_NODE: "2(x2),1" is 2, 2, 1.
std::vector<int> tasks_per_node(const std::string&);

}  // namespace gt
