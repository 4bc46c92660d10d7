// Values exchanged by all ranks in the middle of a step: one f64 vector, summed by one all-reduce over the world.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/host_array.h"
#include "kernels/core/memory.h"
#include "launch/engine/measure/step_times.h"
#include "parallel/mesh.h"

namespace gt {

// Control flags of one rank in a step. `stop` or `save_due` of any rank applies to all; `save_ready` is counted.
struct ControlFlags {
  bool stop = false;        // end the run after this step
  bool save_ready = false;  // this rank's part of a checkpoint is written
  bool save_due = false;    // this rank's clock is due for a checkpoint
};

class StepExchange {
 public:
  // Layout of the vector, in this order. Every norm (of one shard) and every loss has one writer, so that the sums do
  // not depend on the pipeline layout.
  enum class Field : uint8_t {
    kNormSquares,   // [FSDP units]: squared gradient norms
    kReplicaCheck,  // [1]: see ParamStore::norm_squares
    kLosses,   // [losses microbatches dp]: sum of loss i of microbatch k of dp rank d at (i microbatches + k) dp + d
    kFlags,    // [3]: number of ranks that set each of ControlFlags
    kTimes,    // [pp kNumStageTimes]: mean over the replicas of each pipeline rank
    kTargets,  // [microbatches dp]: targets that carry loss; empty unless the constructor enables it
  };

  struct Sizes {
    int units = 0, losses = 0, microbatches = 0;  // FSDP units and loss sums of the model; microbatches of a rank
    bool targets = false;                         // put() gets the targets of each microbatch
  };
  // own: the losses that the stages of this pipeline rank compute, by index.
  StepExchange(const Sizes&, std::vector<int> own, const Mesh&, const Backend&, Stream);
  ~StepExchange();
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  Tensor on_device(Field f) const { return on_device(f, f); }
  Tensor on_device(Field first, Field last) const;

  // Queues the host's part of the vector, after kReplicaCheck: flags and times of this rank, targets of its
  // microbatches.
  void put(const ControlFlags&, const Timers& own, std::span<const double> targets);
  // Collective over the world: adds this rank's own of losses, f64 [losses, microbatches] on the device, and sums the
  // vector.
  void all_reduce(Tensor losses);
  void fetch();  // queues the copy to the host
  void await();  // waits for the latest fetch(), and thereby for every device-to-host copy queued before it

  // Returns sums over the world; valid from await() to the next fetch().
  std::span<const double> on_host(Field) const;
  // What losses [first, first + count) contribute to the objective. shares: those of all losses (gt::mean_loss).
  double mean_loss(std::span<const double> shares, size_t first, size_t count) const;
  bool stop() const { return on_host(Field::kFlags)[0] > 0; }
  int save_ready() const { return static_cast<int>(on_host(Field::kFlags)[1]); }  // ranks
  bool save_due() const { return on_host(Field::kFlags)[2] > 0; }
  StepTimes times() const { return StepTimes(on_host(Field::kTimes)); }

  int64_t bytes() const { return sums_.bytes(); }  // of device memory

 private:
  static constexpr size_t kNumFields = 6;
  int64_t begin(Field f) const { return first_[static_cast<size_t>(f)]; }
  int64_t end(Field f) const { return first_[static_cast<size_t>(f) + 1]; }
  double* staged(Field f) const { return staged_.data() + (begin(f) - begin(Field::kLosses)); }
  const Mesh& mesh_;
  const Backend& backend_;
  const Stream stream_;
  const Sizes sizes_;
  const std::vector<int> own_;
  std::array<int64_t, kNumFields + 1> first_{};  // element of each field, and the end
  Buffer sums_;
  HostArray<double> host_;    // copied from the device
  HostArray<double> staged_;  // copied to the device: from kLosses on
  Event read_;
};

}  // namespace gt
