// Progress of a run, stored in its checkpoints next to the tensors: counters, data and schedule positions, best loss.
// Initialized from a checkpoint or from scratch.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "launch/train/run_loader.h"
#include "launch/train/save/run_copies.h"

namespace gt {

class RunState {
 public:
  // All must outlive this object.
  RunState(const RankContext&, Engine&, RunLoader&);

  // Collective, once. Initializes engine and loader: from copies in memory or a checkpoint of this run, else from parts
  // of checkpoint.load_from, else from scratch. Throws AgreedError kUsage if the run cannot continue from what it
  // finds.
  void open(RunCopies&);
  // Collective. Loads the engine's tensors from a checkpoint of this run: "auto" or a step, as load_checkpoint.
  std::optional<LoadReport> load(const std::string& which) const;
  // Call after load(): the run continues from there, without the samples `skip`.
  void return_to(const TrainState&, RunLoader::Window skip);

  // Records a step on the loader's last batch.
  void advance(const StepResult&);
  void evaluated(double loss);
  // Returns the state that a checkpoint stores. `anomaly_json`, `consecutive_skips`: of FaultPolicy.
  const TrainState& to_save(std::string anomaly_json, int64_t consecutive_skips);

  const TrainState* operator->() const { return &state_; }
  int64_t first_step() const { return first_step_; }                   // first step that this process runs
  double elapsed_seconds() const;                                      // of the run, including earlier processes
  const std::optional<LoadReport>& loaded() const { return loaded_; }  // by open(); nullopt: nothing
  bool resumed() const { return resumed_; }      // by open(), from a checkpoint or copies of this run
  bool in_memory() const { return in_memory_; }  // by open(), from copies: the step is not on disk
  const std::vector<std::string>& notes() const { return notes_; }  // on the resume, for the start block

 private:
  std::optional<LoadReport> load_copies(RunCopies&);
  LoadReport load_elsewhere();
  std::string imported_floats() const;
  AcceptStep same_run(const std::vector<std::string>& parts) const;
  LoadReport load_floats(const std::string& step, std::vector<ShardView> views, const std::vector<std::string>& parts,
                         FitOptions) const;
  void quantize_from(const std::string& step) const;
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
  bool resumed_ = false, in_memory_ = false;
  std::vector<std::string> notes_;
  int64_t first_step_ = 1;
  double started_;  // now() from which elapsed_seconds has not yet counted
};

}  // namespace gt
