// Filter for the standard error of a launcher and its ranks. Reports of ranks to their parent are consumed, the
// launcher's own failure messages are condensed to one line, all other output is forwarded unchanged. The reports need
// no path that both sides can write: they also arrive from ranks on other machines.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gt {

// Set in the environment of ranks whose parent reads their reports: the descriptor to write them to.
constexpr const char* kReportsVariable = "GPTTRAIN_REPORTS";

// Called by a rank before MPI_Init, and by rank 0 once all ranks have passed MPI_Init. No effect without a reading
// parent. coordinates: "pp1 dp0 tp1".
void report_start(int rank, const std::string& coordinates = "");
void report_started();
// Called by a rank that fails before MPI_Init; the parent prints identical messages of a machine's ranks once. Returns
// false if there is no such parent.
bool report_failed(int rank, const std::string& what);
// Called when a rank died, stalls the others or was lost: what happened, of which the first line is reported. The
// parent then ends the job if it does not end by itself, as mpirun does not while a lost machine is silent.
void report_verdict(const std::string& what);
// Called by the process that forked a rank: how the rank ended, "died of SIGKILL". It is the verdict if no other rank
// reports one, which would hold the step too.
void report_end(int rank, int64_t pid, const std::string& how);

struct StartedRank {
  std::string host;
  int64_t pid = 0;
  uint64_t pid_namespace = 0;
  std::string coordinates = {};
};

// Error reported by the launcher itself; an empty text: none.
struct LauncherError {
  std::string text;    // "node2: /opt/trainer cannot be started there: ..."
  bool usage = false;  // the user has to change something; otherwise possibly transient
};

// Result of a message block of mpirun, delimited by lines of dashes: an error, nothing if our own messages cover it,
// or `shown` to forward the block unchanged.
struct LauncherBlock {
  LauncherError error;
  bool shown = false;
  std::string verdict = {};  // the rank that died of a signal, or the machine whose daemon is gone; "": neither
};
LauncherBlock read_block(const std::string& text);
// The same of a line of srun ("srun: error: node2: task 3: Killed") or of the ssh that holds an Open MPI daemon.
std::string verdict_of_line(const std::string& line);

class LauncherOutput {
 public:
  LauncherOutput();   // creates the pipe; if that fails, output is not filtered
  ~LauncherOutput();  // stops the thread after processing all output so far
  LauncherOutput(const LauncherOutput&) = delete;
  LauncherOutput& operator=(const LauncherOutput&) = delete;

  // In the child: redirects its standard error to the pipe, to which their launcher forwards the ranks' reports...
  void redirect_child() const;
  // ... or leaves it unchanged and keeps the pipe open for the reports only.
  void pass_to_child() const;
  void start(pid_t child);       // in the parent, after fork
  void ends() { ends_ = true; }  // this process ends the job: what its launcher notices from now on is no verdict
  void finish();                 // forwards the output so far and stops reading
  bool reads() const { return read_ >= 0; }

  std::map<int, StartedRank> begun() const;  // by rank
  bool started() const;                      // all ranks have passed MPI_Init
  LauncherError error() const;               // the first error
  std::string verdict() const;               // the first one: later ones may be its consequences; "": none

 private:
  void run();
  void process_line(const std::string& line);
  bool describes_own_end(const std::string& line) const;
  void process_report(const std::string& line);
  void add_verdict(const std::string& text);
  void take_end(std::istream& report);
  void print_failures() const;
  void forward(const std::string& text) const;

  pid_t child_ = 0;
  std::atomic<bool> ends_ = false;
  int read_ = -1, write_ = -1, wake_[2] = {-1, -1};
  std::string block_;
  bool in_block_ = false;
  mutable std::mutex mutex_;
  std::map<int, StartedRank> begun_;
  bool started_ = false;
  std::map<std::pair<std::string, std::string>, std::vector<int>> failed_;  // (host, text) → ranks
  LauncherError error_;
  std::string verdict_;
  std::string end_;  // the first report_end
  std::thread thread_;
};

}  // namespace gt
