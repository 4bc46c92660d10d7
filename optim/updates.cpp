#include "optim/updates.h"

#include "kernels/core/rng.h"
#include "optim/families.h"
#include "optim/param_group.h"
#include "optim/whole_matrices.h"

namespace gt {

UpdateTables::UpdateTables(const OptimizerOptions& o, const ParamStore& store, std::vector<const FlatState*> moments,
                           const Mesh& mesh, const Backend& backend, Stream stream, TableSplit cut)
    : ops_(*backend.ops),
      weight_decay_(o.weight_decay),
      groups_(o.groups),
      group_of_(groups_of_tensors(o.groups, store)),
      members_(o.tensors),
      cut_(cut),
      moments_(std::move(moments)) {
  if (o.rounding_seed) {
    scratch_ = Buffer(kScratchElements * size_of(DType::kF32), stream.device, *backend.device);
    for (const Parameter* p : store.tensors())
      maps_.push_back(logical_map(*p, *o.rounding_seed, mesh.all_coordinates()));
  }
  const int groups = static_cast<int>(o.group_rows());
  for (int group = 0; group < groups; ++group)
    for (const DType master : {DType::kF32, DType::kBF16, DType::kF16}) add_tables(store, group, master, false);
  in_place_ = tables_.tables().size();
  if (o.rounding_seed) {
    for (int group = 0; cut.by_tensor && group < groups; ++group) add_tables(store, group, DType::kBF16, true);
    add_slices(store);
  }
  tables_.upload(most_segments(store), stream, *backend.device);
}

template <class F>
void UpdateTables::each_part(const ParamStore& store, F f) const {
  if (by_tensor()) {
    for (const TensorRangePart& p : store.pieces())
      if (updates(p.tensor)) f(Part{store.ranges()[static_cast<size_t>(p.range)], p.at, p.count, p.tensor, p.owned});
  } else {
    for (const TensorRange& r : store.ranges()) f(Part{r, 0, r.value.numel(), 0, true});
  }
}

void UpdateTables::share_verdict(Tensor scalars, Stream stream) const {
  for (size_t k = 1; k <= groups_.size(); ++k)
    gt::share_verdict(scalars, scalars.slice(static_cast<int64_t>(k) * kNumScalars, kNumScalars), ops_, stream);
}

void UpdateTables::open_table(int group, DType master, DType grad, DType value) {
  tables_.open(master, cut_.gradients != nullptr ? DType::kF32 : grad, value);
  table_groups_.push_back(group);
}

// Adds the tables of ranges in this group with this master dtype; `random` selects the stochastically rounded ones.
void UpdateTables::add_tables(const ParamStore& store, int group, DType master, bool random) {
  const auto meant = [&](const TensorRange& r) {
    return r.master.dtype == master && rounds_stochastically(r) == random;
  };
  DType value = DType::kF32;  // of values beside the masters; one dtype for all ranges that have them
  for (const TensorRange& r : store.ranges())
    if (meant(r) && r.rounded()) value = r.value.dtype;
  int64_t elements = cut_.elements;  // of the last table
  int tensor = -1;
  each_part(store, [&](const Part& p) {
    if (!meant(p.range) || group_of(p.tensor) != group) return;
    GT_CHECK(!p.range.rounded() || p.range.value.dtype == value, "values of ", name_of(p.range.value.dtype), " and ",
             name_of(value));
    if (tensor < 0 || (elements >= cut_.elements && p.tensor != tensor)) {
      open_table(group, master, p.range.grad.dtype, value);
      elements = 0;
    }
    Segment s = segment_of(p);
    s.master = p.range.master.slice(p.at, p.count).data;
    if (p.range.rounded()) s.value = p.range.value.slice(p.at, p.count).data;
    tables_.add(s);
    elements += p.count;
    tensor = p.tensor;
  });
}

void UpdateTables::add_slices(const ParamStore& store) {
  for (const TensorRangePart& p : store.pieces()) {
    const TensorRange& r = store.ranges()[static_cast<size_t>(p.range)];
    if (!rounds_stochastically(r) || !updates(p.tensor)) continue;
    for (int64_t done = 0; done < p.count; done += kScratchElements) {
      const int64_t at = p.at + done, n = std::min(kScratchElements, p.count - done);
      open_table(group_of(p.tensor), DType::kF32, r.grad.dtype, DType::kF32);
      Segment s = segment_of({r, at, n, p.tensor, p.owned});
      s.master = scratch_.data();
      tables_.add(s);
      slices_.push_back({r.value.slice(at, n), p.tensor, p.begin + done});
    }
  }
}

Segment UpdateTables::segment_of(const Part& p) const {
  const auto moment = [&](size_t k) -> float* {
    return k < moments_.size() ? moments_[k]->of(p.range, p.at, p.count).as<float>() : nullptr;
  };
  Segment s;
  const Tensor grad =
      cut_.gradients != nullptr ? cut_.gradients->of(p.range, p.at, p.count) : p.range.grad.slice(p.at, p.count);
  s.grad = grad.data;
  s.m = moment(0);
  s.v = moment(1);
  s.count = p.count;
  s.group = p.tensor;
  const int group = group_of(p.tensor);
  const auto own = group > 0 ? groups_[static_cast<size_t>(group) - 1].weight_decay : std::nullopt;
  s.weight_decay = own ? *own : p.range.decay ? weight_decay_ : 0;
  s.counted = p.counted;
  return s;
}

// Upper bound that is equal on all ranks of a stage, whatever their shards contain, as memory plans require.
int64_t UpdateTables::most_segments(const ParamStore& store) const {
  const auto tensors = static_cast<int64_t>(store.tensors().size());
  // A tensor occurs at most once per shard, in two parts at the boundary where TP ranks begin to share it.
  const int64_t pieces = 2 * (tensors + store.num_shards());
  int64_t most = by_tensor() ? pieces : tensors;
  if (maps_.empty()) return most;
  most += 2 * pieces;
  for (int k = 0; k < store.num_units(); ++k) most += store.state_elements(k) / kScratchElements;
  return most;
}

UpdateTables::LogicalMap UpdateTables::logical_map(const Parameter& p, uint64_t seed, const RankCoordinates& at) {
  ShardView v = view_of(p, at);
  LogicalMap map{stream_key(seed, "sr/" + v.name), {}};
  if (v.pad_rows > 0) v.full.dim[0] = v.pad_rows;
  const int last = v.full.rank - 1;
  const int64_t stride = v.full[last];
  for (int64_t begin = 0; begin < v.local.numel();) {
    const int64_t count = block_slice(v, last, begin % v.local[last]).count, base = logical_offset(v, begin);
    Rows* run = map.runs.empty() ? nullptr : &map.runs.back();
    if (run != nullptr && run->cols == count && base == run->base + run->count / count * stride)
      run->count += count;
    else
      map.runs.push_back({begin, count, base, count, stride});
    begin += count;
  }
  return map;
}

void UpdateTables::widen(const Slice& s, Stream stream) const {
  ops_.cast({.src = s.value, .dst = widened(s.value.numel())}, stream);
}

void UpdateTables::round(const Slice& s, Tensor scalars, Stream stream) const {
  const Tensor wide = widened(s.value.numel());
  const LogicalMap& map = maps_[static_cast<size_t>(s.tensor)];
  for (const Rows& r : map.runs) {
    const int64_t from = std::max(s.begin, r.begin), to = std::min(s.begin + wide.numel(), r.begin + r.count);
    if (from >= to) continue;
    ops_.stochastic_round({.src = wide.slice(from - s.begin, to - from),
                           .dst = s.value.slice(from - s.begin, to - from),
                           .scalars = scalars,
                           .key = map.key,
                           .base = r.base,
                           .first = from - r.begin,
                           .cols = r.cols,
                           .stride = r.stride},
                          stream);
  }
}

}  // namespace gt
