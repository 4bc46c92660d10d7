// Checkpoints of a run: when to save, whether in the background, and what to log. Holds the lock of the folder. A
// failed save is reported and does not end training, unless checkpoint.fail_policy is abort.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/background_save.h"
#include "checkpoint/store/dir_lock.h"
#include "kernels/backend.h"
#include "kernels/core/host.h"
#include "launch/config/config.h"
#include "launch/engine/step_exchange.h"
#include "launch/observe/metrics.h"
#include "launch/train/save/save_timer.h"

namespace gt {

class RunSaver {
 public:
  RunSaver(const Config&, const Mesh&, const Backend&, Stream);
  void set_log(MetricsWriter* log) { log_ = log; }      // rank 0's; nullptr: no output
  void set_lock(const DirLock* lock) { lock_ = lock; }  // rank 0's; nullptr: none

  // Collective, once, before training: decides whether saves run in the background, and allocates their memory. `fits`:
  // of this machine, for staging_bytes auto. Allocates nothing if the run will not save.
  void prepare(const std::vector<ShardView>&, bool fits, bool will_save);
  std::string describe() const;                                   // for the start block: when and how
  int64_t checkpoint_bytes() const { return checkpoint_bytes_; }  // of one step, all ranks; after prepare()

  // Whether a save is due by rank 0's clock; false on other ranks. Passed to all ranks in the next step.
  bool due() const { return timer_ && mesh_.rank() == 0 && !background_.busy() && timer_->due(now()); }

  // Collective. Writes a checkpoint or starts to. `must`: the last one of a run, never skipped. Throws AgreedError for
  // errors other than failed I/O and non-finite values. Throws kIo if another job has taken the folder over, and after
  // the third consecutive failure with fail_policy abort.
  void save(const TrainState&, const std::vector<ShardView>&, std::vector<AuxFile>, bool must);

  bool ready() const { return background_.ready(); }  // passed to the other ranks in the next step
  ControlFlags requests() const;                      // of this rank in the next step: stop after a signal, saves
  // Collective, after each step. `ready_ranks`: number of ranks that set save_ready.
  void after_step(int ready_ranks);
  // Collective: waits for pending saves.
  void finish();

  int64_t saved_step() const { return saved_step_; }  // newest committed by this run, or resumed from; -1: none
  void set_saved_step(int64_t step) { saved_step_ = step; }
  // Error of the latest save, if it failed; the same on every rank.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  // Time limit of a commit for the records of earlier steps: a blocked terminal must not stop checkpoints.
  static constexpr std::chrono::seconds kFlushLimit{10};
  static constexpr int kMostFailures = 3;  // consecutive, with fail_policy abort
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
  std::optional<SaveTimer> timer_;  // nullopt: saves are due by step
  bool staged_ = false;             // saves run in the background
  int64_t snapshot_bytes_ = 0;      // of the rank with the most
  int64_t checkpoint_bytes_ = 0;    // of all ranks
  double stall_ = 0;                // of the pending save
  int64_t saved_step_ = -1;
  int failures_ = 0;  // consecutive
  std::optional<Error> last_error_;
};

// Returns when and how checkpoints are written, for the start block. `staged`: from a copy in memory, of `bytes` per
// rank.
std::string save_text(const CheckpointConfig&, int world, bool staged, int64_t bytes);

// Returns whether a rank may keep a copy of `bytes`, by checkpoint.staging_bytes or, with auto, by the machine's
// memory.
bool copy_fits(const CheckpointConfig&, int64_t bytes, bool fits_memory);

// Returns the keys that differ in a way that changes results, one line each: "optim.lr: 0.001 in the checkpoint, 0.002
// now". Ignored are layouts, folders, logs, devices, step counts and intervals; data have their own check, the cursor.
// `allowed`: keys that may differ, exact ("optim.lr") or a section ("optim").
std::vector<std::string> changed_keys(const std::string& saved_config_json, const Config& now,
                                      const std::vector<std::string>& allowed);

}  // namespace gt
