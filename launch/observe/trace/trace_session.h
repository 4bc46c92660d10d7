// Trace of a run: selects steps and ranks, synchronizes clocks across ranks, and gathers all entries on rank 0 after
// the last step of the window.
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
  // `all_ranks`: all ranks; otherwise those of (dp 0, tp 0).
  TraceSession(const Mesh&, TraceWindow, bool all_ranks);

  // Returns whether the step is in the window.
  bool records(int64_t step) const { return window_.has(step); }
  // Call before each step. Compares clocks before the first traced step (collective over the traced ranks).
  void begin_step(int64_t step);
  ~TraceSession() { listen(false); }

  // Call after each step.
  void end_step(int64_t step, const PipelineExecutor&, const PhaseEnds&, double waited_until, double waited_seconds);
  bool open() const { return recorder_ != nullptr; }  // steps were recorded but not gathered

  // Returns the entries of all traced ranks on rank 0, on its clock; empty on other ranks. Collective over the traced
  // ranks.
  std::vector<RankTrace> gather();

 private:
  struct Clock {
    double at = 0, offset = 0, error = 0;  // seconds: time of comparison, lead over rank 0's clock, error bound
  };
  void compare_clocks(std::vector<Clock>& out);
  void listen(bool on);
  void shift(RankTrace&, const Clock& before, const Clock& after) const;
  bool traced(int rank) const;

  const Mesh& mesh_;
  const TraceWindow window_;
  const bool all_;
  std::vector<int> ranks_;             // traced ranks, rank 0 first
  std::vector<Clock> before_, after_;  // rank 0: parallel to ranks_
  std::unique_ptr<TraceRecorder> recorder_;
  std::unique_ptr<CommSpans> tp_, dp_;  // while the session is open
};

// Returns the gantt chart of a trace's last step for the console.
std::string executed_timeline(std::span<const RankTrace>, int width);

// Returns the clock offsets of a trace with their error bounds as text.
std::string clock_text(std::span<const RankTrace>);

}  // namespace gt
