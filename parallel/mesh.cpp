#include "parallel/mesh.h"

#include "parallel/comm/call.h"

namespace gt {
namespace {
constexpr const char* kAxisNames[] = {"pp", "dp", "ep", "cp", "tp"};
}  // namespace

int MeshShape::size(Axis a) const {
  switch (a) {
    case Axis::kPp: return pp;
    case Axis::kDp: return dp;
    case Axis::kEp: return ep;
    case Axis::kCp: return cp;
    case Axis::kTp: return tp;
  }
  GT_CHECK(false, "axis ", static_cast<int>(a));
  return 0;
}

int MeshShape::coord(Axis a, int rank) const {
  switch (a) {
    case Axis::kTp: return rank % tp;
    case Axis::kCp: return rank / tp % cp;
    case Axis::kEp: return rank / tp % (dp * cp) % ep;  // a run of ep consecutive places on the line of dp * cp ranks
    case Axis::kDp: return rank / (tp * cp) % dp;
    case Axis::kPp: return rank / (tp * cp * dp);
  }
  GT_CHECK(false, "axis ", static_cast<int>(a));
  return 0;
}

std::vector<int> MeshShape::line(Axis a, int rank) const {
  GT_CHECK(rank >= 0 && rank < world(), "rank ", rank, " of a world of ", world());
  int stride = 1;  // distance between neighbours along the axis
  if (a == Axis::kEp || a == Axis::kCp) stride = tp;
  if (a == Axis::kDp) stride = tp * cp;
  if (a == Axis::kPp) stride = tp * cp * dp;
  std::vector<int> ranks(static_cast<size_t>(size(a)));
  for (int i = 0; i < size(a); ++i) ranks[static_cast<size_t>(i)] = rank + (i - coord(a, rank)) * stride;
  return ranks;
}

std::string MeshShape::place(int rank) const {
  std::string s = cat("pp", coord(Axis::kPp, rank), " dp", coord(Axis::kDp, rank));
  if (ep > 1) s += cat(" ep", coord(Axis::kEp, rank));
  if (cp > 1) s += cat(" cp", coord(Axis::kCp, rank));
  return s + cat(" tp", coord(Axis::kTp, rank));
}

Mesh::Mesh(MeshShape shape, GroupFactory& factory) : shape_(shape), rank_(factory.world_rank()) {
  GT_REQUIRE(shape.pp > 0 && shape.dp > 0 && shape.ep > 0 && shape.cp > 0 && shape.tp > 0, Exit::kUsage,
             "every axis of the mesh must be at least 1, found pp ", shape.pp, ", dp ", shape.dp, ", ep ", shape.ep,
             ", cp ", shape.cp, ", tp ", shape.tp);
  GT_REQUIRE(shape.world() == factory.world_size(), Exit::kUsage, "the mesh pp ", shape.pp, " x dp ", shape.dp,
             " x cp ", shape.cp, " x tp ", shape.tp, " needs ", shape.world(), " ranks, but ", factory.world_size(),
             " were started: start that many or change an axis");
  GT_CHECK(shape.kv_ranks > 0 && shape.tp % shape.kv_ranks == 0, shape.kv_ranks, " ranks for a key head, of tp ",
           shape.tp);
  GT_REQUIRE(shape.cp == 1 && shape.ep == 1, Exit::kUsage,
             "context and expert parallelism are not built: cp and ep must be 1, found cp ", shape.cp, ", ep ",
             shape.ep);

  status_ = factory.status();
  if (status_ == nullptr) {
    own_status_ = std::make_unique<RankStatus>();
    status_ = own_status_.get();
  }
  status_->set_place(place());
  auto make = [&](const char* name, const std::vector<int>& ranks) {
    auto group = factory.make(ranks);
    group->set_label(cat(name, " group ", to_string(ranks)));
    return group;
  };
  // Every rank makes the same calls in the same order: make() is collective.
  auto axis = [&](Axis a) {
    return size(a) > 1 ? make(kAxisNames[static_cast<int>(a)], shape_.line(a, rank_)) : std::unique_ptr<ProcessGroup>();
  };
  std::vector<int> everyone(static_cast<size_t>(shape.world()));
  for (int r = 0; r < shape.world(); ++r) everyone[static_cast<size_t>(r)] = r;
  world_ = make("world", everyone);
  pp_ = axis(Axis::kPp);
  dp_ = axis(Axis::kDp);
  tp_ = axis(Axis::kTp);
  if (shape.kv_ranks > 1) {
    std::vector<int> run(static_cast<size_t>(shape.kv_ranks));
    for (int i = 0; i < shape.kv_ranks; ++i)  // tp is the fastest axis: neighbours
      run[static_cast<size_t>(i)] = rank_ - coord(Axis::kTp) % shape.kv_ranks + i;
    kv_ = make("kv", run);
  }
  const std::vector<int> stages = shape_.line(Axis::kPp, rank_);
  const bool end = shape.pp > 1 && (first_stage() || last_stage());
  ends_ = make("ends", end ? std::vector<int>{stages.front(), stages.back()} : std::vector<int>{rank_});
  if (shape.pp > 1) {
    std::vector<int> places(static_cast<size_t>(shape.world() / shape.pp));  // pp is the slowest axis: neighbours
    for (size_t i = 0; i < places.size(); ++i)
      places[i] = coord(Axis::kPp) * static_cast<int>(places.size()) + static_cast<int>(i);
    stage_ = make("stage", places);
  }
  one_ = make("self", {rank_});
}

std::vector<Mesh::Named> Mesh::groups() const {
  std::vector<Named> out{{"tp", &group(Axis::kTp), size(Axis::kTp)},
                         {"pp", &group(Axis::kPp), size(Axis::kPp)},
                         {"dp", &group(Axis::kDp), size(Axis::kDp)},
                         {"ends", ends_.get(), shape_.pp > 1 ? 2 : 1},
                         {"stage", &stage(), stage_ ? shape_.world() / shape_.pp : 1},
                         {"world", world_.get(), shape_.world()}};
  if (kv_) out.push_back({"kv", kv_.get(), shape_.kv_ranks});
  return out;
}

ProcessGroup& Mesh::group(Axis a) const {
  const std::unique_ptr<ProcessGroup>* held = &one_;
  if (a == Axis::kPp && pp_) held = &pp_;
  if (a == Axis::kDp && dp_) held = &dp_;
  if (a == Axis::kTp && tp_) held = &tp_;
  return **held;
}

}  // namespace gt
