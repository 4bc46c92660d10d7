// Training run of one rank: open, then steps, evaluations and checkpoints until train.steps or a stop. One Trainer per
// rank; rank 0 also prints and writes the files. Engine::step runs a step; the members handle everything around it.
#pragma once
#include <optional>

#include "launch/train/fault/fault_policy.h"
#include "launch/train/range_test.h"
#include "launch/train/run_folder.h"

namespace gt {

class Trainer {
 public:
  // Collective: every rank of the factory's world constructs its Trainer with the same run.
  Trainer(const TrainRun&, GroupFactory&);
  // Returns kOk, or kInterrupted after a stop with a saved checkpoint. Throws AgreedError (kIo, kNumerical) if the last
  // step is not on disk.
  Exit run();

 private:
  void open();
  void open_kept_files();
  void one_step();
  void after_step();
  void evaluate();
  void save(bool must);
  std::optional<Error> unsaved(bool done) const;
  bool finished() const { return state_->step >= config_.train.steps; }
  const TrainRun run_;
  const Config& config_;
  RankContext rank_;
  RunFolder folder_;
  RunDatasets data_;
  std::vector<AuxFile> kept_files_;  // of every checkpoint; on rank 0
  OpWatch ops_;                      // between the engine and its backend
  Engine engine_;
  RunLoader loader_;
  RunState state_;
  RunReporter report_;
  RunSaver saver_;
  std::optional<RunCopies> copies_;  // after open()
  FaultPolicy faults_;
  std::optional<RangeTest> range_test_;
  bool stop_ = false, save_due_ = false;  // requested by any rank with the last step
};

}  // namespace gt
