// Parent-side monitor of ranks that cannot report themselves: ranks that do not start in time, and local ranks that do
// not run at all (stopped, frozen) when no other rank can report it.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/hosts/hostfile.h"
#include "launch/ranks/start/launcher_output.h"

namespace gt {

struct StartLimits {
  int world = 0;
  double start_s = 600;               // for all ranks to pass MPI_Init; 0: no limit
  double frozen_warn_s = 10;          // a process that did not run for this long is reported
  double frozen_abort_s = 600;        // and ends the job after this long; 0: never
  std::vector<HostSlots> hosts = {};  // hosts of the ranks in rank order; empty: this machine
};

// Returns the limit for a start if launch.start_timeout_s is 0.
double default_start_seconds(int world, bool one_machine);

class StartWatch {
 public:
  explicit StartWatch(StartLimits limits);

  struct End {
    int code = 0;
    std::string why;  // one line
  };
  // Updates the monitor; call several times a second with the current state and time in seconds. Returns an End if the
  // job must be ended with that code. Time during which this process itself was stopped does not count.
  std::optional<End> check(const std::map<int, StartedRank>& begun, bool started, double now);

 private:
  struct Activity {
    uint64_t turns = 0;  // scheduler timeslices of all threads
    double since = 0;
  };
  std::optional<End> check_frozen(const std::map<int, StartedRank>& begun, bool started, double now);
  std::string late_text(const std::map<int, StartedRank>& begun) const;

  StartLimits limits_;
  std::map<int, Activity> activity_;
  double begin_ = -1, last_ = 0, checked_ = 0;
  bool reported_ = false;
};

// timeslices_of returns the number of timeslices that a process's threads have run; 0 if unreadable. state_of returns
// its state letter in /proc, 0 if it is gone.
uint64_t timeslices_of(int64_t pid);
char state_of(int64_t pid);

// Maps a launcher's exit code to that of the job, with a line of text unless the reason has been printed already.
// Before all ranks have started nothing is lost, so a stop signal becomes 75. Codes specific to mpirun (1, 127, 205,
// 213, 255 …) become 2 or 74, or what the ranks' verdict stands for: mpirun may notice a lost machine after them.
struct LauncherEnd {
  int code = 0;
  std::string text;
};
LauncherEnd code_of_launcher(int code, bool started, const LauncherError&, const std::string& verdict = "");
int code_of_verdict(const std::string& text);  // exit code of a job that its ranks' verdict ends
bool is_code_of_program(int code);             // whether ranks end with it by themselves; signals excluded

}  // namespace gt
