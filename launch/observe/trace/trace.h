// What one rank did in the steps that are traced: entries of fixed size in memory that is allocated beforehand, so that
// a traced step costs a few copies and an untraced one nothing. Actions and phases are where the device computed them,
// calls of collectives where the host made them. Knows no file format (trace_json.h) and no other rank (trace_session.h).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "launch/config/trace_window.h"
#include "launch/engine/step_times.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/simulate.h"

namespace gt {

// The first ten are the actions of a schedule, in the order of Act.
enum class TraceKind : uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kSendForward,
  kRecvForward,
  kSendBackward,
  kRecvBackward,
  kReduceGrads,
  kReduceTied,
  kReduce,
  kNorms,
  kOptimizer,
  kGather,  // phases of a step (Phase)
  kDataWait,
  kTpCall,
  kDpCall,  // the rank's thread inside a call or wait of that group; dp: inside a compute action
  kMicrobatch,  // forward and backward as one graph of the device
};
constexpr bool computes(TraceKind k) { return k <= TraceKind::kBackwardWeight || k == TraceKind::kMicrobatch; }

// 48 bytes that travel between ranks as they are.
struct TraceEntry {
  int64_t begin = 0, duration = 0;  // ns of the rank's std::chrono::steady_clock
  int64_t bytes = 0;                // of a message; 0: a wait for one that was sent
  int64_t activation_bytes = 0;     // compute actions: used when it ended
  int32_t step = 0;
  int16_t stage = -1, microbatch = -1;
  TraceKind kind = TraceKind::kForward;
  CommOp op{};         // kTpCall, kDpCall: which, and
  bool waits = false;  // whether it was a wait for an earlier call
  uint8_t unused = 0;
  int32_t live = 0;  // compute actions: microbatches in flight while it ran
};
static_assert(sizeof(TraceEntry) == 48);

class TraceRecorder {
 public:
  explicit TraceRecorder(size_t capacity) { entries_.reserve(capacity); }
  // Everything of one step; waited_until - waited_seconds .. waited_until: the wait for data before it; tp, dp: where
  // the thread was inside those groups. Entries that do not fit are left out.
  void add_step(int64_t step, const PipelineExecutor&, const PhaseEnds&, double waited_until, double waited_seconds,
                const CommSpans& tp, const CommSpans& dp);
  std::span<const TraceEntry> entries() const { return entries_; }
  bool full() const { return full_; }

 private:
  void add(const TraceEntry& e);
  void add(int64_t step, TraceKind, double begin, double end);
  void add(int64_t step, const ActionTime&, double started);
  void add(int64_t step, TraceKind, const CommSpan&);
  std::vector<TraceEntry> entries_;
  bool full_ = false;
};

// Entries of one step like this one, for the capacity of a recorder.
size_t trace_entries_per_step(const PipelineExecutor&, const CommSpans& tp, const CommSpans& dp);

// One rank's part of a trace.
struct RankTrace {
  int rank = 0, pp = 0, dp = 0, tp = 0;
  std::string host;
  bool truncated = false;
  double clock_offset = 0, clock_error = 0;  // seconds, already taken out of the entries; how wrong that may be
  std::vector<TraceEntry> entries;           // on rank 0's clock
};

// The simulator's timeline as a trace of one step; a unit of its time becomes `unit` seconds. Messages take no time.
std::vector<RankTrace> simulated_trace(const Schedule&, const Report&, double unit = 1e-3);

// What gantt() draws of one executed step: the pipeline ranks of (dp 0, tp 0), times in milliseconds. Empty when no
// such entries are there.
Report executed_report(std::span<const RankTrace>, int64_t step);

}  // namespace gt
