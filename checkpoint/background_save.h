// Asynchronous saves. The training thread snapshots what is to be written (the stall); one thread per rank writes; once
// every rank has written, rank 0's thread commits. Background threads only touch files: ranks agree on the training
// thread, through a flag that travels with each step's all-reduce. A failure drops the attempt on every rank; training
// continues.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"

namespace gt {

struct SaveOutcome {
  int64_t step = 0;
  SaveReport report;           // of a committed save; seconds: from start() to the commit on disk
  std::optional<Error> error;  // identical on every rank; nothing was committed
};

class BackgroundSave {
 public:
  BackgroundSave(Vfs&, const Mesh&, const DeviceApi&, Stream);
  ~BackgroundSave();  // joins this rank's thread; an attempt without finish() is not committed

  bool busy() const { return phase_ != Phase::kIdle; }
  int64_t step() const { return step_; }  // step of the attempt in progress
  int64_t staging_bytes() const { return staging_.bytes(); }
  // Allocates and touches staging memory of `bytes`, so the first save neither waits for it nor fails.
  void reserve(int64_t bytes);

  // Starts a save and returns once the snapshot is complete. Collective. Requires: !busy(). Earlier errors (the folder
  // cannot be created) are returned like those of advance().
  std::optional<SaveOutcome> start(const std::string& dir, const TrainState&, std::span<const ShardView>,
                                   std::vector<AuxFile>, const SaveOptions&);

  // Returns whether this rank has finished the current phase. Once the step's exchange reports that all ranks have,
  // every rank must call advance() before the next step.
  bool ready() const { return busy() && done_.load(std::memory_order_acquire); }
  // Enters the next phase. Collective. Returns the outcome when the attempt is over.
  std::optional<SaveOutcome> advance();
  // Waits until no save is in progress. Collective.
  std::optional<SaveOutcome> finish();

 private:
  enum class Phase { kIdle, kWriting, kCommitting };
  template <class Body>
  void launch(Body);
  SaveOutcome drop(const Error&);
  void join();

  Vfs& vfs_;
  const Mesh& mesh_;
  const DeviceApi& api_;
  const Stream stream_;
  Staging staging_;
  Phase phase_ = Phase::kIdle;
  int64_t step_ = -1;
  double begin_ = 0;
  std::unique_ptr<SaveAttempt> attempt_;
  std::vector<AuxFile> aux_;
  std::thread thread_;
  std::atomic<bool> done_{false};
  std::optional<Error> failure_;  // set by the thread; read after join()
  SaveReport report_;             // set by rank 0's thread; read after join()
};

}  // namespace gt
