// Handles faulty steps: spikes and non-finite values (step_guard.h, skip_watch.h), differing replicas and repeated
// steps (replica_check.h), rollbacks. Also injects faults, for tests.
#pragma once
#include <memory>
#include <string>

#include "launch/engine/inject.h"
#include "launch/engine/measure/op_watch.h"
#include "launch/engine/step_guard.h"
#include "launch/train/fault/skip_watch.h"
#include "launch/train/run_reporter.h"
#include "launch/train/run_state.h"
#include "launch/train/save/run_saver.h"

namespace gt {

class FaultPolicy {
 public:
  // All must outlive this object. Collective: throws AgreedError kUsage if fault.inject names a tensor that no rank
  // has.
  FaultPolicy(const RankContext&, Engine&, OpWatch&, RunLoader&, RunState&, RunReporter&, RunSaver&);

  // Collective, before the first step, after RunState::open: restores the checkpoint's record of earlier steps.
  void begin();
  void begin_step();              // injects faults before the next step; may not return
  bool injects_into_ops() const;  // in the next step
  // Collective: runs the engine's step on the loader's batch; every fault.recheck_every steps twice, unless `once`.
  StepResult run_step(bool once);
  // Collective, after the state has advanced. Throws kNumerical after too many consecutive steps with non-finite
  // gradients.
  void check_step(const StepResult&);
  // Collective: reports an anomalous step. If required, rolls back to an older checkpoint, or throws AgreedError
  // kNumerical if there is none or fault.max_rollbacks is exhausted.
  void react();
  // Collective, at most once per step. Throws AgreedError kHardware if replicas differ.
  void check_replicas();
  void inject_at_save() const { injector_.at_save(state_->step); }

  std::string json() const { return guard_.json(); }  // for checkpoints: TrainState::anomaly_json
  int64_t consecutive_skips() const { return skips_->in_a_row(); }
  int64_t spikes_taken() const { return guard_.spikes_taken(); }

 private:
  void require_targets() const;
  void watch_steps();
  StepResult run_without_update();
  std::string name_bad_values();
  int64_t rollback_target(int64_t below) const;
  LoadReport load_older(const std::string& why);
  void roll_back();
  const RankContext& rank_;
  const Config& config_;
  Engine& engine_;
  OpWatch& ops_;
  RunLoader& loader_;
  RunState& state_;
  RunReporter& report_;
  RunSaver& saver_;
  StepGuard guard_;
  const Injector injector_;
  std::unique_ptr<SkipWatch> skips_;
  LossScaleState scale_before_;    // before the last step
  int64_t replicas_checked_ = -1;  // after this step
  int64_t named_ = 0;              // number of searches for non-finite values
  int64_t spikes_reported_ = 0;    // spikes reported with a line of their own
};

}  // namespace gt
