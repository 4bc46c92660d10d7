// Time breakdown of an optimizer step: the phases of one rank, and the times of all pipeline ranks, from which bubble
// and breakdown are derived. Values only; the engine measures and exchanges them.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace gt {

// Phases of a rank in a step, in order. Norms: the exchange over the world and the clip factor. Gather: the all-gather
// of updated weights under ZeRO.
enum class Phase : uint8_t { kPipeline, kReduce, kNorms, kOptimizer, kGather };
constexpr int kNumPhases = 5;
// Begin of the first phase and end of each, on the rank's stream: seconds of std::chrono::steady_clock.
using PhaseEnds = std::array<double, kNumPhases + 1>;

// Times of a step, mean over the replicas of each pipeline rank; equal on every rank. Times up to kPipelineTime belong
// to this step, the rest to the previous one, because they are exchanged in the middle of a step. On an asynchronous
// device each is one step older. There, collectives inside compute actions are not separated (kTpTime, gathers and
// reductions).
enum StageTime : int {
  kForwardTime,
  kBackwardTime,
  kInputGradTime,
  kWeightGradTime,  // inside F, B, I, W, excluding collectives
  kMicrobatchTime,  // same, for microbatches whose forward and backward are one device graph
  kWaitTime,        // blocked on neighbours
  kTpTime,          // inside F, B, I, W: in collectives of the TP group
  kPipelineTime,    // from the begin of the pipeline phase to the end of the last compute action
  kReduceTime,      // gradient reduction over replicas, as far as the rank was busy with it or waited for it
  kNormsTime,
  kOptimizerTime,
  kGatherTime,  // parameters: ZeRO 3 gathers in F and B, and the gather phase
  kDataTime,    // of this step: waiting for its microbatches
  kNumStageTimes
};
// Names in logs; kPipelineTime contains others and has none.
constexpr const char* kTimerNames[kNumStageTimes] = {
    "forward", "backward",   "backward_input", "backward_weight", "microbatch",       "p2p_wait", "tp_exposed",
    nullptr,   "dp_exposed", "grad_norm",      "optimizer",       "zero_gather_wait", "data"};
using Timers = std::array<double, kNumStageTimes>;

class StepTimes {
 public:
  StepTimes() = default;
  explicit StepTimes(std::span<const double> by_stage) : by_stage_(by_stage) {}
  int stages() const { return static_cast<int>(by_stage_.size()) / kNumStageTimes; }  // pipeline ranks
  double at(int stage, StageTime t) const { return by_stage_[static_cast<size_t>(stage * kNumStageTimes + t)]; }
  double busy(int stage) const;     // computing, inside compute actions
  Timers mean() const;              // of all pipeline ranks
  Timers longest() const;           // of the slowest pipeline rank, timer by timer
  double mean_busy() const;         // of all ranks, including the optimizer
  double pipeline_seconds() const;  // of the slowest pipeline rank
  // Returns 1 - work / pipeline_seconds over all ranks, the simulator's definition. Work is compute and TP collectives,
  // which belong to a stage's layers; waiting for other replicas (ZeRO) is not.
  double pipeline_bubble() const;
  double mean_exposed() const;  // seconds in tensor- and data-parallel collectives, mean over all ranks

 private:
  std::span<const double> by_stage_;  // [pipeline rank][StageTime]; valid until the engine's next step
};

// All times of one step, by pipeline rank and StageTime.
struct StepParts {
  int64_t step = -1;  // -1: none
  double seconds = 0;
  std::vector<double> times;
};

// Matches the times that arrive late to their step, sums those of a run, and prints them as a table of milliseconds per
// step: one row per timer, one column per pipeline rank. All rows, with a non-negative `other`, add up to the row
// `step`. The first steps, which are slower, are excluded; the last one's update is never known.
class StepBreakdown {
 public:
  // `asynchronous`: the device is asynchronous, see StageTime.
  explicit StepBreakdown(bool asynchronous, int excluded = 2) : waits_(asynchronous ? 3 : 2), excluded_(excluded) {}
  // Adds what is known at the end of `step`. Returns the last step all of whose times are known.
  const StepParts& add(int64_t step, const StepTimes&, double step_seconds);
  std::string table() const;  // "" before the first counted step
  // Seconds a step by pipeline rank; empty before the first step that counts. `step_seconds`: of the mean step.
  std::vector<Timers> means(double& step_seconds) const;

 private:
  size_t waits_;  // steps in `arrived_` when the first of them is complete
  int excluded_;
  int64_t steps_ = 0;  // complete steps
  double seconds_ = 0;
  std::vector<double> sums_;       // [pipeline rank][StageTime]
  std::deque<StepParts> arrived_;  // `times` as they came with the exchange of `step`
  StepParts complete_;
};

}  // namespace gt
