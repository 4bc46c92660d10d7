// Private to parallel/zero. One scope on this rank: its place in the flat layout, the buffers that hold it, and where
// its gathering and its reduction stand. The gatherer and the reducer change it, the store reads it.
#pragma once
#include <array>

#include "kernels/core/memory.h"
#include "parallel/comm/process_group.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/param_store.h"

namespace gt {

class GradReducer;
class ValueGatherer;

struct ScopeState final : ParamScope {
  // All parameters have one dtype. place: of each in the module that it comes from.
  ScopeState(ScopeSpec, std::vector<int> place, DType grad_dtype, Domain, GradReducer&, ValueGatherer&);

  ScopeSpec spec;
  std::vector<int> place;
  FlatLayout layout;
  DType dtype;       // of values
  DType grad_dtype;  // of gradients
  Domain domain;     // ranks that reduce its gradients and share out what is sharded
  GradReducer& reducer;
  ValueGatherer& gatherer;
  ScopeState* owner = nullptr;  // of the tied weight, when it is on this rank too: nobody updates this scope
  ScopeState* copy = nullptr;   // the other way round
  ScopeState* companion = nullptr;  // f32 parameters of a module whose others are half: used and reduced with it
  bool unused = false;          // in this step: nothing uses it, its gradient is 0
  bool ends_backward = false;   // the first scope of its stage that is used: a backward reaches it last

  // What this rank keeps: flat values and gradients, whole or its shard of them.
  Buffer values, grads;
  Buffer codes;    // of values that are kept whole and that products read as numbers of 8 bits (Fp8Weights)
  Buffer masters;  // f32, of what this rank updates; empty where values are what is trained, and in a tied copy. Of
                   // f32 values too where these are kept whole and quantized
  bool values_sharded = false, grads_sharded = false;

  // Gathering: whole values while somebody needs them (values_sharded).
  Tensor gathered;
  Work gathering;
  int users = 0;

  // Reduction. Whole gradients are open from the start of a step; sharded ones are idle until their first writer opens
  // them, and again once they have been added to the shard.
  enum class Phase : uint8_t { kIdle, kOpen, kReady, kReducing, kReduced } phase = Phase::kIdle;
  Tensor open;  // whole gradients while they exist (grads_sharded)
  Tensor wire;  // gradients in the type that is sent, while they travel (ZeroOptions::reduce): of every shard the same
  int64_t wire_at = 0;  // elements, from this one on
  bool last_backward = false;
  bool accumulated = false;  // grads_sharded: the shard holds something of this step
  Work reducing;

  // Weights that are used as int8 codes say them: made from what is trained whenever that is published or gathered.
  bool quantizes() const { return quantizes_; }
  bool prepared = false;  // `gathered` is quantized, or its codes are made, where these are wanted

  // A tied copy of its owner's type reads the owner's values; of another type it has rounded ones of its own.
  bool shares_values() const { return owner != nullptr && owner->dtype == dtype; }
  bool rounds() const { return dtype != DType::kF32; }
  bool tied_copy() const { return !spec.params.front()->tied_to.empty(); }
  int64_t elements() const { return layout.size - layout.pad; }
  int64_t begin() const { return layout.shard * domain.rank; }  // this rank's shard is [begin, begin + layout.shard)
  Tensor own(Tensor flat) const { return flat.slice(begin(), layout.shard); }

  Tensor held_values() const;  // whole or shard
  Tensor value_shard() const { return shard_of(held_values(), values_sharded); }
  Tensor held_grads() const;
  Tensor grad_shard() const { return shard_of(held_grads(), grads_sharded); }
  // What this rank is responsible for, in the order of the flat buffers.
  const std::vector<FlatSegment>& own_segments() const { return layout.segments[static_cast<size_t>(domain.rank)]; }
  // Elements [from, to) of the flat buffers, which this rank holds.
  Tensor values_at(int64_t from, int64_t to) const { return held_values().slice(from - value_base(), to - from); }
  // The same elements of what is trained; [from, to) lies within what this rank updates, which begins at `base`.
  Tensor trained_at(int64_t from, int64_t to, int64_t base) const {
    return masters.bytes() > 0 ? masters.tensor({to - from}, DType::kF32, (from - base) * size_of(DType::kF32))
                               : values_at(from, to);
  }
  Tensor grads_at(int64_t from, int64_t to) const {
    return held_grads().slice(from - (grads_sharded ? begin() : 0), to - from);
  }

  // Parameters see these flat values or gradients, or none.
  void show_values(Tensor flat, int64_t version);  // the copy's parameters too
  void hide_values();
  void show_grads(Tensor flat);
  void hide_grads();

  void acquire(Stream) override;
  void release(Stream) override;
  void open_grads() override;
  void grads_ready(Stream) override;

 private:
  bool quantizes_;
  Tensor shard_of(Tensor held, bool is_shard) const { return is_shard ? held : own(held); }
  int64_t value_base() const { return values_sharded ? begin() : 0; }
};

// Of the flattened local tensor, the first so many elements that no other tensor rank holds: all of a split parameter,
// but for key and value heads that ranks share; none of one that every rank holds whole.
inline int64_t unshared_elements(const Parameter& p, int tp_size) {
  if (p.shard.kind != ShardSpec::Kind::kSplit) return 0;
  if (p.shard.copies(tp_size) == 1) return p.local_shape.numel();
  const int64_t rows = unshared_extent(p.shard, p.full_shape[0], tp_size);
  return p.local_shape.numel() / p.local_shape[0] * rows;
}

// A segment cut where tensor ranks begin to share its elements; either piece may be empty. Elements that several tensor
// ranks hold are counted, in norms and in checkpoints, by the first of them.
struct CountedPiece {
  FlatSegment at;
  bool counted;  // by this rank
};
std::array<CountedPiece, 2> counted_pieces(const ScopeState&, const FlatSegment&, const Mesh&);

using ScopeList = std::vector<std::unique_ptr<ScopeState>>;

}  // namespace gt
