// Processes of a run's ranks, for tests that stop and kill them: lookup below the launcher, waiting, and leak checks.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace gt {

// Returns the process of a rank below our launcher `pid`; 0 if absent.
int process_of(int pid, int rank);
std::vector<int> children(int pid);

// Sends a signal to one process; returns false for pid 0 (which would mean the whole process group) or an ended
// process.
bool send_signal(int pid, int n);

// Polls until `ready()`. A timeout of one minute (ten under a sanitizer) fails the test and returns false.
bool wait_until(const std::string& what, const std::function<bool()>& ready);

// Waits until a signal sent to the process has been delivered to a handler or accepted by a thread that blocks it.
bool wait_until_taken(int pid, int n);

// Waits until the run's log has a record of that step; see wait_until.
bool wait_for_step(const std::string& log, int64_t step);

// Returns leftovers of a run as text, "" if none: processes whose working directory is `folder`, the processes `pids`,
// and shared memory that they created.
std::string left_behind(const std::string& folder, const std::vector<int>& pids);

}  // namespace gt
