// Filter for the standard error of a launcher and its ranks. Start reports of ranks are consumed, the launcher's own
// failure messages are condensed to one line, all other output is forwarded unchanged.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gt {

// Set in the environment of ranks whose parent reads their reports.
constexpr const char* kStartReports = "GPTTRAIN_START_REPORTS";

// Called by a rank before MPI_Init, and by rank 0 once all ranks have passed MPI_Init. No effect without a reading
// parent.
void report_start(int rank);
void report_started();
// Called by a rank that fails before MPI_Init; the parent prints identical messages of a machine's ranks once. Returns
// false if there is no such parent.
bool report_failed(int rank, const std::string& what);

struct StartedRank {
  std::string host;
  int64_t pid = 0;
  uint64_t pid_namespace = 0;
};

// Error reported by the launcher itself; an empty text: none.
struct LauncherError {
  std::string text;    // "node2: /opt/trainer cannot be started there: ..."
  bool usage = false;  // the user has to change something; otherwise possibly transient
};

// Result of a message block of mpirun, delimited by lines of dashes: an error, nothing if our own messages cover it
// ("mpirun noticed that process rank 1 exited"), or `shown` to forward the block unchanged.
struct LauncherBlock {
  LauncherError error;
  bool shown = false;
};
LauncherBlock read_block(const std::string& text);

class LauncherOutput {
 public:
  LauncherOutput();   // creates the pipe; if that fails, output is not filtered
  ~LauncherOutput();  // stops the thread after processing all output so far
  LauncherOutput(const LauncherOutput&) = delete;
  LauncherOutput& operator=(const LauncherOutput&) = delete;

  void redirect_child() const;  // redirects the child's standard error to the pipe
  void start();                 // in the parent, after fork
  void finish();                // forwards the output so far and stops reading
  bool reads() const { return read_ >= 0; }

  std::map<int, StartedRank> begun() const;  // by rank
  bool started() const;                      // all ranks have passed MPI_Init
  LauncherError error() const;               // the first error

 private:
  void run();
  void process_line(const std::string& line);
  void process_report(const std::string& line);
  void print_failures() const;
  void forward(const std::string& text) const;

  int read_ = -1, write_ = -1, wake_[2] = {-1, -1};
  std::string block_;
  bool in_block_ = false;
  mutable std::mutex mutex_;
  std::map<int, StartedRank> begun_;
  bool started_ = false;
  std::map<std::pair<std::string, std::string>, std::vector<int>> failed_;  // (host, text) → ranks
  LauncherError error_;
  std::thread thread_;
};

}  // namespace gt
