// Machine and user limits that a job would hit during startup, where Open MPI hangs, crashes or prints misleading
// messages.
#pragma once
#include <exception>
#include <string>
#include <vector>

namespace gt {

struct MachineLimits {           // -1: none, or unknown
  long long shared_memory = -1;  // bytes free in /dev/shm
  long long files = -1;          // descriptors per process (hard limit)
  long long tasks = -1;          // processes and threads that may still be created
  std::string tasks_from;        // "ulimit -u 64", "pids.max 100 of the control group"
  long long addresses = -1;      // bytes of address space per process
  long long addresses_used = 0;  // by this process so far
};
MachineLimits machine_limits();

// Returns one line for each limit too low for `ranks` ranks of `threads` threads on one machine, with the limit, the
// value found and the value needed.
std::vector<std::string> lacking(const MachineLimits&, int ranks, int threads);

// Raises the descriptor limit of this process and its children up to the hard limit. Throws kUsage with all limits that
// are too low. ranks 1: this process alone.
void require_limits(int ranks, int threads);

// Whether an exception means that a thread could not be created.
bool is_no_thread(const std::exception&);
// Returns the reason why a thread could not be created, for error messages.
std::string no_thread_text();

}  // namespace gt
