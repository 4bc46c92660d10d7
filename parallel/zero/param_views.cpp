// Views of the store for checkpoints and tests: named shards of logical tensors.
#include <cmath>

#include "parallel/zero/param_store.h"
#include "parallel/zero/unit_state.h"

namespace gt {

// Saved: this rank's own shard, at every stage. Read only: the rest, where values or state are unsharded.
void ParamStore::append_views(const std::string& group, int unit, int64_t held, const StateOf& state,
                              std::vector<ShardView>& out) const {
  const UnitState& s = *units_[static_cast<size_t>(unit)];
  if (s.owner || held == 0) return;
  const int64_t from = held == s.layout.size ? 0 : s.begin();
  for (int r = 0; r < s.domain.size; ++r)
    for (const FlatSegment& g : s.layout.segments[static_cast<size_t>(r)]) {
      if (g.at < from || g.at + g.count > from + held) continue;
      const Parameter& p = *s.spec.params[static_cast<size_t>(g.tensor)];
      for (const auto& [piece, counted] : split_by_owner(s, g, mesh_)) {
        if (piece.count == 0) continue;
        const Tensor data = state(unit, piece.at - from, piece.count);
        if (data.numel() == 0) continue;
        ShardView& v = out.emplace_back(view_of(p, mesh_.all_coordinates()));
        v.name = group + "/" + v.name;
        v.data = data;
        v.begin = piece.begin;
        v.save = r == s.domain.rank && !s.tied_copy() && (counted || !p.shard.tp().splits());
      }
    }
}

void ParamStore::append_views(const std::string& group, std::span<const Tensor> flat_state,
                              std::vector<ShardView>& out) const {
  GT_CHECK(flat_state.size() == units_.size(), "one flat state buffer per FSDP unit");
  const StateOf part = [&](int unit, int64_t at, int64_t count) {
    return flat_state[static_cast<size_t>(unit)].slice(at, count);
  };
  for (int k = 0; k < num_units(); ++k) append_views(group, k, flat_state[static_cast<size_t>(k)].numel(), part, out);
  assign_over_tp(out);
}

void ParamStore::append_views(const std::string& group, const StateOf& state, std::vector<ShardView>& out) const {
  for (int k = 0; k < num_units(); ++k) append_views(group, k, state_elements(k), state, out);
  assign_over_tp(out);
}

std::optional<ParamStore::NonFiniteGradient> ParamStore::first_nonfinite_gradient() const {
  constexpr int64_t kMostParameters = 1 << 16;  // per unit
  std::vector<NonFiniteGradient> all;
  SegmentTables tables;
  tables.open(options_.grad, options_.grad, options_.grad);
  for (const auto& s : units_)
    for (const FlatSegment& g : s->own_segments()) {
      if (s->tied_copy() || s->frozen || g.count == 0) continue;  // the owner has the sum of both copies
      const auto tensor = static_cast<size_t>(g.tensor);
      tables.add({.grad = s->grads_at(g.at, g.at + g.count).data,
                  .count = g.count,
                  .group = static_cast<int32_t>(all.size())});
      all.push_back({(total_units_ - s->spec.index) * kMostParameters - s->index_in_module[tensor],
                     s->spec.params[tensor]->name});
    }
  const auto count = static_cast<int64_t>(all.size());
  tables.upload(count, compute_, *backend_.device);
  const Buffer scratch(count * size_of(DType::kF64), compute_.device, *backend_.device);
  std::vector<double> squares(all.size());
  backend_.ops->sum_squares({.table = tables.tables().front(), .out = scratch.tensor({count}, DType::kF64)}, compute_);
  backend_.device->copy(squares.data(), scratch.data(), count * size_of(DType::kF64), compute_);
  backend_.device->synchronize(compute_);
  std::optional<NonFiniteGradient> found;
  for (size_t i = 0; i < all.size(); ++i)
    if (!std::isfinite(squares[i]) && (!found || all[i].position < found->position)) found = all[i];
  return found;
}

std::vector<ShardView> ParamStore::value_views() const {
  std::vector<Tensor> flat;
  for (const auto& s : units_)
    flat.push_back(s->int8 ? s->held_values().slice(0, 0)
                   : s->masters.bytes() > 0
                       ? s->masters.tensor({s->masters.bytes() / size_of(DType::kF32)}, DType::kF32)
                       : s->held_values());
  std::vector<ShardView> out;
  append_views("master", flat, out);
  return out;
}

namespace {

// Views of the scales of a weight's rows. Every data-parallel rank has all of them; the first saves them.
void append_scales(const UnitState& s, const Parameter& p, Tensor scales, const Mesh& mesh,
                   std::vector<ShardView>& out) {
  const AxisPosition tp = mesh.all_coordinates()[Axis::kTp];
  const AxisShard cut = p.shard.along(0).tp();
  const int64_t rows = p.local_shape[0], alone = cut.splits() ? unshared_extent(cut, p.full_shape[0], tp.size) : 0;
  const auto append = [&](int64_t begin, int64_t end, bool counted) {
    if (begin == end) return;
    out.push_back({.name = "scale/" + p.name,
                   .data = scales.slice(begin, end - begin),
                   .full = {p.full_shape[0]},
                   .local = {rows},
                   .shard = p.shard.along(0),
                   .at = mesh.all_coordinates(),
                   .begin = begin,
                   .save = s.domain.rank == 0 && (counted || !cut.splits())});
  };
  append(0, alone, true);
  append(alone, rows, tp.rank % cut.copies(tp.size) == 0);
}

}  // namespace

std::vector<ShardView> ParamStore::int8_views() const {
  std::vector<Tensor> flat;
  for (const auto& s : units_) flat.push_back(s->int8 ? s->held_values() : s->held_values().slice(0, 0));
  std::vector<ShardView> out;
  append_views("master", flat, out);
  for (const auto& s : units_) {
    int64_t row = 0;
    for (const Parameter* p : s->spec.params) {
      if (!p->int8) continue;
      append_scales(*s, *p, s->scale_values().slice(row, p->local_shape[0]), mesh_, out);
      row += p->local_shape[0];
    }
  }
  assign_over_tp(out);
  return out;
}

std::vector<ShardView> ParamStore::grad_views() const {
  drop_squares();
  std::vector<Tensor> flat;
  for (const auto& s : units_) flat.push_back(s->held_grads());
  std::vector<ShardView> out;
  append_views("grad", flat, out);
  return out;
}

}  // namespace gt
