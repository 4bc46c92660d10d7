// Runs this rank's Program of a Schedule. One switch, one case per action; no schedule-specific code.
// Owns what one in-flight microbatch needs: an arena, a tape, boundary buffers. Knows no model and no ZeRO stage.
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
#include "parallel/pipeline/preamble.h"
#include "parallel/pipeline/schedule.h"

namespace gt {

// One model chunk (virtual stage); model/ implements it.
class Stage {
 public:
  virtual ~Stage() = default;
  // Of the tensors that cross between stages; the same for every stage of a model, also the last.
  virtual Shape boundary(const MicroBatch&) const = 0;
  virtual DType boundary_dtype() const { return DType::kF32; }
  // Every tp rank holds the same boundary tensor. Each then sends 1/tp of its elements, which must divide, and the
  // receiver gathers them over tp: the slow links between stages carry each element once.
  virtual bool boundary_replicated() const { return false; }
  // `input` is empty (id -1, no data) on the first stage. Returns the boundary tensor, or on the last stage the loss:
  // f64 [1], the sum of token losses of this microbatch.
  virtual Var forward(Tape&, Var input, const MicroBatch&) = 0;
};

// What the executor tells the parameter store (parallel/zero) about a step, so that neither includes the other.
struct GradHooks {
  std::function<void(int stage, int microbatch, bool last)> begin_backward;  // `last`: of this stage in this step
  std::function<void(int stage)> reduce_grads;                               // G: all gradients of the stage are final
  std::function<void()> reduce_tied;                                         // T
  std::function<uint64_t(int stage)> fingerprint;  // actions of the stage make other calls where it differs; may be empty
};

// Bytes to reserve for one rank: measured by a dry run on the null backend (plan_memory), or generous for small tests.
struct ExecutorMemory {
  int64_t activation_bytes = 0;  // one microbatch slot's arena
  int64_t gradient_bytes = 0;    // the pool of activation gradients
  int64_t boundary_bytes = 0;    // receive and send buffers of all slots; reported, the executor sizes them itself
};

// Seconds that this rank's thread spent in calls and waits of collectives.
struct Collectives {
  double tp = 0;                  // of the tensor-parallel group
  double gathers = 0, reductions = 0;  // of the data-parallel group
  double total() const { return tp + gathers + reductions; }
};

// One executed action, for bubble, timeline and trace: when its work was done on the stream (StreamClock). A compute
// action: from its begin to its end, with what was alive while it ran; actions that were queued as one graph are one
// entry, the first of them and the Act of the last. A send: the call, and once more where the executor had to wait for
// it. A receive: the time blocked on it (none when it had arrived). G and T: the call of the hook.
struct ActionTime {
  Action action;
  Act last;                      // action.act when it was alone
  double begin, end;             // seconds since the start of the run
  int64_t bytes = 0;             // sent, or received when the wait was over
  int live = 0;                  // compute: microbatches in flight on this rank, this one included
  int64_t activation_bytes = 0;  // compute: used of all slots' arenas when it ended (B: before its release)
  Collectives inside;            // compute: what of it was no computing; unknown, 0, where the device is behind
};

class PipelineExecutor {
 public:
  // local_stages[c] is virtual stage c * p + pp rank. The schedule has been simulated (throws otherwise). `replayed`:
  // the twin of a backend with graphs (kernels/replay.h), whose tables the other two are: compute actions become graphs.
  PipelineExecutor(Schedule, std::vector<Stage*> local_stages, const Mesh&, const OpTable&, const DeviceApi&,
                   Stream compute, ExecutorMemory, BoundaryOptions = {}, const Backend* replayed = nullptr);
  ~PipelineExecutor();

  // One step's worth of microbatches (schedule.microbatches of them). losses f64 [microbatches] on the device receives
  // the token-loss sums; written on the last stage only. With a schedule without backward actions nothing is recorded.
  // All microbatches have one boundary shape, that of the first run, unless dynamic_shapes or runs_differ.
  // Returns with every message sent; after an exception the executor must not be used again.
  void run(std::span<const MicroBatch>, Tensor losses, const GradHooks&);

  const Schedule& schedule() const;
  int slots() const;                             // microbatch slots allocated: simulate()'s peak_in_flight of this rank
  int peak_live() const;                         // most microbatches really in flight at once in the last run
  int64_t activation_high_water() const;         // bytes, the largest slot
  int64_t gradient_high_water() const;           // bytes
  int64_t boundary_bytes() const;                // allocated receive buffers; 0 before the first run unless given
  const ReplayCounts& replays() const;           // of compute actions, since it was made
  HeldGraphs graphs() const;                     // that it holds now
  const Program& computed() const;               // compute actions of the last run, in order

  // Times of the last run. On a device that computes behind the host's back after settle(): the host knows that the run
  // is over, `clock` is anchored.
  void settle(const StreamClock& clock);
  double started() const;                        // of the last run: seconds of std::chrono::steady_clock
  std::span<const ActionTime> timeline() const;  // compute actions of the last run; storage reused
  std::span<const ActionTime> transfers() const; // likewise sends, receives and reductions, in order of time
  double busy_seconds() const;                   // time inside compute actions in the last run, collectives too
  double wait_seconds() const;                   // time blocked in receives and sends in the last run

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
