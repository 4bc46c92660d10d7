// Private to parallel/zero. Reduce-scatters gradients over each unit's domain, in buckets of whole units in reverse
// execution order, overlapped with the backward.
//
// Unsharded gradients (stages 0 and 1, GradReduce::kEnd): one in-place reduce-scatter a step; the result is this rank's
// shard of the flat buffer. Sharded gradients (kEach): a unit's unsharded gradients exist from their first write to the
// end of their reduce-scatter, which is accumulated into this rank's shard. One bucket is in flight while the next one
// fills. If the reduction's dtype is not that of storage, send buffers live as long as the reduction.
#pragma once
#include "kernels/backend.h"
#include "parallel/mesh.h"
#include "parallel/zero/options.h"
#include "parallel/zero/unit_state.h"

namespace gt {

class StateHash;

class GradReducer {
 public:
  GradReducer(const UnitList&, const ZeroOptions&, const Mesh&, const Backend&, Stream compute);
  void allocate(int64_t bytes);  // workspace for unsharded gradients and send buffers

  void begin_step();
  void begin_backward(int stage, bool last);
  void open(UnitState&);          // before the first write: allocates the unit's gradients
  void ready(UnitState&);         // this microbatch's gradients are complete
  void reduce_stage(int stage);   // launches the reductions not launched yet
  void reduce_tied();             // launches the sum of both copies' gradients, first-stage + last-stage order
  void finish(bool tied_copies);  // waits for all reductions; false: but for those that finish_tied_copies() waits for
  void finish_tied_copies();

  void add_to(StateHash&) const;  // adds buckets and reductions in flight to a fingerprint
  int64_t high_water() const { return align_up(pool_.high_water()); }  // peak bytes of temporary gradients

 private:
  using Phase = UnitState::Phase;
  void complete_gradients(UnitState&);
  void complete_unused(UnitState&);
  void multiply(Tensor flat, double by);
  void sum_partial(UnitState&);
  void sum_shared_heads(UnitState&);
  void launch(UnitState&);
  void launch_converted(UnitState&);
  int64_t chunk_elements(const UnitState&) const;
  void complete_chunk(UnitState&);
  void launch_bucket();
  void land(UnitState&);
  void drain();
  void finish(UnitState&);

  // A copy on another stage than its owner, whose gradients nothing reads before the update.
  bool may_finish_late(const UnitState&) const;
  bool scales(const UnitState&) const;
  bool converts(const UnitState& s) const { return options_.reduce != options_.grad && s.domain.size > 1; }

  const UnitList& units_;
  const ZeroOptions options_;
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  Pool pool_;
  std::vector<UnitState*> bucket_;     // final for this microbatch, not launched yet
  std::vector<Work> summing_;          // of both reductions over tp; kept for its storage
  std::vector<UnitState*> in_flight_;  // sharded and converted units in flight
  int64_t bucket_fill_ = 0;            // bytes
  bool backward_over_ = false;         // the reductions in flight were launched by a backward that has ended
};

}  // namespace gt
