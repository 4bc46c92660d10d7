// Trace of one rank: fixed-size entries in preallocated memory, so that a traced step costs a few copies and an
// untraced one nothing. Actions and phases have device times, collective calls host times. Independent of file formats
// (trace_json.h) and other ranks (trace_session.h).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "launch/config/values/trace_window.h"
#include "launch/engine/measure/step_times.h"
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
  kDpCall,      // host thread inside a call or wait of that group; dp: inside a compute action
  kMicrobatch,  // forward and backward in one device graph
};
constexpr bool computes(TraceKind k) { return k <= TraceKind::kBackwardWeight || k == TraceKind::kMicrobatch; }

// 48 bytes, sent between ranks as raw memory.
struct TraceEntry {
  int64_t begin = 0, duration = 0;  // ns of the rank's std::chrono::steady_clock
  int64_t bytes = 0;                // of a message; 0: a wait for a message sent earlier
  int64_t activation_bytes = 0;     // compute actions: activation memory in use at the end
  int32_t step = 0;
  int16_t stage = -1, microbatch = -1;
  TraceKind kind = TraceKind::kForward;
  CommOp op{};         // kTpCall, kDpCall: operation
  bool waits = false;  // a wait for an earlier call
  uint8_t unused = 0;
  int32_t live = 0;  // compute actions: microbatches in flight
};
static_assert(sizeof(TraceEntry) == 48);

class TraceRecorder {
 public:
  explicit TraceRecorder(size_t capacity) { entries_.reserve(capacity); }
  // Adds all entries of one step; those that do not fit are dropped. The wait for data is waited_until - waited_seconds
  // to waited_until. tp, dp: host time inside those groups' calls.
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

// Returns the number of entries of one such step, to size a recorder.
size_t trace_entries_per_step(const PipelineExecutor&, const CommSpans& tp, const CommSpans& dp);

// Trace of one rank.
struct RankTrace {
  int rank = 0, pp = 0, dp = 0, tp = 0;
  std::string host;
  bool truncated = false;
  // seconds, already subtracted from the entries; bound of the remaining error
  double clock_offset = 0, clock_error = 0;
  std::vector<TraceEntry> entries;  // on rank 0's clock
};

// Converts the simulator's timeline to a trace of one step; one unit of its time is `unit` seconds. Messages take no
// time.
std::vector<RankTrace> simulated_trace(const PipelineSchedule&, const Report&, double unit = 1e-3);

// Returns the input of gantt() for one executed step: the pipeline ranks of (dp 0, tp 0), times in milliseconds. Empty
// without such entries.
Report executed_report(std::span<const RankTrace>, int64_t step);

}  // namespace gt
