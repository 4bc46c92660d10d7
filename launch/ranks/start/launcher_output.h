// Standard error of a launcher and its ranks, on its way through this process: what ranks report about their start is
// taken out, what the launcher has to say about a failure is put into one line, everything else goes on as it is.
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

// Called by a rank: before MPI starts, and by rank 0 once all ranks have passed MPI_Init. Nothing where nobody reads
// it.
void report_begun(int rank);
void report_started();
// Called by a rank that cannot even begin: the parent prints what all ranks of a machine say alike once. False: there
// is no such parent.
bool report_failed(int rank, const std::string& what);

struct BegunRank {
  std::string host;
  int64_t pid = 0;
  uint64_t pid_space = 0;
};

// What the launcher itself complained about; an empty text: nothing.
struct LauncherTrouble {
  std::string text;    // "node2: /opt/trainer cannot be started there: ..."
  bool usage = false;  // the user has to change something; else it may pass
};

// Parts of the text of mpirun that stand between lines of dashes. Returns what such a part means: a trouble, nothing
// for what our own messages say better ("mpirun noticed that process rank 1 exited"), or the part itself as `shown`.
struct LauncherBlock {
  LauncherTrouble trouble;
  bool shown = false;
};
LauncherBlock read_block(const std::string& text);

class LauncherOutput {
 public:
  LauncherOutput();   // makes the pipe; where there is none left, output goes past this object
  ~LauncherOutput();  // ends the thread, after what has been written so far
  LauncherOutput(const LauncherOutput&) = delete;
  LauncherOutput& operator=(const LauncherOutput&) = delete;

  void take_in_child() const;  // standard error of the child becomes the pipe
  void start();                // in the parent, after the fork
  void finish();               // what has come so far is passed on; no more is read
  bool reads() const { return read_ >= 0; }

  std::map<int, BegunRank> begun() const;  // by rank
  bool started() const;                    // all ranks have passed MPI_Init
  LauncherTrouble trouble() const;         // the first one

 private:
  void run();
  void take_line(const std::string& line);
  void take_report(const std::string& line);
  void print_failures() const;
  void pass_on(const std::string& text) const;

  int read_ = -1, write_ = -1, wake_[2] = {-1, -1};
  std::string block_;
  bool in_block_ = false;
  mutable std::mutex mutex_;
  std::map<int, BegunRank> begun_;
  bool started_ = false;
  std::map<std::pair<std::string, std::string>, std::vector<int>> failed_;  // host and text: ranks
  LauncherTrouble trouble_;
  std::thread thread_;
};

}  // namespace gt
