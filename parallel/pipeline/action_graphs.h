// Compute actions of a rank as device graphs (kernels/replay.h). Per-microbatch inputs are copied to the activation
// slot before its forward: tokens, targets, the ordinal of the first sample, and the loss's upstream gradient if it
// varies. All microbatches of a slot then read them at the same addresses and make the same calls.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "kernels/core/batch.h"
#include "kernels/core/host_array.h"
#include "kernels/core/memory.h"
#include "kernels/replay.h"
#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {

// Identifies actions, `act` to `to` of one microbatch, that make the same calls. Addresses outside the slot are part of
// the key. `pool`: addresses of live gradients (Pool::fingerprint), which determine later allocations. `parameters`:
// GradHooks::fingerprint, such as which gradients have been written.
struct ActionKey {
  Act act = Act::kForward, to = Act::kForward;
  int stage = 0, slot = 0;
  const void *x = nullptr, *dy = nullptr;
  uint64_t pool = 0, parameters = 0;
  friend bool operator==(const ActionKey&, const ActionKey&) = default;
};

class ActionGraphs {
 public:
  // `recorder`: the recording backend (replayable()). Backend::replays, read before every run, enables recording.
  ActionGraphs(const Backend& recorder, Stream, int slots);
  ~ActionGraphs();

  // Begins a run of these microbatches. If their shapes differ, the actions of this run are queued eagerly.
  void begin_run(std::span<const MicroBatch>);
  void end_run();
  // Returns microbatch k as the stage reads it in this slot, and queues the copies that put it there.
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
  const Backend& recorder_;
  const Stream stream_;
  const int slots_;
  std::vector<std::unique_ptr<Entry>> entries_;
  Buffer inputs_;  // of all slots
  int64_t slot_bytes_ = 0, batch_ = 0, seq_ = 0;
  HostArray<int64_t> ordinals_;  // of the running step's microbatches
  Event read_;                   // recorded once the device has read ordinals_
  bool on_ = false, seeds_differ_ = false;
  std::string why_;  // why graphs are off; empty: on, or disabled by the caller
  ReplayCounts counts_;
};

}  // namespace gt
