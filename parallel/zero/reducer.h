// Private to parallel/zero. Reduces gradients over each unit's domain by reduce-scatter, in buckets of whole
// scopes in reverse execution order, beside the backward.
//
// Whole gradients (stages 0 and 1, GradReduce::kEnd): one reduction a step, in place; this rank's part of the flat
// buffer is the result. Sharded gradients (kEach): a scope's whole gradients exist from their first writer to the end
// of their reduction, which is added to the shard that this rank keeps. One bucket is on its way while the next one
// fills. Where gradients are kept in one type and added up in another, those that are sent live as long.
#pragma once
#include "kernels/backend.h"
#include "parallel/mesh.h"
#include "parallel/zero/options.h"
#include "parallel/zero/scope_state.h"

namespace gt {

class StateHash;

class GradReducer {
 public:
  GradReducer(const ScopeList&, const ZeroOptions&, const Mesh&, const Backend&, Stream compute);
  void allocate(int64_t bytes);  // room for whole gradients of sharded scopes

  void begin_step();
  void begin_backward(int stage, bool last);
  void open(ScopeState&);        // the first writer of a scope is about to write
  void ready(ScopeState&);       // every contribution of this microbatch is in
  void reduce_stage(int stage);  // launches what has not been launched
  void reduce_tied();            // adds the two copies' gradients, first-stage + last-stage order
  void finish();                 // everything has landed

  void add_to(StateHash&) const;  // what is on its way or about to be
  int64_t high_water() const { return align_up(pool_.high_water()); }  // bytes of whole gradients at once

 private:
  using Phase = ScopeState::Phase;
  void complete_gradients(ScopeState&);
  void complete_unused(ScopeState&);
  void multiply(Tensor flat, double by);
  void sum_partial(ScopeState&);
  void sum_shared_heads(ScopeState&);
  void launch(ScopeState&);
  void launch_converted(ScopeState&);
  int64_t piece_of(const ScopeState&) const;
  void land_piece(ScopeState&);
  void launch_bucket();
  void land(ScopeState&);
  void drain();

  bool scales(const ScopeState&) const;
  bool converts(const ScopeState& s) const { return options_.reduce != options_.grad && s.domain.size > 1; }

  const ScopeList& scopes_;
  const ZeroOptions options_;
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  Pool pool_;
  std::vector<ScopeState*> bucket_;  // final for this microbatch, not launched yet
  std::vector<Work> summing_;        // of the two sums over tensor ranks; kept for its storage
  std::vector<ScopeState*> flying_;  // sharded and converted scopes on their way
  int64_t bucket_fill_ = 0;          // bytes
  bool backward_over_ = false;       // what flies was launched by a backward that has ended
};

}  // namespace gt
