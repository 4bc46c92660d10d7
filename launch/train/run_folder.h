// The folders of a run, locked for as long as it goes on.
#pragma once
#include <memory>

#include "checkpoint/dir_lock.h"
#include "launch/ranks/run_file.h"
#include "launch/train/rank_context.h"

namespace gt {

class RunFolder {
 public:
  // Collective. Rank 0 makes the run's folder and takes its lock; `saves`: that of the checkpoints too, which every
  // rank must see. Throws AgreedError kUsage where the folder holds another run or cannot be used.
  RunFolder(const RankContext&, bool force, bool saves);

  // Collective, after everything else that may refuse the run: a refused command leaves config.json as it was.
  // `step`: that the run begins after. `checkpoint_bytes`: of one checkpoint; -1: there will be none. Throws
  // AgreedError kIo where not even the first one has room.
  void begin(const RankContext&, int64_t step, int64_t checkpoint_bytes) const;

  const DirLock* lock() const { return lock_.get(); }  // of the checkpoints; nullptr: this rank has none

 private:
  std::unique_ptr<RunLock> run_lock_;
  std::unique_ptr<DirLock> lock_;
};

}  // namespace gt
