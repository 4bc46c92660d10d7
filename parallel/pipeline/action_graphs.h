// A rank's compute actions as graphs of the device (kernels/replay.h). What changes from microbatch to microbatch is
// brought to the activation slot before its forward: tokens, targets, the loss's seed where microbatches have their own,
// and the ordinal of the first sample are then found at addresses of the slot, so that all microbatches of a slot make
// the same calls.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/batch.h"
#include "kernels/core/host_array.h"
#include "kernels/core/memory.h"
#include "kernels/replay.h"
#include "parallel/pipeline/schedule.h"

namespace gt {

// Which actions, `act` to `to` of one microbatch, make the same calls. Addresses that are not of the slot take part as
// they are; `pool`: where the gradients that are alive lie (Pool::fingerprint), for it decides where others will;
// `parameters`: who has written their gradients, and whatever else GradHooks::fingerprint tells of them.
struct ActionKey {
  Act act = Act::kForward, to = Act::kForward;
  int stage = 0, slot = 0;
  const void *x = nullptr, *dy = nullptr;
  uint64_t pool = 0, parameters = 0;
  friend bool operator==(const ActionKey&, const ActionKey&) = default;
};

class ActionGraphs {
 public:
  // `twin`: replayable(). Before every run it is asked whether its calls may be recorded (Backend::replays).
  ActionGraphs(const Backend& twin, Stream, int slots);
  ~ActionGraphs();

  // A run of these microbatches begins, whose actions are all as big as each other; false: they run as ever.
  void begin_run(std::span<const MicroBatch>);
  void end_run();
  // Microbatch k as the stage is to see it in this slot. Queues the copies that bring it there.
  MicroBatch bring(int slot, int k, const MicroBatch&);

  template <class Work>
  void run(const ActionKey& key, Work work) {
    if (Recording* r = recording(key); r != nullptr) return r->run(counts_, work);
    if (!why_.empty()) ++counts_.eager, counts_.why = why_;
    work();
  }
  const ReplayCounts& counts() const { return counts_; }
  HeldGraphs held() const;

 private:
  struct Entry {
    ActionKey key;
    Recording recording;
  };
  Recording* recording(const ActionKey&);
  const Backend& twin_;
  const Stream stream_;
  const int slots_;
  std::vector<std::unique_ptr<Entry>> entries_;
  Buffer inputs_;  // of all slots
  int64_t slot_bytes_ = 0, batch_ = 0, seq_ = 0;
  HostArray<int64_t> ordinals_;  // of the running step's microbatches
  Event read_;                   // the device has read ordinals_
  bool on_ = false, seeds_differ_ = false;
  std::string why_;  // not on; empty: as was asked for
  ReplayCounts counts_;
};

}  // namespace gt
