// Learning-rate schedules: at(t) is a pure function of the applied step t = 1, 2, …. A resume needs no state, and a
// skipped step does not advance it. Native shapes (lr_native.cpp), PyTorch's one-cycle (lr_one_cycle_torch.cpp) and
// DeepSpeed's five, with or without its defects (lr_deepspeed.cpp): those files have the equations,
// optim/README.md the sources.
#pragma once
#include <array>
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

enum class DecayShape : uint8_t { kLinear, kCosine, kExponential, kMinusSqrt };  // of wsd
enum class Anneal : uint8_t { kCos, kLinear };                                   // of one_cycle_torch
enum class WarmupShape : uint8_t { kLog, kLinear };                              // of DeepSpeed's schedules

constexpr std::array<const char*, 4> names_of(DecayShape) { return {"linear", "cosine", "exponential", "minus_sqrt"}; }
constexpr std::array<const char*, 2> names_of(Anneal) { return {"cos", "linear"}; }
constexpr std::array<const char*, 2> names_of(WarmupShape) { return {"log", "linear"}; }

// Section `schedule` of a run's options, described in fields(), and the values that the run derives.
struct LrOptions {
  std::string type = "cosine";                   // lr_schedule_names()
  double peak = 3e-4, min_lr = 0, start_lr = 0;  // peak: optim.lr
  int64_t warmup_steps = 0, total_steps = 0;
  // If above 0, all lengths count samples, and a step takes this many. An earlier run of this job applied
  // `steps_before` steps of `samples_before` samples, possibly with another batch size. at() still takes steps.
  int64_t samples_per_step = 0, steps_before = 0, samples_before = 0;
  int64_t decay_steps = 0;
  DecayShape decay_shape = DecayShape::kLinear;
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
  Anneal anneal = Anneal::kCos;
  bool three_phase = false, cycle_momentum = true;
  double min_momentum = 0.85, max_momentum = 0.95;
  bool ds_exact = false;  // the values of DeepSpeed 0.19.6; false: without its defects
  WarmupShape warmup_type = WarmupShape::kLog;
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  int64_t first_steps = 2000, second_steps = -1, first_stairs = 0, second_stairs = -1, decay_step_size = 0;
  double decay_lr_rate = 0, decay_mom_rate = 0;
  int64_t range_steps = 2000;
  double range_rate = 1;
  bool range_staircase = false;
  template <class V>
  void fields(V& v) {
    v("type", type,
      "cosine|linear|constant|inverse_sqrt|wsd|one_cycle_torch|one_cycle|warmup|warmup_decay|warmup_cosine|"
      "lr_range_test",
      "learning-rate schedule; `gpttrain lr` plots it");
    v("warmup_steps", warmup_steps, "0.. steps", "warm-up from start_lr to optim.lr");
    v("start_lr", start_lr, "0..100", "learning rate before the warm-up (step 1 is already above it)");
    v("min_lr", min_lr, "0..100", "learning rate at the end of the decay; one_cycle: at both ends of the cycle");
    v("total_steps", total_steps, "0.. steps",
      "length of the curve; 0: train.steps, and one more for a curve that falls to 0");
    v("decay_steps", decay_steps, "0.. steps", "wsd: length of the final decay; 0: a tenth of total_steps");
    v("decay_shape", decay_shape, "", "wsd: shape of the decay");
    v("pct_start", pct_start, ">0..<1", "one_cycle_torch: fraction of the steps in the rise");
    v("anneal", anneal, "", "one_cycle_torch: shape of rise and fall");
    v("div_factor", div_factor, ">0..", "one_cycle_torch: initial lr = optim.lr / this");
    v("final_div_factor", final_div_factor, ">0..", "one_cycle_torch: final lr = initial lr / this");
    v("three_phase", three_phase, "", "one_cycle_torch: fall as long as the rise, then decay to the end");
    v("cycle_momentum", cycle_momentum, "", "one_cycle_torch, one_cycle: momentum (beta1) falls as the rate rises");
    v("min_momentum", min_momentum, "0..<1", "one_cycle_torch, one_cycle: lowest momentum");
    v("max_momentum", max_momentum, "0..<1", "one_cycle_torch, one_cycle: highest momentum");
    v("ds_exact", ds_exact, "", "reproduce DeepSpeed's schedules exactly, defects included");
    v("warmup_type", warmup_type, "", "warmup, warmup_decay, warmup_cosine: shape of the warm-up");
    v("warmup_min_ratio", warmup_min_ratio, "0..1", "warmup_cosine: initial fraction of optim.lr");
    v("cos_min_ratio", cos_min_ratio, "0..1", "warmup_cosine: final fraction of optim.lr");
    v("first_steps", first_steps, "1.. steps", "one_cycle: length of the rise");
    v("second_steps", second_steps, "-1.. steps", "one_cycle: length of the fall; -1: first_steps");
    v("first_stairs", first_stairs, "0..", "one_cycle: stairs of the rise; 0: continuous");
    v("second_stairs", second_stairs, "-1..", "one_cycle: stairs of the fall; -1: first_stairs");
    v("decay_step_size", decay_step_size, "0.. steps",
      "one_cycle: steps per unit of decay after the cycle; 0: no decay");
    v("decay_lr_rate", decay_lr_rate, "0..", "one_cycle: lr = min_lr / (1 + this x units)");
    v("decay_mom_rate", decay_mom_rate, "0..", "one_cycle: decay of momentum per unit (ds_exact: growth)");
    v("range_steps", range_steps, "1.. steps", "lr_range_test: start_lr x (1 + range_rate x step / this)");
    v("range_rate", range_rate, ">0..", "lr_range_test: growth rate");
    v("range_staircase", range_staircase, "", "lr_range_test: in stairs of range_steps");
  }
};

class LrSchedule {
 public:
  virtual ~LrSchedule() = default;
  // Returns learning rate and decays of applied step t. Requires: t >= 1. Thread-safe.
  virtual LrPoint at(int64_t t) const = 0;
  bool varies_momentum() const { return at(1).beta1 != kKeepBeta; }
};

// Throws kUsage on an unknown type, shape or warm-up type (listing the known ones) and on options that define no curve.
// The message names the config key (schedule.decay_steps).
std::unique_ptr<LrSchedule> make_lr_schedule(const LrOptions&);
std::vector<std::string> lr_schedule_names();

// Returns unexpected properties of DeepSpeed's form of this schedule, one sentence each; empty unless ds_exact.
std::vector<std::string> lr_deviations(const LrOptions&);

}  // namespace gt
