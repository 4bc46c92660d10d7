// The checkpoints of a run: when a save may start, whether it runs in the background, what is logged of it. Owns the
// lock of the folder. A save that fails is reported and never ends training, unless checkpoint.fail_policy says so.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/background_save.h"
#include "checkpoint/dir_lock.h"
#include "kernels/backend.h"
#include "kernels/core/host.h"
#include "launch/config/config.h"
#include "launch/engine/step_exchange.h"
#include "launch/observe/metrics.h"
#include "launch/train/save_timer.h"

namespace gt {

class RunSaver {
 public:
  RunSaver(const Config&, const Mesh&, const Backend&, Stream);
  void set_log(MetricsWriter* log) { log_ = log; }      // rank 0's; null: says nothing
  void set_lock(const DirLock* lock) { lock_ = lock; }  // rank 0's; null: has none

  // Collective, once, before training: decides whether saves run in the background, and gets the memory that they need.
  // `fits`: of this machine, for staging_bytes auto. Nothing is taken when the run will not save.
  void prepare(const std::vector<ShardView>&, bool fits, bool will_save);
  std::string describe() const;                                   // for the start block: when, how
  int64_t checkpoint_bytes() const { return checkpoint_bytes_; }  // of one step, all ranks; after prepare()

  // Rank 0's clock says that it is time; the other ranks never do. To be told to all in the next step.
  bool due() const { return timer_ && mesh_.rank() == 0 && !background_.busy() && timer_->due(now()); }

  // Collective. Writes, or begins to. `must`: the last one of a run, never skipped. Throws AgreedError for errors other
  // than failed I/O and values that are not finite; kIo when another job has taken the folder over, and after the third
  // failure in a row under fail_policy abort.
  void save(const TrainState&, const std::vector<ShardView>&, std::vector<AuxFile>, bool must);

  bool ready() const { return background_.ready(); }  // to be told to the other ranks in the next step
  ControlFlags requests() const;                      // of this rank with the next step: stop after a signal, saves
  // Collective, after each step: `ready_ranks` is how many said so.
  void after_step(int ready_ranks);
  // Collective: waits for what is under way.
  void finish();

  int64_t saved_step() const { return saved_step_; }  // newest committed by this run, or resumed from; -1: none
  void set_saved_step(int64_t step) { saved_step_ = step; }
  // Of the newest save, when it failed; the same on every rank.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  // A commit waits so long for the records of the steps before it: a terminal that stands still stops no checkpoint.
  static constexpr std::chrono::seconds kFlushLimit{10};
  static constexpr int kMostFailures = 3;  // in a row, under fail_policy abort
  void settle(const SaveOutcome&);
  bool ranks_agree(const TrainState&);
  SaveOptions options() const;
  const Config& config_;
  const Mesh& mesh_;
  const Backend& backend_;
  const Stream stream_;
  MetricsWriter* log_ = nullptr;
  const DirLock* lock_ = nullptr;
  Vfs vfs_;
  BackgroundSave background_;
  std::optional<SaveTimer> timer_;  // nullopt: saves are due by steps
  bool staged_ = false;             // saves run in the background
  int64_t snapshot_bytes_ = 0;      // of the rank with the most
  int64_t checkpoint_bytes_ = 0;    // of all ranks
  double stall_ = 0;                // of the attempt under way
  int64_t saved_step_ = -1;
  int failures_ = 0;  // in a row
  std::optional<Error> last_error_;
};

// When and how checkpoints are written, for the start block. `staged`: from a copy in memory, of `bytes` a rank.
std::string save_text(const CheckpointConfig&, int world, bool staged, int64_t bytes);

// Whether a rank may keep a copy of `bytes`, by checkpoint.staging_bytes or, with auto, by the machine's memory.
bool copy_fits(const CheckpointConfig&, int64_t bytes, bool fits_memory);

// Keys whose change at a resume changes nothing (data has a check of its own, the cursor) that is computed, or only
// how: layouts, folders, logs, devices, the number of steps, how often something is looked at. Everything else must be
// as it was unless `allowed` names it: an exact key ("optim.lr") or a section ("optim"). One line a difference:
// "optim.lr: 0.001 in the checkpoint, 0.002 now".
std::vector<std::string> changed_keys(const std::string& saved_config_json, const Config& now,
                                      const std::vector<std::string>& allowed);

}  // namespace gt
