// Samples to device microbatches, ahead of the step that needs them: a reader thread gathers into host slots, a stream
// of its own copies them to the device, the compute stream waits on an event. Which samples a step has depends on
// consumed samples alone, never on dp or micro_batch. Knows no mesh: it is told (dp_rank, dp_size).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "data/curriculum.h"
#include "data/dataset.h"
#include "kernels/core/batch.h"
#include "kernels/core/device.h"

namespace gt {

struct LoaderConfig {
  int64_t seq = 1024;
  int64_t micro_batch = 1;  // sequences of one microbatch
  int microbatches = 1;     // of a step, on this rank
  int dp_rank = 0, dp_size = 1;
  bool need_tokens = true;     // first pipeline stage
  bool need_targets = true;    // last pipeline stage; a rank that needs neither reads nothing
  int64_t first_sample = 0;    // where to begin: samples consumed so far
  int prefetch = 2;            // steps read ahead
  Curriculum curriculum;       // how many tokens of each sample a step takes; off: all
  int64_t first_step = 1;      // number of the step that is read first: what the curriculum goes by
  bool eod_mask_loss = false;  // targets equal to eod carry no loss
  int32_t eod = -1;
  int64_t total_samples =
      0;  // evaluation over a whole split: ordinals from here on are masked, and next() ends; 0: endless
  std::vector<std::pair<int64_t, int64_t>> skip_windows;  // a step that would begin inside [first, last) begins at last
  double test_read_ms = 0;                                // test hook: the reader takes this much longer a step
};

class Loader {
 public:
  // `compute`: the stream whose work uses the microbatches. Everything is allocated here. Throws kUsage for bad
  // numbers.
  Loader(const Dataset& dataset, const LoaderConfig& config, Device device, const DeviceApi& api, Stream compute);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The microbatches of the next step: tokens and targets are [micro_batch, seq] i32 on the device (seq: as many as the
  // curriculum says), empty where not needed; batch, seq, first_sample and loss_tokens are filled, loss_seed is not.
  // Microbatch k holds ordinals base + (k dp_size + dp_rank) b … + b - 1 with base = consumed() before the call. Valid
  // until the next call; work queued on `compute` before that call is safe. Empty when total_samples are done. Rethrows
  // what the reader met.
  std::span<const MicroBatch> next();

  // Goes to another ordinal, and to the first step: what was read ahead is dropped. Evaluation calls restore(0) before
  // every pass.
  void restore(int64_t first_sample);

  int64_t consumed() const;  // samples of all dp ranks in the steps that next() has returned (and skipped windows)
  // Unmasked targets of this rank's microbatches of the last step; -1 on a rank without targets when EOD is masked.
  int64_t step_tokens() const;
  double wait_seconds() const;  // time that next() has waited for the reader, in all
  double read_seconds() const;  // time the reader has worked, in all

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
