// Network interface for communication between ranks: none if all ranks share a machine, else comm.interface.
#pragma once
#include <string>
#include <vector>

#include "launch/hosts/env_file.h"
#include "launch/hosts/rank_env.h"

namespace gt {

// Returns the error in the value of comm.interface; "" for an interface name ("eth0") or an IPv4 subnet
// ("10.0.0.0/16").
std::string bad_interface(const std::string& text);

// Returns the interface of this machine that `text` names, or whose address is in that subnet. Throws kUsage, listing
// the available interfaces, if there is none.
std::string interface_here(const std::string& text);

// Returns "eth0 10.77.0.1" for each IPv4 address of an interface that is up, except loopback.
std::vector<std::string> interfaces_up();

// Open MPI variables for mpirun. On one machine no traffic leaves it, so mpirun and its ranks use loopback only.
Variables local_network();
Variables remote_network(const std::string& interface);  // empty for ""

// Sets the same variables for MPI and NCCL in a rank, whatever launched it. Variables set by the user win. Requires:
// called before MPI_Init. Throws kUsage if this machine lacks the interface.
void set_network_environment(const RankEnv&, const std::string& interface);

}  // namespace gt
