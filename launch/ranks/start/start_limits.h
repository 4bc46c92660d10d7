// Limits of this machine and this user that a job would run into while it starts, where Open MPI hangs, crashes or
// prints a page about something else.
#pragma once
#include <string>
#include <vector>

namespace gt {

struct MachineLimits {           // -1: none, or not to be found out
  long long shared_memory = -1;  // bytes free in /dev/shm
  long long files = -1;          // descriptors a process may have (hard limit)
  long long tasks = -1;          // processes and threads that may still be made
  std::string tasks_from;        // "ulimit -u 64", "pids.max 100 of the control group"
  long long addresses = -1;      // bytes of address space a process may have
  long long addresses_used = 0;  // by this process, now
};
MachineLimits machine_limits();

// What is missing for so many ranks of one machine, each with so many threads: one line each with the limit, what was
// found and what is needed.
std::vector<std::string> lacking(const MachineLimits&, int ranks, int threads);

// Lets this process and its children have the descriptors that they need, as far as the hard limit goes, and throws
// kUsage with all that is missing. ranks 1: this process alone.
void require_limits(int ranks, int threads);

// Why a thread could not be made, for the message of it.
std::string no_thread_text();

}  // namespace gt
