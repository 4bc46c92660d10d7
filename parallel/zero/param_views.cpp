// What checkpoints and tests see of the store: named pieces of logical tensors.
#include <cmath>

#include "parallel/zero/param_store.h"
#include "parallel/zero/scope_state.h"

namespace gt {

void ParamStore::append_views(const std::string& group, std::span<const Tensor> flat_state,
                              std::vector<ShardView>& out) const {
  GT_CHECK(flat_state.size() == scopes_.size(), "one flat state buffer per scope");
  const int dp = mesh_.coord(Axis::kDp);
  for (size_t k = 0; k < scopes_.size(); ++k) {
    const ScopeState& s = *scopes_[k];
    if (s.owner) continue;
    // Saved: this rank's own shard, at every stage. Read besides, where values or state are whole: the rest of them.
    const int64_t held = flat_state[k].numel(), from = held == s.layout.size ? 0 : s.begin();
    for (int r = 0; r < mesh_.size(Axis::kDp); ++r)
      for (const FlatSegment& g : s.layout.segments[static_cast<size_t>(r)]) {
        if (g.at < from || g.at + g.count > from + held) continue;
        const Parameter& p = *s.spec.params[static_cast<size_t>(g.tensor)];
        for (const auto& [piece, counted] : counted_pieces(s, g, mesh_))
          if (piece.count > 0)
            out.push_back({.name = group + "/" + (p.tied_to.empty() ? p.name : p.tied_to),
                           .data = flat_state[k].slice(piece.at - from, piece.count),
                           .full = p.full_shape, .local = p.local_shape, .shard = p.shard,
                           .tp_rank = mesh_.coord(Axis::kTp), .tp_size = mesh_.size(Axis::kTp),
                           .pad_rows = p.pad_rows, .begin = piece.begin,
                           .save = r == dp && !s.tied_copy() && (counted || p.shard.kind != ShardSpec::Kind::kSplit)});
      }
  }
  deal_over_tp(out);
}

std::optional<ParamStore::BadGradient> ParamStore::first_bad_gradient() const {
  constexpr int64_t kMostParameters = 1 << 16;  // of a scope
  const Buffer room(size_of(DType::kF64), compute_.device, *backend_.device);
  std::optional<BadGradient> found;
  for (const auto& s : scopes_)
    for (const FlatSegment& g : s->layout.segments[static_cast<size_t>(mesh_.coord(Axis::kDp))]) {
      if (s->tied_copy()) continue;  // its owner has the sum
      const int64_t place = (total_scopes_ - s->spec.index) * kMostParameters - s->place[static_cast<size_t>(g.tensor)];
      double squares = 0;
      backend_.ops->sum_squares({.x = s->grads_at(g.at, g.at + g.count), .out = room.tensor({1}, DType::kF64)},
                                compute_);
      backend_.device->copy(&squares, room.data(), sizeof squares, compute_);
      backend_.device->synchronize(compute_);
      if (!std::isfinite(squares) && (!found || place < found->place))
        found = {place, s->spec.params[static_cast<size_t>(g.tensor)]->name};
    }
  return found;
}

std::vector<ShardView> ParamStore::value_views() const {
  std::vector<Tensor> flat;
  for (const auto& s : scopes_)
    flat.push_back(s->masters.bytes() > 0 ? s->masters.tensor({s->masters.bytes() / size_of(DType::kF32)}, DType::kF32)
                                          : s->held_values());
  std::vector<ShardView> out;
  append_views("master", flat, out);
  return out;
}

std::vector<ShardView> ParamStore::grad_views() const {
  std::vector<Tensor> flat;
  for (const auto& s : scopes_) flat.push_back(s->held_grads());
  std::vector<ShardView> out;
  append_views("grad", flat, out);
  return out;
}

}  // namespace gt
