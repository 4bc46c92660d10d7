// Which network ranks talk over: none when all of them share a machine, else what comm.interface names.
#pragma once
#include <string>
#include <vector>

#include "launch/hosts/env_file.h"
#include "launch/hosts/rank_env.h"

namespace gt {

// What is wrong with the text of comm.interface, "" for a name ("eth0") or an IPv4 subnet ("10.0.0.0/16").
std::string bad_interface(const std::string& text);

// The interface of this machine that `text` names or whose address lies in that subnet. Throws kUsage listing the
// interfaces that there are.
std::string interface_here(const std::string& text);

// "eth0 10.77.0.1" for each IPv4 address of an interface that is up, without the loopback device.
std::vector<std::string> interfaces_up();

// For mpirun. On one machine it reaches nobody, so it keeps to the loopback device, as do its ranks.
Variables local_network();
Variables remote_network(const std::string& interface);  // "": nothing

// Call in a rank before MPI starts: the same for its messages and for NCCL, whoever started it. Variables that the user
// has set win. Throws kUsage when this machine lacks the interface.
void choose_network(const RankEnv&, const std::string& interface);

}  // namespace gt
