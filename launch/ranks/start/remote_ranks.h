// Ranks of several machines without Open MPI: ssh starts this program on each host as the host's agent, which forks the
// host's ranks (local_ranks.h). They connect by sockets with a secret (socket_rendezvous.h). An agent reads variables,
// the secret among them, and then requests from its standard input; at its end it kills its ranks.
#pragma once
#include <string>
#include <vector>

#include "launch/hosts/env_file.h"
#include "launch/hosts/hostfile.h"

namespace gt {

struct RemoteJob {
  std::vector<HostSlots> hosts;    // in use, in the order of ranks
  int ssh_port = 0;                // 0: ssh's default
  bool resumable = true;           // the ranks of a job that is not end at a stop signal
  std::vector<std::string> words;  // program and its arguments
  Variables variables;             // of every rank
};

// Starts the agents and waits for them. Returns 0, the code of the first host whose ranks failed (local_ranks.h), or
// 255 and reports "lost: HOST: ..." if an ssh connection ended. SIGINT, SIGTERM, SIGHUP and SIGUSR1 become SIGUSR1 of
// all ranks, SIGUSR2 itself; the end of this process, by SIGKILL too, kills all ranks. Requires: a process with one
// thread and no children.
int run_remote_ranks(const RemoteJob&);

// What an agent has on its command line.
struct HostRanks {
  int first = 0, count = 0, world = 0;
  bool resumable = true;
};
constexpr const char* kAgentVariable = "GPTTRAIN_AGENT";
std::string to_text(const HostRanks&);           // "2 4 8 1"
HostRanks parse_host_ranks(const std::string&);  // throws kUsage

// Returns whether this process is an agent, and runs it.
bool is_host_agent();
int run_host_agent(int argc, char** argv);

}  // namespace gt
