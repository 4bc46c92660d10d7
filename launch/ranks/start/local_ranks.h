// Ranks of one machine: processes of this program, connected by sockets and shared memory (socket_group.h). No MPI; no
// port, if they are all ranks.
#pragma once
#include <signal.h>

#include <string>
#include <vector>

namespace gt {

struct LocalJob {
  int first = 0, count = 0, world = 0;  // this machine's ranks, and how many there are in all
  int requests = -1;                    // non-blocking stream of the bytes below, whose end kills the ranks; -1: none
};
constexpr char kStopRequest = 'S', kDumpRequest = 'D';  // SIGUSR1 and SIGUSR2 to each rank

// Runs words[0] with the arguments words[1...] as ranks and waits for them. If they are not all ranks, this process has
// the variables by which they find the others (socket_job.h). Returns 0, or the exit code
// of the first rank that failed, 128 + n for signal n; a death by signal that is noticed after an internal error (70)
// is its cause. Reports the rank that died (launcher_output.h). The others are killed two seconds after a death, five
// after an error. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are forwarded as SIGUSR1, SIGUSR2 as itself; the end of this
// process, by SIGKILL too, kills all ranks. `mask`: the ranks' signal mask. Requires: a process with one thread and no
// children.
int run_local_ranks(const LocalJob&, const std::vector<std::string>& words, const sigset_t& mask);

}  // namespace gt
