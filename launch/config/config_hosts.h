// Rules of the hosts, slots and cores that ranks may use.
#pragma once
#include <string>
#include <vector>

#include "launch/config/config_check.h"
#include "launch/options/rule_context.h"

namespace gt {

struct HostCheck {
  int slots = 0;         // that this process may start ranks on; 0: unrestricted, or already chosen by a launcher
  bool several = false;  // hosts other than this one are among them
};
// Checks hostfile, filters, launcher and cores. Notes that begin with "launch: " apply only to the process that starts
// the ranks.
HostCheck check_hosts(const Config&, const CheckContext&, const RuleContext&);
// Checks fault.peer_copies. `several`: hosts of several machines are named.
void check_peer_copies(const Config&, const CheckContext&, bool several, const RuleContext&);

// Checks launch.min_dp. Requires: the mesh has been resolved.
void check_min_dp(const Config&, const CheckContext&, bool several, const RuleContext&);

// Parses SLURM_STEP_TASKS_PER_NODE: "2(x2),1" is 2, 2, 1.
std::vector<int> tasks_per_node(const std::string&);

}  // namespace gt
