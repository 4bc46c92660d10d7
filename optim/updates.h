// What an optimizer's rule is applied to, as tables of segments that are written to the device once: one for all that
// is stepped where it lies. Where bf16 values have no masters and are rounded at random, one for every slice of a
// tensor, which is widened into scratch before the rule and rounded out of it behind. What is drawn belongs to the
// logical element and the step, so no layout changes it.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <vector>

#include "kernels/ops.h"
#include "optim/flat_state.h"
#include "optim/optimizer.h"

namespace gt {

class Updates {
 public:
  struct Cut {
    bool by_tensor =
        false;  // groups are tensors, by their numbers in the store; what another rank counts is not counted
    int64_t elements = std::numeric_limits<int64_t>::max();  // a table ends with the tensor that brings it to so many
  };
  // moments: what segments have as m and v, in this order; nullptr: nothing.
  Updates(const OptimizerOptions&, const ParamStore&, std::initializer_list<const FlatState*> moments, const Mesh&,
          const Backend&, Stream, Cut);
  Updates(const OptimizerOptions& o, const ParamStore& store, std::initializer_list<const FlatState*> moments,
          const Mesh& mesh, const Backend& backend, Stream stream)
      : Updates(o, store, moments, mesh, backend, stream, Cut{}) {}

  // rule(const SegmentTable&) until all that this rank updates has been given.
  template <class Rule>
  void each(Tensor scalars, Stream stream, Rule rule) const {
    for (const SegmentTable& t : in_place()) rule(t);
    each_slice(scalars, stream, rule);
  }
  // What is stepped where it lies: one table for every type of masters, or of tensors as they were cut.
  std::span<const SegmentTable> in_place() const { return tables_.tables().first(in_place_); }
  // What is rounded at random, by tensor, where it lies: for a pass that only reads masters.
  std::span<const SegmentTable> unrounded() const {
    return tables_.tables().subspan(in_place_, tables_.tables().size() - in_place_ - slices_.size());
  }
  // The same in slices: widened, given to the rule, rounded.
  template <class Rule>
  void each_slice(Tensor scalars, Stream stream, Rule rule) const {
    const std::span<const SegmentTable> tables = tables_.tables().last(slices_.size());
    for (size_t k = 0; k < slices_.size(); ++k) {
      widen(slices_[k], stream);
      rule(tables[k]);
      round(slices_[k], scalars, stream);
    }
  }

  int64_t bytes() const { return room_.bytes() + tables_.bytes(); }

 private:
  static constexpr int64_t kRoom = 1 << 16;  // elements widened at a time
  // Elements [begin, begin + count) of what a rank holds of a tensor, where they are in the logical one: rows of `cols`
  // neighbours, every `stride` from `base` on (ops.h, StochasticRound).
  struct Run {
    int64_t begin, count, base, cols, stride;
  };
  struct Place {
    uint64_t key;  // of the tensor's stream
    std::vector<Run> runs;
  };
  struct Slice {
    Tensor value;
    int tensor;     // in places_
    int64_t begin;  // its first element in what this rank holds of the tensor
  };
  static Place place_of(const Parameter&, uint64_t seed, int tp_rank, int tp_size);
  // Some of a range, whose tensors have one rule and, cut by tensor, of one of them.
  struct Part {
    const UpdateRange& range;
    int64_t at, count;
    int tensor;
    bool counted;
  };
  template <class F>
  void each_part(const ParamStore&, F) const;
  void add_tables(const ParamStore&, DType master, bool random);
  void add_slices(const ParamStore&);
  Segment segment_of(const Part&) const;
  int64_t most_segments(const ParamStore&) const;
  void widen(const Slice&, Stream) const;
  void round(const Slice&, Tensor scalars, Stream) const;
  bool at_random(const UpdateRange& r) const { return !places_.empty() && r.master.dtype == DType::kBF16; }
  Tensor room(int64_t count) const { return room_.tensor({count}, DType::kF32); }

  const OpTable& ops_;
  const float weight_decay_;
  const Cut cut_;
  std::vector<const FlatState*> moments_;
  std::vector<Place> places_;  // by store.tensors(); empty: nothing is rounded at random
  Buffer room_;
  std::vector<Slice> slices_;
  SegmentTables tables_;  // in_place(), unrounded(), slices
  size_t in_place_ = 0;
};

}  // namespace gt
