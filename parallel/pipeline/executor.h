// Runs this rank's Program of a Schedule: one switch, one case per action, no schedule-specific code. Owns the state of
// microbatches in flight: arenas, tapes, boundary buffers. Independent of models and ZeRO stages.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "kernels/core/batch.h"
#include "kernels/core/stream_clock.h"
#include "kernels/replay.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/pipeline_schedule.h"
#include "parallel/pipeline/preamble.h"

namespace gt {

// One model chunk (virtual stage); implemented by model/.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  // Shape of the tensors sent between stages; the same for every stage of a model, including the last.
  virtual Shape boundary(const MicroBatch&) const = 0;
  virtual DType boundary_dtype() const { return DType::kF32; }
  // True if every tp rank holds the same boundary tensor. Each then sends 1/tp of its elements and the receiver
  // all-gathers over tp: the slow links between stages carry each element once. A tensor that tp does not divide is
  // sent whole by every tp rank.
  virtual bool boundary_replicated() const { return false; }
  // `input` is empty (id -1, no data) on the first stage. Returns the boundary tensor or, on the last stage, the sum of
  // a loss, f64, with which the backward starts. Writes the sum of each of losses() to MicroBatch::sums.
  virtual Var forward(Tape&, Var input, const MicroBatch&) = 0;
  // Indices of the losses that this stage computes, ascending; those that a forward does not write are 0.
  virtual std::span<const int> losses() const { return {}; }
};

// Callbacks into the parameter store (parallel/zero), so that neither includes the other.
struct GradHooks {
  std::function<void(int stage, int microbatch, bool last)> begin_backward;  // `last`: of this stage in this step
  std::function<void(int stage)> reduce_grads;                               // G: all gradients of the stage are final
  std::function<void()> reduce_tied;                                         // T
  std::function<uint64_t(int stage)> fingerprint;  // actions of the stage make other calls if it changes; may be empty
};

// Bytes to reserve for one rank: measured by a dry run on the null backend (plan_memory), or generous for small tests.
struct ExecutorMemory {
  int64_t activation_bytes = 0;  // one microbatch slot's arena
  int64_t gradient_bytes = 0;    // the pool of activation gradients
  int64_t boundary_bytes = 0;    // receive buffers of all slots; 0: sized by the executor in the first run
};

// Seconds that this rank's thread spent in collective calls and waits.
struct Collectives {
  double tp = 0;                       // of the tensor-parallel group
  double gathers = 0, reductions = 0;  // of the data-parallel group
  double total() const { return tp + gathers + reductions; }
};

// One executed action, for bubble, timeline and trace; times are those of its work on the stream (StreamClock).
// Compute: from begin to end, with the memory in use. Actions queued as one graph are one entry: the first action and
// the Act of the last. Send: the call, and a second entry if the executor had to wait for it. Receive: the time blocked
// on it (none if it had arrived). G and T: the hook's call.
struct ActionTime {
  Action action;
  Act last;                      // action.act unless several actions were queued together
  double begin, end;             // seconds since the start of the run
  int64_t bytes = 0;             // sent, or received at the end of the wait
  int live = 0;                  // compute: microbatches in flight on this rank, this one included
  int64_t activation_bytes = 0;  // compute: in use by all slots' arenas at its end (B: before its release)
  Collectives inside;            // compute: the part spent in collectives; 0 (unknown) on asynchronous devices
};

class PipelineExecutor {
 public:
  // local_stages[c] is virtual stage c * p + pp rank. Simulates the schedule and throws if it is invalid. `replayed`:
  // the recording wrapper (replayable(), kernels/replay.h) of a backend with graphs, whose tables the other two are:
  // compute actions become graphs.
  PipelineExecutor(PipelineSchedule, std::vector<PipelineStage*> local_stages, const Mesh&, const OpTable&,
                   const DeviceApi&, Stream compute, ExecutorMemory, BoundaryOptions = {},
                   const Backend* replayed = nullptr);
  ~PipelineExecutor();

  // Runs one step's microbatches (schedule.microbatches of them). losses: f64 [losses, microbatches] on the device,
  // receives the sums of this rank's PipelineStage::losses(); others are left unchanged. hits: likewise, may be empty.
  // With a schedule without backward actions nothing is recorded. All microbatches must have one boundary shape, that
  // of the first run, unless dynamic_shapes or shapes_differ_between_runs. Returns with every message sent. After an
  // exception the executor must not be used again.
  void run(std::span<const MicroBatch>, Tensor losses, const GradHooks&, Tensor hits = {});

  const PipelineSchedule& schedule() const;
  int slots() const;                      // microbatch slots allocated: peak_in_flight of this rank (simulate())
  int peak_live() const;                  // peak of microbatches in flight in the last run
  int64_t activation_high_water() const;  // bytes, the largest slot
  int64_t gradient_high_water() const;    // bytes
  int64_t boundary_bytes() const;         // allocated receive buffers; 0 before the first run unless given
  const ReplayCounts& replays() const;    // of compute actions, since construction
  HeldGraphs graphs() const;              // currently held
  const Program& computed() const;        // compute actions of the last run, in order

  // Times of the last run. On an asynchronous device they are valid after settle(). Requires: the run is known to
  // be complete, `clock` is anchored.
  void settle(const StreamClock& clock);
  double started() const;                         // of the last run: seconds of std::chrono::steady_clock
  std::span<const ActionTime> timeline() const;   // compute actions of the last run; storage reused
  std::span<const ActionTime> transfers() const;  // likewise sends, receives and reductions, ordered by time
  double busy_seconds() const;                    // time inside compute actions in the last run, including collectives
  double wait_seconds() const;                    // time blocked in receives and sends in the last run

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
