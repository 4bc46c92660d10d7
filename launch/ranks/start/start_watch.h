// What the parent of a job sees of ranks that cannot speak for themselves: those that do not come up in time, and those
// of this machine that do not run at all (stopped, frozen), when no rank is left to say so.
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
  double start_s = 600;               // until all ranks have passed MPI_Init; 0: no limit
  double frozen_warn_s = 10;          // a process that did not run for so long is reported
  double frozen_abort_s = 600;        // and ends the job; 0: never
  std::vector<HostSlots> hosts = {};  // of the ranks, in their order; empty: this machine
};

class StartWatch {
 public:
  explicit StartWatch(StartLimits limits);

  struct End {
    int code = 0;
    std::string why;  // one line
  };
  // Call several times a second with what is known by now and the time in seconds. An end: the job has to be ended with
  // that code. Time in which this process did not run either does not count.
  std::optional<End> look(const std::map<int, BegunRank>& begun, bool started, double now);

 private:
  struct Activity {
    uint64_t turns = 0;  // of all threads on a processor
    double since = 0;
  };
  std::optional<End> look_for_frozen(const std::map<int, BegunRank>& begun, bool started, double now);
  std::string late_text(const std::map<int, BegunRank>& begun) const;

  StartLimits limits_;
  std::map<int, Activity> activity_;
  double begin_ = -1, last_ = 0, looked_ = 0;
  bool said_ = false;
};

// How often threads of a process have run; 0: not to be seen. The letter of its state in /proc, 0 when it is gone.
uint64_t turns_of(int64_t pid);
char state_of(int64_t pid);

// Exit code of a job whose launcher ended with `code`, and a line about it, "" where somebody else has said why. Before
// all ranks had started: nothing is lost, so a stop signal means 75; what only mpirun knows (1, 127, 205, 213, 255 …)
// becomes 2 or 74.
struct LauncherEnd {
  int code = 0;
  std::string text;
};
LauncherEnd code_of_launcher(int code, bool started, const LauncherTrouble&);

}  // namespace gt
