// Predicted time of a step on a machine whose ops and communication were measured (measured_times.h): sums of the ops
// that each pipeline rank calls, the simulated schedule, and the collectives that it counts.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/engine/measure/step_times.h"
#include "launch/observe/measured_times.h"
#include "launch/observe/memory_fit.h"

namespace gt {

// Cores of a machine that its ranks share.
struct CoreShare {
  int ranks = 1, threads = 1;  // on the machine; of each rank
  int cores = 1;
  int together() const { return std::max(1, std::min(ranks, cores / std::max(1, threads))); }  // that compute at once
  double ranks_per_slot() const { return static_cast<double>(ranks) / together(); }
};
CoreShare core_share(int ranks, int threads);  // of this machine

// Seconds of one step, a mean over the ranks. Times of ops include waiting for a core.
struct StepPrediction {
  double gemms = 0, attention = 0, passes = 0;  // of forward and backward; passes: memory-bound ops and the loss
  double update = 0;                            // gradient norm and optimizer
  double tensor_parallel = 0, messages = 0, bubble = 0, data_parallel = 0;
  RunRatios corrected;               // factors by which earlier runs changed the times
  bool shared_cores = false;         // ranks outnumber cores
  int64_t calls = 0, estimated = 0;  // op calls of a step; those whose shape was not measured
  double compute() const { return gemms + attention + passes; }
  double pipeline() const { return compute() + tensor_parallel + messages + bubble; }
  double seconds() const { return pipeline() + data_parallel + update; }
};

// Names the runs that correct predictions of a model on this many ranks of a machine.
std::string correction_key(const TransformerConfig&, int ranks);

// NaN if an op or a collective of the step was not measured. Multiplied by what earlier runs were off
// (MeasuredTimes::corrections). `backend`: of the process groups. Between machines the sum of tied gradients overlaps
// the last backward passes, and is part of messages and bubble. Requires: stages of plan_stages().
StepPrediction predict_step(const EngineOptions&, const MeshShape&, const StagePlans&, const MeasuredTimes&,
                            std::string_view backend, const CoreShare&, int machines = 1);

// "251 ms a step: compute 58 ms, …" of a run that begins.
std::string start_text(const StepPrediction&);

// "; with --parallel.extra_in_flight 3: 180 ms" if more microbatches in flight shorten a step of 1f1b, predicted to
// take `seconds`, by 5 % or more; otherwise "".
std::string deeper_pipeline(const EngineOptions&, double seconds,
                            const std::function<StepPrediction(const EngineOptions&)>& predict);

// One class of time, predicted and measured, in seconds a step.
struct ClassTime {
  const char* name;
  double predicted, measured;
};
// `means`: of the run's steps by pipeline rank, `seconds` each (StepBreakdown). The rest of the measured step is
// "other": host, files, logs.
std::vector<ClassTime> class_times(const StepPrediction&, const std::vector<Timers>& means, double seconds);

// Returns the corrections that a run adds to the machine's measured times: measured over uncorrected predicted time. 1
// for classes below 2 % of the step. Of ranks that share cores the whole step's for every class: each class then
// includes waiting for a core, by amounts that differ between layouts.
RunRatios run_ratios(const StepPrediction&, const std::vector<Timers>& means, double seconds);

constexpr double kMuchOff = 0.15;  // relative difference above which the class of time is named
// "66 ms predicted, 70 ms measured (+6.1 %)" and, if it is far off, the class that differs most.
std::string prediction_text(const StepPrediction&, const std::vector<Timers>& means, double seconds);

}  // namespace gt
