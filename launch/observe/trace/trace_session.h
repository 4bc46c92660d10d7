// The trace of a run: which steps and ranks are recorded, clocks compared across ranks, everything gathered on rank 0
// after the last step of the window and written beside the logs.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/observe/trace/trace.h"
#include "launch/observe/trace/trace_json.h"
#include "parallel/mesh.h"

namespace gt {

class TraceSession {
 public:
  // `all_ranks`: else those of (dp 0, tp 0).
  TraceSession(const Mesh&, TraceWindow, bool all_ranks);

  // Steps of the window.
  bool wants(int64_t step) const { return window_.has(step); }
  // Before the first traced step, collective over the traced ranks: compares clocks. Other steps: nothing.
  void begin_step(int64_t step);
  ~TraceSession() { listen(false); }

  // After a step.
  void end_step(int64_t step, const PipelineExecutor&, const PhaseEnds&, double waited_until, double waited_seconds);
  bool open() const { return recorder_ != nullptr; }  // steps were recorded and not gathered

  // Collective over the traced ranks. On rank 0 all of them, on its clock; else nothing.
  std::vector<RankTrace> gather();

 private:
  struct Clock {
    double at = 0, offset = 0, error = 0;  // seconds: when; by how much it is ahead of rank 0's; at most so wrong
  };
  void compare_clocks(std::vector<Clock>& out);
  void listen(bool on);
  void shift(RankTrace&, const Clock& before, const Clock& after) const;
  bool traced(int rank) const;

  const Mesh& mesh_;
  const TraceWindow window_;
  const bool all_;
  std::vector<int> ranks_;             // traced, rank 0 first
  std::vector<Clock> before_, after_;  // rank 0: like ranks_
  std::unique_ptr<TraceRecorder> recorder_;
  std::unique_ptr<CommSpans> tp_, dp_;  // while the session is open
};

// The gantt of a trace's last step, for the console.
std::string executed_timeline(std::span<const RankTrace>, int width);

// How far the clocks of a trace were apart and how sure that is.
std::string clock_text(std::span<const RankTrace>);

}  // namespace gt
