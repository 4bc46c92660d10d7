// Learning-rate schedules: at(t) is a pure function of the applied step t = 1, 2, …. A resume needs no state, and a
// skipped step does not advance it. Native shapes (lr_native.cpp), PyTorch's one-cycle (lr_one_cycle_torch.cpp) and
// DeepSpeed's five, with or without its defects (lr_deepspeed.cpp): those files have the equations,
// optim/README.md the sources.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gt {

constexpr double kKeepBeta = -1;  // beta: the schedule leaves it to the optimizer

struct LrPoint {
  double lr = 0;
  double beta1 = kKeepBeta;  // decay of the first moment (SGD: momentum)
  double beta2 = kKeepBeta;  // decay of the second moment
};

struct LrOptions {
  std::string type = "cosine";                   // lr_schedule_names()
  double peak = 3e-4, min_lr = 0, start_lr = 0;  // after warm-up; lower limit; where warm-up begins
  int64_t warmup_steps = 0, total_steps = 1;
  // If above 0, all lengths count samples, and a step takes this many. An earlier run of this job applied
  // `steps_before` steps of `samples_before` samples, possibly with another batch size. at() still takes steps.
  int64_t samples_per_step = 0, steps_before = 0, samples_before = 0;
  // wsd
  int64_t decay_steps = 0;             // length of the final decay; 0: a tenth of total_steps, at least 1
  std::string decay_shape = "linear";  // linear | cosine | exponential | minus_sqrt
  // one_cycle_torch
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
  std::string anneal = "cos";  // cos | linear
  bool three_phase = false;
  // one_cycle_torch, one_cycle
  bool cycle_momentum = true;
  double min_momentum = 0.85, max_momentum = 0.95;
  // DeepSpeed's schedules
  bool ds_exact = false;                              // reproduces DeepSpeed 0.19.6 exactly; false: without its defects
  std::string warmup_type = "log";                    // log | linear
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;  // warmup_cosine: of peak
  int64_t first_steps = 2000, second_steps = -1;      // one_cycle: up, down; second -1: as many as up
  int64_t first_stairs = 0, second_stairs = -1;       // number of stairs, 0: a slope; second -1: as first
  int64_t decay_step_size = 0;                        // after the cycle; 0: no decay
  double decay_lr_rate = 0, decay_mom_rate = 0;
  int64_t range_steps = 2000;  // lr_range_test: start_lr * (1 + range_rate * (t - 1) / range_steps)
  double range_rate = 1;
  bool range_staircase = false;
};

class LrSchedule {
 public:
  virtual ~LrSchedule() = default;
  // Returns learning rate and decays of applied step t. Requires: t >= 1. Thread-safe.
  virtual LrPoint at(int64_t t) const = 0;
};

// Throws kUsage on an unknown type, shape or warm-up type (listing the known ones) and on options that define no curve.
// The message names the config key (schedule.decay_steps).
std::unique_ptr<LrSchedule> make_lr_schedule(const LrOptions&);
std::vector<std::string> lr_schedule_names();

// Returns unexpected properties of DeepSpeed's form of this schedule, one sentence each; empty unless ds_exact.
std::vector<std::string> lr_deviations(const LrOptions&);

}  // namespace gt
