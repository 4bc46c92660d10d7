// The processes of a run's ranks, for tests that stop and kill them: found below the launcher, waited for, and looked
// for when all should be over.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace gt {

// The process of one rank below our launcher `pid`; 0: not there.
int process_of(int pid, int rank);
std::vector<int> children(int pid);

// A signal to one process; false when there is none (0 would mean everybody here) or it has ended already.
bool send_signal(int pid, int n);

// Polls until `ready()`; a wait of a minute (ten under a sanitizer) fails the test and returns false.
bool wait_until(const std::string& what, const std::function<bool()>& ready);

// Waits until a signal that was sent to the process is delivered to a handler or taken by a thread that blocks it.
bool wait_until_taken(int pid, int n);

// Waits until the run's log has a record of that step, as wait_until.
bool wait_for_step(const std::string& log, int64_t step);

// What a run has left behind, as text, "" when there is nothing: processes whose working directory is `folder`, the
// processes `pids`, shared memory that they made.
std::string left_behind(const std::string& folder, const std::vector<int>& pids);

}  // namespace gt
