// Reads the records of a run folder: log.jsonl, restarts.jsonl and trace files. The folder is untrusted: sizes are
// bounded, and lines that are not records are counted and left out. Independent of HTML and of terminals.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/observe/step_metrics.h"

namespace gt {

// Timers of log.jsonl: kTimerNames with names, then "other".
constexpr size_t kNumLoggedTimers = kNumStageTimes;
const char* logged_timer_name(size_t i);

struct LoggedStep {
  int64_t step = 0;
  double time = kUnknown;
  int64_t timers_step = -1;  // the step that `timers` belong to
  std::array<float, kNumLoggedTimers> timers{};
  std::vector<double> values{};  // of step_metrics(); NaN where unknown
  double operator[](double StepRecord::*figure) const { return values[metric_index(figure)]; }
  double operator[](int64_t StepRecord::*figure) const { return values[metric_index(figure)]; }
};

struct LoggedEvent {
  int64_t step = 0;
  double time = kUnknown;
  bool warning = false;
  std::string text;
};

// One start of the run's program.
struct LoggedStart {
  double time = kUnknown;
  std::string version, command, layout, environment;
  int64_t first_step = 1, total_steps = 0, resumed_from = -1, world = 1;
  Rows config, block;  // flattened keys with their values as JSON; the start block
};

struct LoggedEnd {
  double time = kUnknown, seconds = kUnknown, goodput = kUnknown;
  std::string reason;
  int64_t exit_code = 0, step = 0;
  Rows block;  // the end block
};

// One failed attempt under `gpttrain launch`.
struct LoggedRestart {
  std::string time, action, what;
  double seconds_lost = kUnknown;
};

// A curve of "scalar" records.
struct LoggedCurve {
  std::vector<int64_t> steps;
  std::vector<double> values;
};

class RunLog {
 public:
  // Bounds. Beyond kMostSteps every second step is dropped, repeatedly; beyond the others later ones are.
  static constexpr size_t kMostSteps = size_t{1} << 18, kMostEvents = 2000, kMostCurves = 512, kMostStarts = 1000;
  static constexpr size_t kMostPoints = size_t{1} << 20;  // of all curves together
  static constexpr size_t kLongestLine = size_t{1} << 20;

  // Throws kUsage naming the folder if it holds no readable log.jsonl. Reads nothing yet.
  explicit RunLog(std::string run_dir);
  // Reads what was appended since the last call. Returns whether there were new records.
  bool read();

  const std::string& dir() const { return dir_; }
  std::string name() const;  // of the folder
  const std::vector<LoggedStart>& starts() const { return starts_; }
  const std::vector<LoggedStep>& steps() const { return steps_; }  // ascending; the last record of each step
  const std::vector<EvalRecord>& evals() const { return evals_; }  // likewise
  const std::vector<SavedRecord>& saves() const { return saves_; }
  const std::vector<LoggedEvent>& events() const { return events_; }
  const std::map<std::string, LoggedCurve>& curves() const { return curves_; }
  const std::vector<RankMemory>& memory() const { return memory_; }  // the newest record; empty: none
  const StagesRecord& stages() const { return stages_; }             // the newest record; stages nullptr: none
  const LoggedEnd* end() const { return ended_ ? &end_ : nullptr; }  // of the newest start; nullptr: it has not ended
  std::vector<LoggedRestart> restarts() const;                       // reads restarts.jsonl
  size_t bad_lines() const { return bad_lines_; }
  size_t dropped_events() const { return dropped_events_; }

 private:
  friend struct RecordReader;
  void process_line(std::string_view line);
  void thin();
  void discard_from(int64_t step);
  std::string dir_;
  int64_t at_ = 0;    // bytes of log.jsonl that were read
  std::string rest_;  // the beginning of an incomplete line
  bool overlong_ = false;
  int64_t stride_ = 1;  // steps kept: multiples of this
  std::vector<LoggedStart> starts_;
  std::vector<LoggedStep> steps_;
  std::vector<EvalRecord> evals_;
  std::vector<SavedRecord> saves_;
  std::vector<LoggedEvent> events_;
  std::map<std::string, LoggedCurve> curves_;
  std::vector<RankMemory> memory_;
  StagesRecord stages_;
  LoggedEnd end_;
  bool ended_ = false;
  size_t points_ = 0, bad_lines_ = 0, dropped_events_ = 0;
};

// The newest trace of a run folder; "" if there is none.
std::string newest_trace(const std::string& run_dir);

struct TraceSlice {
  int rank = 0, track = 0;  // track: thread id of trace_json.h
  int64_t step = 0, microbatch = -1;
  double begin = 0, seconds = 0;
  std::string category;
  bool waits = false;
};

struct TraceSlices {
  std::map<int, std::string> ranks;  // names of the processes by rank
  std::vector<TraceSlice> slices;
};

// Reads a trace that write_gzip wrote; events beyond `most` slices are left out. Throws kDamaged or kUsage naming the
// file.
TraceSlices read_trace(const std::string& path, size_t most = size_t{1} << 18);

}  // namespace gt
