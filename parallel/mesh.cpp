#include "parallel/mesh.h"

#include <algorithm>

#include "parallel/comm/call.h"

namespace gt {
namespace {

constexpr Axis kAxes[] = {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kExpertDp, Axis::kEp, Axis::kTp, Axis::kEtp};

// Rank numbering along one axis: neighbours are `stride` ranks apart.
struct AxisStep {
  Axis axis;
  int size, stride;
};
AxisStep step_of(const MeshShape& s, Axis a) {
  const int etp = s.etp > 0 ? s.etp : s.tp;
  switch (a) {
    case Axis::kTp: return {a, s.tp, 1};
    case Axis::kCp: return {a, s.cp, s.tp};
    case Axis::kDp: return {a, s.dp, s.tp * s.cp};
    case Axis::kEtp: return {a, etp, 1};
    case Axis::kEp: return {a, s.ep, etp};
    case Axis::kExpertDp: return {a, s.dp * s.cp * s.tp / (s.ep * etp), etp * s.ep};
    case Axis::kPp: return {a, s.pp, s.tp * s.cp * s.dp};
  }
  GT_CHECK(false, "axis ", static_cast<int>(a));
  return {};
}

}  // namespace

std::string_view name_of(Axis a) {
  switch (a) {
    case Axis::kPp: return "pp";
    case Axis::kDp: return "dp";
    case Axis::kExpertDp: return "expert_dp";
    case Axis::kEp: return "ep";
    case Axis::kCp: return "cp";
    case Axis::kTp: return "tp";
    case Axis::kEtp: return "etp";
  }
  return "?";
}

std::string name_of(AxisSet set) {
  std::string name;
  for (Axis a : kAxes)
    if (set.has(a)) name += cat(name.empty() ? "" : "_", name_of(a));
  return name;
}

int MeshShape::size(Axis a) const { return step_of(*this, a).size; }

int MeshShape::coord(Axis a, int rank) const {
  const AxisStep s = step_of(*this, a);
  return rank / s.stride % s.size;
}

RankCoordinates MeshShape::all_coordinates(int rank) const {
  RankCoordinates out;
  for (Axis a : kAxes) out[a] = {coord(a, rank), size(a)};
  return out;
}

std::vector<int> MeshShape::members(AxisSet set, int rank) const {
  GT_CHECK(rank >= 0 && rank < world(), "rank ", rank, " of a world of ", world());
  const bool folded = size(Axis::kEtp) != tp;
  const bool experts = set.has(Axis::kEp) || set.has(Axis::kExpertDp) || (folded && set.has(Axis::kEtp));
  GT_CHECK(!experts || !(set.has(Axis::kDp) || set.has(Axis::kCp) || (folded && set.has(Axis::kTp))), name_of(set),
           ": mixes dense (dp, cp", folded ? ", tp" : "", ") and expert (expert_dp, ep", folded ? ", etp" : "",
           ") axes");
  std::vector<int> ranks{rank};
  // By ascending stride.
  for (Axis a : {Axis::kTp, Axis::kEtp, Axis::kCp, Axis::kEp, Axis::kDp, Axis::kExpertDp, Axis::kPp}) {
    if (!set.has(a) || (a == Axis::kEtp && set.has(Axis::kTp))) continue;  // one axis where both are allowed
    const AxisStep s = step_of(*this, a);
    const size_t inner = ranks.size();
    for (int& r : ranks) r -= coord(a, rank) * s.stride;
    for (int i = 1; i < s.size; ++i)
      for (size_t k = 0; k < inner; ++k) ranks.push_back(ranks[k] + i * s.stride);
  }
  return ranks;
}

AxisSet MeshShape::reduced(AxisSet set) const {
  const auto covers = [&](Axis a) { return set.has(a) || size(a) == 1; };
  const bool folded = size(Axis::kEtp) != tp, experts = set.has(Axis::kExpertDp) && covers(Axis::kEp);
  AxisSet out{};
  const auto add = [&](Axis a) {
    if (size(a) > 1) out = out.with(a);
  };
  if (experts && (!folded || covers(Axis::kEtp))) {
    add(Axis::kDp), add(Axis::kCp);
    if (folded || set.has(Axis::kTp) || set.has(Axis::kEtp)) add(Axis::kTp);
    if (set.has(Axis::kPp)) add(Axis::kPp);
    return out;
  }
  for (Axis a : kAxes)
    if (set.has(a)) add(a == Axis::kEtp && !folded ? Axis::kTp : a);
  return out;
}

std::string MeshShape::coordinates(int rank) const {
  std::string s = cat("pp", coord(Axis::kPp, rank), " dp", coord(Axis::kDp, rank));
  if (ep > 1) s += cat(" ep", coord(Axis::kEp, rank));
  if (size(Axis::kEtp) != tp) s += cat(" etp", coord(Axis::kEtp, rank));
  if (cp > 1) s += cat(" cp", coord(Axis::kCp, rank));
  return s + cat(" tp", coord(Axis::kTp, rank));
}

Mesh::Mesh(MeshShape shape, GroupFactory& factory) : shape_(shape), rank_(factory.world_rank()) {
  GT_REQUIRE(shape.pp > 0 && shape.dp > 0 && shape.ep > 0 && shape.cp > 0 && shape.tp > 0 && shape.etp >= 0,
             Exit::kUsage, "every axis of the mesh must be at least 1, found pp ", shape.pp, ", dp ", shape.dp, ", ep ",
             shape.ep, ", cp ", shape.cp, ", tp ", shape.tp, ", etp ", shape.etp);
  GT_REQUIRE(shape.world() == factory.world_size(), Exit::kUsage, "the mesh pp ", shape.pp, " x dp ", shape.dp,
             " x cp ", shape.cp, " x tp ", shape.tp, " needs ", shape.world(), " ranks, but ", factory.world_size(),
             " were started: start that many or change an axis");
  GT_CHECK(shape.kv_ranks > 0 && shape.tp % shape.kv_ranks == 0, shape.kv_ranks, " ranks for a KV head, of tp ",
           shape.tp);
  const int etp = shape.size(Axis::kEtp);
  GT_REQUIRE(shape.dp * shape.cp * shape.tp % (shape.ep * etp) == 0, Exit::kUsage, "ep ", shape.ep, " x etp ", etp,
             " does not divide dp ", shape.dp, " x cp ", shape.cp, " x tp ", shape.tp,
             ": experts are split over the ranks of a stage");

  status_ = factory.status();
  if (status_ == nullptr) {
    own_status_ = std::make_unique<RankStatus>();
    status_ = own_status_.get();
  }
  status_->set_coordinates(coordinates());
  auto make = [&](const std::string& name, const std::vector<int>& ranks) {
    auto group = factory.make(ranks);
    group->set_label(cat(name, " group ", to_string(ranks)));
    return group;
  };
  // Every rank makes the same calls in the same order: make() is collective.
  std::vector<int> everyone(static_cast<size_t>(shape.world()));
  for (int r = 0; r < shape.world(); ++r) everyone[static_cast<size_t>(r)] = r;
  world_ = make("world", everyone);
  for (AxisSet set :
       {AxisSet{Axis::kPp}, AxisSet{Axis::kDp}, AxisSet{Axis::kTp}, AxisSet{Axis::kCp}, AxisSet{Axis::kDp, Axis::kCp},
        AxisSet{Axis::kEp}, AxisSet{Axis::kExpertDp}, AxisSet{Axis::kEtp}}) {
    const AxisSet axes = shape_.reduced(set);
    const auto same = [&](const AxisGroup& g) { return g.axes == axes; };
    if (axes.empty() || std::any_of(axis_groups_.begin(), axis_groups_.end(), same)) continue;
    axis_groups_.push_back({axes, make(name_of(axes), shape_.members(axes, rank_))});
  }
  if (shape.kv_ranks > 1) {
    std::vector<int> run(static_cast<size_t>(shape.kv_ranks));
    for (int i = 0; i < shape.kv_ranks; ++i)  // tp is the fastest axis: neighbours
      run[static_cast<size_t>(i)] = rank_ - coord(Axis::kTp) % shape.kv_ranks + i;
    kv_ = make("kv", run);
  }
  const std::vector<int> stages = shape_.members(Axis::kPp, rank_);
  const bool end = shape.pp > 1 && (first_stage() || last_stage());
  embedding_group_ = make("embedding", end ? std::vector<int>{stages.front(), stages.back()} : std::vector<int>{rank_});
  if (shape.pp > 1) {
    std::vector<int> stage_ranks(static_cast<size_t>(shape.world() / shape.pp));  // pp is the slowest axis: neighbours
    for (size_t i = 0; i < stage_ranks.size(); ++i)
      stage_ranks[i] = coord(Axis::kPp) * static_cast<int>(stage_ranks.size()) + static_cast<int>(i);
    stage_ = make("stage", stage_ranks);
  }
  one_ = make("self", {rank_});
}

std::vector<Mesh::Named> Mesh::groups() const {
  std::vector<Named> out{{"tp", &group(Axis::kTp), size(Axis::kTp)},
                         {"pp", &group(Axis::kPp), size(Axis::kPp)},
                         {"dp", &group(Axis::kDp), size(Axis::kDp)},
                         {"embedding", embedding_group_.get(), shape_.pp > 1 ? 2 : 1},
                         {"stage", &stage(), stage_ ? shape_.world() / shape_.pp : 1},
                         {"world", world_.get(), shape_.world()}};
  for (const AxisGroup& g : axis_groups_)
    if (g.axes != Axis::kTp && g.axes != Axis::kPp && g.axes != Axis::kDp)
      out.push_back({name_of(g.axes), g.group.get(), g.group->size()});
  if (kv_) out.push_back({"kv", kv_.get(), shape_.kv_ranks});
  return out;
}

ProcessGroup& Mesh::group(AxisSet set) const {
  const AxisSet axes = shape_.reduced(set);
  if (axes.empty()) return *one_;
  for (const AxisGroup& g : axis_groups_)
    if (g.axes == axes) return *g.group;
  GT_CHECK(false, "the mesh has no group over ", name_of(set));
  return *one_;
}

}  // namespace gt
