// Saving while training goes on. The training thread copies what is to be written (the stall), one thread a rank
// writes, and when every rank has written rank 0's thread commits. The threads know files only: ranks agree on the
// training thread, through a flag that travels with what a step exchanges anyway. A failure drops the attempt on every
// rank and ends nothing.
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
  SaveReport report;           // of a save that was committed; seconds: from start() to the commit on disk
  std::optional<Error> error;  // the same on every rank; nothing was committed
};

class BackgroundSave {
 public:
  BackgroundSave(Vfs&, const Mesh&, const DeviceApi&, Stream);
  ~BackgroundSave();  // waits for this rank's thread; an attempt that was not finished() is not committed

  bool busy() const { return phase_ != Phase::kIdle; }
  int64_t step() const { return step_; }  // of the attempt under way
  int64_t staging_bytes() const { return staging_.bytes(); }
  // Gets memory for copies of so many bytes, all of it touched, so that the first save neither waits for it nor fails.
  void reserve(int64_t bytes);

  // Collective; not while busy. Returns when the copy is made. An error before that (the folder cannot be made) is
  // returned like one of advance().
  std::optional<SaveOutcome> start(const std::string& dir, const TrainState&, std::span<const ShardView>,
                                   std::vector<AuxFile>, const SaveOptions&);

  // This rank has done its part of the phase under way. When a step's exchange says that all ranks have, every one of
  // them must call advance() before the next step.
  bool ready() const { return busy() && done_.load(std::memory_order_acquire); }
  // Collective. Goes to the next phase; the outcome when the attempt is over.
  std::optional<SaveOutcome> advance();
  // Collective. Waits until nothing is under way.
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
  std::optional<Error> failure_;  // of the thread; read after join()
  SaveReport report_;             // of rank 0's thread; read after join()
};

}  // namespace gt
