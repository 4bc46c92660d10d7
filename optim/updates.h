// Segment tables for an optimizer's op, written to the device once. Tensors that are updated in place share one table.
// bf16 values without master weights under stochastic rounding have one table per slice of a tensor. A slice is widened
// to f32 scratch before the update and rounded from it afterwards. Random numbers are keyed by logical element and
// step, so they do not depend on the layout.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/ops.h"
#include "optim/flat_state.h"
#include "optim/optimizer.h"

namespace gt {

class WholeMatrices;

class UpdateTables {
 public:
  struct TableSplit {
    bool by_tensor = false;  // segment groups are the store's tensors; elements counted by another rank are excluded
    int64_t elements = std::numeric_limits<int64_t>::max();  // a full table ends with its last tensor
    const WholeMatrices* gradients = nullptr;                // f32, instead of the store's
  };
  // moments: FlatStates behind a segment's m and v, in this order; fewer: nullptr.
  UpdateTables(const OptimizerOptions&, const ParamStore&, std::vector<const FlatState*> moments, const Mesh&,
               const Backend&, Stream, TableSplit);
  UpdateTables(const OptimizerOptions& o, const ParamStore& store, std::vector<const FlatState*> moments,
               const Mesh& mesh, const Backend& backend, Stream stream)
      : UpdateTables(o, store, moments, mesh, backend, stream, TableSplit{}) {}

  // Calls rule(const SegmentTable&) until everything this rank updates is covered.
  template <class Rule>
  void each(Tensor scalars, Stream stream, Rule rule) const {
    share_verdict(scalars, stream);
    for (const SegmentTable& t : in_place()) rule(t, row_of(t, scalars));
    each_slice(scalars, stream, rule);
  }
  // Once per step, before any rule: copies clipping factor and skip flag of the first row of scalars to the rows of the
  // groups.
  void share_verdict(Tensor scalars, Stream) const;
  // `t`: one of this object's.
  Tensor row_of(const SegmentTable& t, Tensor scalars) const {
    const int group = table_groups_[static_cast<size_t>(&t - tables_.tables().data())];
    return scalars.slice(int64_t{group} * kNumScalars, kNumScalars);
  }
  // Tables updated in place: one per group and master dtype, or per tensor as TableSplit requires.
  std::span<const SegmentTable> in_place() const { return tables_.tables().first(in_place_); }
  // Stochastically rounded values in place, by tensor: for passes that only read master weights.
  std::span<const SegmentTable> unrounded() const {
    return tables_.tables().subspan(in_place_, tables_.tables().size() - in_place_ - slices_.size());
  }
  // The same in slices: widens, applies the rule, rounds.
  template <class Rule>
  void each_slice(Tensor scalars, Stream stream, Rule rule) const {
    each_slice(0, std::numeric_limits<int>::max(), scalars, stream, rule);
  }
  // Calls rule(const SegmentTable&, row) until tensors [first, last) of the store are covered. Requires: one table per
  // tensor.
  template <class Rule>
  void each_of(int first, int last, Tensor scalars, Stream stream, Rule rule) const {
    for (const SegmentTable& t : in_place())
      if (t.host->group >= first && t.host->group < last) rule(t, row_of(t, scalars));
    each_slice(first, last, scalars, stream, rule);
  }

  int64_t bytes() const { return scratch_.bytes() + tables_.bytes(); }

 private:
  template <class Rule>
  void each_slice(int first, int last, Tensor scalars, Stream stream, Rule rule) const {
    const std::span<const SegmentTable> tables = tables_.tables().last(slices_.size());
    for (size_t k = 0; k < slices_.size(); ++k) {
      if (slices_[k].tensor < first || slices_[k].tensor >= last) continue;
      const Tensor row = row_of(tables[k], scalars);
      widen(slices_[k], stream);
      rule(tables[k], row);
      round(slices_[k], row, stream);
    }
  }

  static constexpr int64_t kScratchElements = 1 << 16;  // elements widened at a time
  // Maps elements [begin, begin + count) of the tp-local tensor to the logical one: rows of `cols` elements, `stride`
  // apart, starting at `base` (ops.h, StochasticRound).
  struct Rows {
    int64_t begin, count, base, cols, stride;
  };
  struct LogicalMap {
    uint64_t key;  // of the tensor's random stream
    std::vector<Rows> runs;
  };
  struct Slice {
    Tensor value;
    int tensor;     // in maps_
    int64_t begin;  // its first element in the tp-local tensor
  };
  static LogicalMap logical_map(const Parameter&, uint64_t seed, const RankCoordinates&);
  // Part of a tensor range with one rule; with TableSplit::by_tensor, of one tensor.
  struct Part {
    const TensorRange& range;
    int64_t at, count;
    int tensor;
    bool counted;
  };
  template <class F>
  void each_part(const ParamStore&, F) const;
  bool by_tensor() const { return cut_.by_tensor || !groups_.empty() || !members_.empty(); }
  bool updates(int tensor) const { return members_.empty() || members_[static_cast<size_t>(tensor)]; }
  int group_of(int tensor) const { return groups_.empty() ? 0 : group_of_[static_cast<size_t>(tensor)]; }
  void open_table(int group, DType master, DType grad, DType value);
  void add_tables(const ParamStore&, int group, DType master, bool random);
  void add_slices(const ParamStore&);
  Segment segment_of(const Part&) const;
  int64_t most_segments(const ParamStore&) const;
  void widen(const Slice&, Stream) const;
  void round(const Slice&, Tensor scalars, Stream) const;
  bool rounds_stochastically(const TensorRange& r) const { return !maps_.empty() && r.master.dtype == DType::kBF16; }
  Tensor widened(int64_t count) const { return scratch_.tensor({count}, DType::kF32); }

  const OpTable& ops_;
  const float weight_decay_;
  const std::vector<ParamGroup> groups_;
  const std::vector<int> group_of_;  // groups_of_tensors
  const std::vector<bool> members_;  // OptimizerOptions::tensors
  const TableSplit cut_;
  std::vector<const FlatState*> moments_;
  std::vector<LogicalMap> maps_;  // by store.tensors(); empty: no stochastic rounding
  Buffer scratch_;
  std::vector<Slice> slices_;
  SegmentTables tables_;           // in_place(), unrounded(), slices
  std::vector<int> table_groups_;  // of each
  size_t in_place_ = 0;
};

}  // namespace gt
