// Ranks of one machine: processes of this program, connected by Unix sockets and shared memory (socket_group.h). No
// MPI, no port.
#pragma once
#include <signal.h>

#include <string>
#include <vector>

namespace gt {

// Runs words[0] with the arguments words[1...] as ranks 0 to world - 1 and waits for them. Returns 0, or the exit code
// of the first rank that failed, 128 + n for signal n; a death by signal that is noticed after an internal error (70)
// is its cause. Reports the rank that died (launcher_output.h). The others are killed two seconds after a death, five
// after an error. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are forwarded as SIGUSR1, SIGUSR2 as itself; the end of this
// process, by SIGKILL too, kills all ranks. `mask`: the ranks' signal mask. Requires: a process with one thread and no
// children.
int run_local_ranks(int world, const std::vector<std::string>& words, const sigset_t& mask);

}  // namespace gt
