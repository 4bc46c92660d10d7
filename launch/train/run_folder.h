// Folders of a run, locked until it ends.
#pragma once
#include <memory>

#include "checkpoint/store/dir_lock.h"
#include "launch/ranks/run_file.h"
#include "launch/train/rank_context.h"

namespace gt {

class RunFolder {
 public:
  // Collective. Rank 0 creates the run's folder and locks it; with `saves` also that of the checkpoints, which must be
  // visible to every rank. Throws AgreedError kUsage if the folder holds another run or is unusable.
  RunFolder(const RankContext&, bool force, bool saves);

  // Collective. Call after every other check that may reject the run: a rejected command leaves config.json unchanged.
  // `step`: step before the run's first. `checkpoint_bytes`: size of one checkpoint; -1: none will be written. Throws
  // AgreedError kIo if not even the first one fits.
  void begin(const RankContext&, int64_t step, int64_t checkpoint_bytes) const;

  const DirLock* lock() const { return lock_.get(); }  // of the checkpoints; nullptr: not held by this rank

 private:
  std::unique_ptr<RunLock> run_lock_;
  std::unique_ptr<DirLock> lock_;
};

}  // namespace gt
