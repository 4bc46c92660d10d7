// Whether machines answer now, asked as mpirun will ask them: by ssh. A machine that does not is set aside for the next
// start, and taken again once it answers.
#pragma once
#include <string>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

struct UnreachableHost {
  std::string host, why;  // ssh's last line, "no answer within 8 s"
};

// Runs `ssh HOST true` on all machines but this one at the same time; takes at most about 8 s, and some 0.3 s where all
// answer. Empty where another agent than ssh starts remote processes (OMPI_MCA_plm_rsh_agent), or where there is no
// ssh. ssh_port 0: ssh's own.
std::vector<UnreachableHost> unreachable_hosts(const std::vector<HostSlots>&, int ssh_port);

}  // namespace gt
