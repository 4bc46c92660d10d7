// Private to parallel/zero. Values that exist only while their unit is used: all-gathered at ZeRO stage 3, dequantized
// from int8, or both. Gathers the shards of a unit before its use, prefetches the next units and frees values
// afterwards. Driven by the execution order alone.
#pragma once
#include "kernels/backend.h"
#include "parallel/zero/two_ended_pool.h"
#include "parallel/zero/unit_state.h"

namespace gt {

class Fp8Weights;
class Int8Weights;
class StateHash;
class WeightQuantizer;

// Prefetch window: the unit in use and the next `prefetch` units of the execution order. A unit is gathered when it
// enters the window and freed when it leaves it, so at most 1 + prefetch units are gathered. A unit that is reused soon
// is not gathered twice, such as the last block of a stage's forward, which its backward uses first.
class ValueGatherer {
 public:
  using Order = std::vector<UnitState*>;  // execution order; no unit twice in a row

  ValueGatherer(Stream compute, int prefetch);
  void allocate(int64_t bytes, const Backend& backend);
  void quantize_with(const WeightQuantizer* q) { quantizer_ = q; }
  void quantize_with(const Fp8Weights* w) { fp8_ = w; }
  void dequantize_with(const Int8Weights* w) { int8_ = w; }
  static int64_t bytes_of(const UnitState&);  // of a unit in use

  void begin(const Order*);  // starts a pass over the order; nullptr: order unknown, nothing is prefetched
  void acquire(UnitState&);  // values are readable on the compute stream when this returns
  void release(UnitState&);
  void drop_all();  // frees all gathered values: weights have changed or will

  void add_to(StateHash&) const;  // adds the gathered units and their addresses to a fingerprint
  // Unsharded f32 buffer for a unit's initial values, from which the shard is copied. Release with free().
  Tensor scratch(const UnitState& s) { return pool_.alloc({s.layout.size}, DType::kF32); }
  void free(Tensor t) { pool_.free(t); }
  int64_t high_water() const { return align_up(pool_.high_water()); }  // peak bytes of gathered values

 private:
  void advance(UnitState&);
  void gather(UnitState&);
  void prefetch();
  void drop(UnitState&);
  bool in_use(const UnitState&) const;
  bool in_window(const UnitState&) const;

  Stream compute_;
  size_t prefetch_;
  const WeightQuantizer* quantizer_ = nullptr;
  const Fp8Weights* fp8_ = nullptr;
  const Int8Weights* int8_ = nullptr;
  TwoEndedPool pool_;
  const Order* order_ = nullptr;
  size_t next_ = 0;                  // position in the order after the unit in use
  std::vector<UnitState*> current_;  // of the module that is used, or was last
  std::vector<UnitState*> live_;
};

}  // namespace gt
