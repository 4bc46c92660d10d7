// Commands on other hosts, run as mpirun runs its daemons there: by ssh, without a terminal, without a password.
#pragma once
#include <string>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

struct HostAnswer {
  static constexpr int kSshFailed = 255;  // ssh's own exit code: no connection, no key
  static constexpr int kNone = -1;        // no answer within the limit
  std::string host;
  int code = 0;  // of the command, or one of the two above
  std::string out, err;
  std::string last_line() const;  // of err; "" when there is none
};

// Runs a shell's command line on all hosts at the same time, on this machine without ssh; answers in the order of
// `hosts`, after `limit_s` seconds at most. ssh_port 0: ssh's own. At most 64 KiB of each stream are kept. Where there
// is no ssh all hosts answer with nothing and code 0.
std::vector<HostAnswer> run_on_hosts(const std::vector<std::string>& hosts, const std::string& command, int ssh_port,
                                     double limit_s);

// Whether mpirun starts its daemons by another agent than ssh (OMPI_MCA_plm_rsh_agent): then nothing can be asked.
bool other_agent_than_ssh();

struct UnreachableHost {
  std::string host, why;  // ssh's last line, "no answer to ssh within 8 s"
};

// Runs `true` on all machines but this one; takes at most about 8 s, and some 0.3 s where all answer. Empty where
// another agent than ssh starts remote processes, or where there is no ssh.
std::vector<UnreachableHost> unreachable_hosts(const std::vector<HostSlots>&, int ssh_port);

}  // namespace gt
