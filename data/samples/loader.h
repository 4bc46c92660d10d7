// Prefetches samples into device microbatches: a reader thread gathers into host slots, a separate stream copies them
// to the device, the compute stream waits on an event. The samples of a step depend only on consumed samples, never on
// dp or micro_batch. Independent of the mesh: takes (dp_rank, dp_size).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "data/samples/curriculum.h"
#include "data/samples/dataset.h"
#include "kernels/core/batch.h"
#include "kernels/core/device.h"

namespace gt {

struct LoaderConfig {
  int64_t seq = 1024;
  int64_t micro_batch = 1;  // sequences per microbatch
  int microbatches = 1;     // per step, on this rank
  int dp_rank = 0, dp_size = 1;
  bool need_tokens = true;  // first pipeline stage
  bool need_targets =
      true;  // last pipeline stage; a rank that needs neither reads nothing but lengths of sentence pairs
  int64_t first_sample = 0;    // start ordinal: samples consumed so far
  int prefetch = 2;            // steps read ahead
  Curriculum curriculum;       // tokens per sample of each step; off: all
  int64_t first_step = 1;      // index of the first step read; drives the curriculum
  bool documents = false;      // positions restart at each document, whose first token is not a target; all ranks read
  bool eod_mask_loss = false;  // targets equal to eod carry no loss
  int32_t eod = -1;
  int64_t total_samples = 0;  // evaluation of a whole split: ordinals beyond are masked, then next() ends; 0: endless
  std::vector<std::pair<int64_t, int64_t>> skip_windows;  // a step that would begin inside [first, last) begins at last
};

class Loader {
 public:
  // `compute`: stream of the work that uses the microbatches. Allocates everything. Throws kUsage for invalid values.
  Loader(const Dataset& dataset, const LoaderConfig& config, Device device, const DeviceApi& api, Stream compute);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the microbatches of the next step: tokens and targets [micro_batch, seq] i32 on the device (seq as set by
  // the curriculum), empty where not needed; of sentence pairs also types beside tokens, pairs beside targets, and
  // lengths everywhere. Sets batch, seq, first_sample and loss_tokens, not dloss. Microbatch k holds ordinals base
  // + (k dp_size + dp_rank) b ... + b - 1 with base = consumed() before the call. Valid until the next call; work
  // queued on `compute` before that call is safe. Empty once total_samples are done. Rethrows errors of the reader.
  std::span<const MicroBatch> next();

  // Seeks to another ordinal, and to the first step; drops prefetched steps. Evaluation calls restore(0) before every
  // pass.
  void restore(int64_t first_sample);

  int64_t consumed() const;  // samples of all dp ranks in the steps returned by next() (and skipped windows)
  // Unmasked targets of this rank in the last step; -1 on a rank without targets when they must be counted.
  int64_t step_tokens() const;
  bool masks() const;           // some targets may carry no loss; the same on every rank
  double wait_seconds() const;  // total time that next() waited for the reader

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
