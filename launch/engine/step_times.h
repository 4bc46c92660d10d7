// Where the time of an optimizer step goes: the phases of one rank, and the times of all pipeline ranks, from which
// follow the step's bubble and its breakdown. Values only; the engine measures and shares them.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gt {

// What a rank does one after the other in a step. Norms: the sums of the world and the clip factor. Gather: publishing
// the new values, where ZeRO shares them out.
enum class Phase : uint8_t { kPipeline, kReduce, kNorms, kOptimizer, kGather };
constexpr int kNumPhases = 5;
// Where the first phase began and each ended on the rank's stream: seconds of std::chrono::steady_clock.
using PhaseEnds = std::array<double, kNumPhases + 1>;

// Where the seconds of a step went, a mean over the replicas of each pipeline rank; equal on every rank. Times up to
// kPipeline are of this step; the rest are of the step before, because they travel with the sums in its middle. On a
// device that computes behind the host's back each is of one step earlier; collectives inside compute actions are not
// told apart there (kTpTime, gathers and reductions).
enum StageTime : int {
  kForwardTime,
  kBackwardTime,
  kInputGradTime,
  kWeightGradTime,  // inside F, B, I, W, but for collectives
  kMicrobatchTime,  // the same of microbatches whose forward and backward are one graph of the device
  kWaitTime,        // blocked on neighbours
  kTpTime,          // inside F, B, I, W: in collectives of the tensor-parallel group
  kPipelineTime,    // from the begin of the pipeline's part to the end of the last compute action
  kReduceTime,      // gradients over the replicas, as far as the rank was occupied with it or waited for it
  kNormsTime,
  kOptimizerTime,
  kGatherTime,  // values: ZeRO 3's in F and B, and the phase
  kDataTime,    // of this step: waiting for its microbatches
  kNumStageTimes
};
// What logs call them; kPipelineTime contains others and has no name.
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
  double mean_busy() const;         // of all ranks, the optimizer included
  double pipeline_seconds() const;  // of the slowest pipeline rank
  // 1 - work / pipeline_seconds, all ranks; what the simulator predicts. Work is computing and the tensor-parallel
  // collectives, which belong to a stage's layers; waiting for other replicas (ZeRO) is not.
  double pipeline_bubble() const;
  double mean_exposed() const;  // of all ranks, seconds in collectives of tensor and data parallelism

 private:
  std::span<const double> by_stage_;  // [pipeline rank][StageTime]; valid until the engine's next step
};

// Sums the times of a run's steps and prints them as a table of milliseconds a step: a row a timer, a column a pipeline
// rank. The parts of a step are put together where they arrive with two steps, so that they and `other`, which is not
// negative, add up to the row `step`. The first steps, which are slower, are left out, and so is the last one.
class StepBreakdown {
 public:
  explicit StepBreakdown(int left_out = 2) : excluded_(left_out) {}
  void add(const StepTimes&, double step_seconds);
  std::string table() const;  // "" before the first step that counts
  // Seconds a step by pipeline rank; empty before the first step that counts. `step_seconds`: of the mean step.
  std::vector<Timers> means(double& step_seconds) const;

 private:
  int excluded_;
  int64_t steps_ = 0;  // that are complete
  double seconds_ = 0, last_seconds_ = 0;
  std::vector<double> sums_, last_;  // [pipeline rank][StageTime]; last_: of the step whose update is not known yet
};

}  // namespace gt
