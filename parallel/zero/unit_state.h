// Private to parallel/zero. State of one FSDP unit on this rank: its flat layout, its buffers and the progress of its
// all-gather and reduce-scatter. Written by the gatherer and the reducer, read by the store.
#pragma once
#include <array>

#include "kernels/core/memory.h"
#include "parallel/comm/process_group.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/param_store.h"

namespace gt {

class GradReducer;
class ValueGatherer;

struct UnitState final : ParamUnit {
  // Requires: all parameters have one dtype. index_in_module: index of each parameter in the module it comes from.
  UnitState(UnitSpec, std::vector<int> index_in_module, DType grad_dtype, Domain, GradReducer&, ValueGatherer&);

  UnitSpec spec;
  std::vector<int> index_in_module;
  FlatLayout layout;
  DType dtype;       // of values
  DType grad_dtype;  // of gradients
  Domain domain;     // ranks that reduce its gradients and hold its shards
  GradReducer& reducer;
  ValueGatherer& gatherer;
  UnitState* owner = nullptr;        // unit of the tied weight, if on this rank too: this unit is then not updated
  UnitState* copy = nullptr;         // conversely: the tied copy that this unit owns
  std::vector<UnitState*> siblings;  // further units of its module, used and reduced with it
  bool int8 = false;                 // frozen weights held in int8, dequantized while in use
  bool frozen = false;               // no gradients, no master weights: its parameters are never updated
  bool unused = false;               // in this step: no microbatch uses it, its gradient is 0
  bool ends_backward = false;        // first unit of its stage that is used: last in a backward

  // Memory kept on this rank: flat values and gradients, unsharded or its shard.
  Buffer values, grads;  // values: int8 codes if `int8`
  Buffer scales;         // f32, one per row of int8 weights; on every rank of the domain
  Buffer fp8_data;       // FP8 data of weights that are kept unsharded (Fp8Weights)
  Buffer masters;  // f32 master weights of what this rank updates; empty where values are trained directly and in a
                   // tied copy. Also for f32 values that are kept unsharded and fake-quantized
  bool values_sharded = false, grads_sharded = false;

  // Unsharded values while in use (on_use()): all-gathered, or dequantized.
  Tensor gathered;
  Work gathering;
  int users = 0;

  // Reduce-scatter. Unsharded gradients are open from the start of a step. Sharded ones are idle until their first
  // write, and again once they were accumulated into the shard.
  enum class Phase : uint8_t { kIdle, kOpen, kReady, kReducing, kReduced } phase = Phase::kIdle;
  Tensor open;              // unsharded gradients while they exist (grads_sharded)
  Tensor wire;              // send buffer in ZeroOptions::reduce: the same elements of every shard
  int64_t send_offset = 0;  // first of these elements within a shard
  bool last_backward = false;
  bool accumulated = false;  // grads_sharded: the shard holds gradients of this step
  Work reducing;

  // Quantization-aware training: values are fake-quantized to int8 whenever they are updated or gathered.
  bool quantizes() const { return quantizes_; }
  bool prepared = false;  // `gathered` is fake-quantized and its FP8 data are made, where needed

  // A tied copy of its owner's dtype shares the owner's values; one of another dtype has rounded values of its own.
  bool shares_values() const { return owner != nullptr && owner->dtype == dtype; }
  bool on_use() const { return values_sharded || int8; }  // values exist only while the unit is used
  bool rounds() const { return dtype != DType::kF32; }
  int module() const { return spec.module >= 0 ? spec.module : spec.index; }
  bool tied_copy() const { return !spec.params.front()->tied_to.empty(); }
  bool adds_to_owner() const { return spec.params.front()->adds_to != nullptr; }  // has no gradients of its own
  int64_t elements() const { return layout.size - layout.pad; }
  int64_t begin() const { return layout.shard * domain.rank; }  // this rank's shard is [begin, begin + layout.shard)
  Tensor own(Tensor flat) const { return flat.slice(begin(), layout.shard); }

  Tensor held_values() const;  // unsharded or shard
  Tensor scale_values() const { return scales.tensor({scales.bytes() / size_of(DType::kF32)}, DType::kF32); }
  Tensor value_shard() const { return shard_of(held_values(), values_sharded); }
  Tensor held_grads() const;
  Tensor grad_shard() const { return shard_of(held_grads(), grads_sharded); }
  // Tensor ranges of this rank's shard, in the order of the flat buffers.
  const std::vector<FlatSegment>& own_segments() const { return layout.segments[static_cast<size_t>(domain.rank)]; }
  // Elements [from, to) of the flat buffers. Requires: held by this rank.
  Tensor values_at(int64_t from, int64_t to) const { return held_values().slice(from - value_base(), to - from); }
  // The trained values of these elements. Requires: [from, to) lies within what this rank updates, which begins at
  // `base`.
  Tensor trained_at(int64_t from, int64_t to, int64_t base) const {
    return masters.bytes() > 0 ? masters.tensor({to - from}, DType::kF32, (from - base) * size_of(DType::kF32))
                               : values_at(from, to);
  }
  Tensor grads_at(int64_t from, int64_t to) const {
    return held_grads().slice(from - (grads_sharded ? begin() : 0), to - from);
  }

  // Point the parameters' values or gradients into these flat tensors, or clear them.
  void bind_values(Tensor flat, int64_t version);  // also of the tied copy
  void unbind_values();
  void bind_grads(Tensor flat);
  void unbind_grads();

  void acquire(Stream) override;
  void release(Stream) override;
  void open_grads() override;
  void grads_ready(Stream) override;

 private:
  bool quantizes_;
  Tensor shard_of(Tensor held, bool is_shard) const { return is_shard ? held : own(held); }
  int64_t value_base() const { return values_sharded ? begin() : 0; }
};

// Number of leading elements of the flattened local tensor that no other TP rank holds. All of a split parameter,
// except KV heads that TP ranks share; 0 for a replicated parameter.
inline int64_t unshared_elements(const Parameter& p, int tp_size) {
  const AxisShard tp = p.shard.tp();
  if (!tp.splits()) return 0;
  if (tp.copies(tp_size) == 1) return p.local_shape.numel();
  const int64_t rows = unshared_extent(tp, p.full_shape[0], tp_size);
  return p.local_shape.numel() / p.local_shape[0] * rows;
}

// A tensor range split where TP ranks begin to share its elements; either part may be empty. Norms and checkpoints
// count elements that several TP ranks hold once, on the first of them.
struct CountedRange {
  FlatSegment at;
  bool counted;  // by this rank
};
std::array<CountedRange, 2> split_by_owner(const UnitState&, const FlatSegment&, const Mesh&);

using UnitList = std::vector<std::unique_ptr<UnitState>>;

}  // namespace gt
