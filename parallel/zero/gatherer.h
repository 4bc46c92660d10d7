// Private to parallel/zero. ZeRO stage 3's half of the values: gathers the shards of a scope before it is used, and of
// the next ones while it is used, and gives the bytes back afterwards. Knows which scopes come next, not why.
#pragma once
#include "kernels/backend.h"
#include "parallel/zero/scope_state.h"
#include "parallel/zero/two_ended_pool.h"

namespace gt {

class Fp8Weights;
class StateHash;
class WeightQuantizer;

// What is gathered at any moment is the window: the scope in use and the next `prefetch` scopes of the order. A scope
// is gathered when it enters the window and dropped when it leaves it, so what follows itself soon (the last block of a
// stage's forward, which its backward meets first) is not sent twice, and at most 1 + prefetch scopes exist.
class ValueGatherer {
 public:
  using Order = std::vector<ScopeState*>;  // scopes in the order of use, no scope twice in a row

  ValueGatherer(Stream compute, int prefetch);
  void allocate(int64_t bytes, const Backend& backend);
  void quantize_with(const WeightQuantizer* q) { quantizer_ = q; }
  void encode_with(const Fp8Weights* w) { fp8_ = w; }

  void begin(const Order*);  // a pass over the order, from its start; nullptr: no order is known, nothing is prefetched
  void acquire(ScopeState&);  // readable when this returns
  void release(ScopeState&);
  void drop_all();  // values have changed, or will

  void add_to(StateHash&) const;  // where gathered values lie
  // Room for a scope's whole f32 values, to write the shard from (initial values). Give it back with free().
  Tensor scratch(const ScopeState& s) { return pool_.alloc({s.layout.size}, DType::kF32); }
  void free(Tensor t) { pool_.free(t); }
  int64_t high_water() const { return align_up(pool_.high_water()); }  // bytes of gathered values at once

 private:
  void advance(ScopeState&);
  void gather(ScopeState&);
  void drop(ScopeState&);
  bool in_window(const ScopeState&) const;

  Stream compute_;
  size_t prefetch_;
  const WeightQuantizer* quantizer_ = nullptr;
  const Fp8Weights* fp8_ = nullptr;
  TwoEndedPool pool_;
  const Order* order_ = nullptr;
  size_t next_ = 0;  // place in the order after the scope in use
  ScopeState* current_ = nullptr;
  std::vector<ScopeState*> live_;
};

}  // namespace gt
