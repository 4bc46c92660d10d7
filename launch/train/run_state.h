// The progress of a run, which its checkpoints hold beside tensors: counters, positions of data and schedules, best
// loss. Begins afresh, or where a checkpoint ends.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "launch/train/run_loader.h"

namespace gt {

class RunState {
 public:
  // All outlive this object.
  RunState(const RankContext&, Engine&, RunLoader&);

  // Collective, once. Fills the engine and opens the loader: from a checkpoint of the run's own, else from parts of
  // checkpoint.load_from, else afresh. Throws AgreedError kUsage where the run would not continue what it finds.
  void open();
  // Collective. Fills the engine's tensors from a checkpoint of the run's own: "auto" or a step, as load_checkpoint.
  std::optional<LoadReport> load(const std::string& which) const;
  // After load(): the run continues from there, without the samples `skip`.
  void return_to(const TrainState&, RunLoader::Window skip);

  // A step is over, on the loader's last batch.
  void advance(const StepResult&);
  void evaluated(double loss);
  // What a checkpoint of now holds. `anomaly_json`, `consecutive_skips`: of FaultPolicy.
  const TrainState& to_save(std::string anomaly_json, int64_t consecutive_skips);

  const TrainState* operator->() const { return &state_; }
  int64_t first_step() const { return first_step_; }                   // that this process runs
  double elapsed_seconds() const;                                      // of the run, earlier processes included
  const std::optional<LoadReport>& loaded() const { return loaded_; }  // by open(); nullopt: nothing
  bool resumed() const { return resumed_; }                            // by open(), from a checkpoint of its own
  const std::vector<std::string>& notes() const { return notes_; }     // about that, for the start block

 private:
  LoadReport load_elsewhere();
  void check_unused_load_from();
  void begin_curriculum();
  void continue_from(const TrainState&);
  void note_changes();
  void note_schedule_change();
  const RankContext& rank_;
  const Config& config_;
  Engine& engine_;
  RunLoader& loader_;
  TrainState state_;
  std::optional<LoadReport> loaded_;
  bool resumed_ = false;
  std::vector<std::string> notes_;
  int64_t first_step_ = 1;
  double started_;  // now() from which elapsed_seconds is still to count
};

}  // namespace gt
