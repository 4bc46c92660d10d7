// Copies of a run's state in the machines' memory (checkpoint/store/peer_copies.h), where fault.peer_copies requests
// them and a supervisor restarts the job.
#pragma once
#include <optional>
#include <string>

#include "checkpoint/store/peer_copies.h"
#include "launch/engine/engine.h"
#include "launch/observe/metrics.h"
#include "launch/train/rank_context.h"

namespace gt {

class RunCopies {
 public:
  // Collective. Both must outlive this object. Throws AgreedError kUsage if a machine lacks the memory.
  RunCopies(const RankContext&, const Engine&);
  void set_log(MetricsWriter* log) { log_ = log; }  // rank 0's; nullptr: no output

  // Collective. Loads the engine's tensors from the copies of earlier attempts if they are of a later step than the
  // newest checkpoint; nullopt: they are not, or there are none. Damaged copies are not used, and `note` reports it.
  std::optional<PeerCopies::Restored> restore(std::string& note);
  bool due(int64_t step) const;  // after this step
  void keep(const TrainState&);  // collective
  void discard();                // the run's state is on disk
  std::string describe() const;  // for the start block; "": no copies

 private:
  const RankContext& rank_;
  const Engine& engine_;
  MetricsWriter* log_ = nullptr;
  std::optional<PeerCopies> copies_;
  bool restores_ = false;
};

}  // namespace gt
