// The rank mesh: the only place that maps rank numbers to coordinates and groups.
//
// rank = ((pp * DP + dp) * CP + cp) * TP + tp: tp is fastest (inside a node), pp slowest (across nodes). Experts use
// another view of the same ranks: those of a stage are also (expert_dp * EP + ep) * ETP + etp (Megatron's parallel
// folding). Dense parameters are replicated over dp x cp and split over tp, those of an expert replicated over
// expert_dp and split over ep and etp.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "autograd/axis.h"
#include "parallel/comm/process_group.h"

namespace gt {

std::string_view name_of(Axis);  // "expert_dp"

// A set of mesh axes, such as {Axis::kDp, Axis::kCp}.
class AxisSet {
 public:
  constexpr AxisSet(Axis a) : bits_(bit(a)) {}  // implicit: one axis is a set
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis a : axes) bits_ |= bit(a);
  }
  constexpr bool has(Axis a) const { return (bits_ & bit(a)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet with(Axis a) const {
    AxisSet all = *this;
    all.bits_ |= bit(a);
    return all;
  }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;

 private:
  static constexpr uint8_t bit(Axis a) { return static_cast<uint8_t>(1u << static_cast<int>(a)); }
  uint8_t bits_ = 0;
};
std::string name_of(AxisSet);  // "dp_cp"

// Ranks that replicate parameters which process every token, and those that replicate the parameters of an expert.
inline constexpr AxisSet kDenseDomain{Axis::kDp, Axis::kCp}, kExpertDomain{Axis::kExpertDp};

struct MeshShape {
  int pp = 1, dp = 1, ep = 1, cp = 1, tp = 1;
  int etp = 0;  // ranks that split the matrices of an expert; 0: tp
  // Consecutive TP ranks that hold the same KV heads, if a model has fewer KV heads than TP ranks: a divisor of tp. Not
  // an axis: rank coordinates do not depend on it.
  int kv_ranks = 1;
  int world() const { return pp * dp * cp * tp; }
  int size(Axis) const;
  int coord(Axis, int rank) const;
  RankCoordinates all_coordinates(int rank) const;
  // Ranks whose coordinates on every other axis equal those of `rank`, ascending. Requires: the set does not mix {kDp,
  // kCp} with {kExpertDp, kEp}, which are two views of the same ranks; where etp differs from tp, nor kTp with these or
  // kEtp with those.
  std::vector<int> members(AxisSet, int rank) const;
  // The same ranks by the fewest axes: drops axes of size 1 and replaces expert axes by the dense ones that connect the
  // same ranks, as {kExpertDp, kEp} by {kDp, kCp} where etp is tp.
  AxisSet reduced(AxisSet) const;
  std::string coordinates(int rank) const;  // rank coordinates: "pp1 dp0 tp1"
};

// Ranks that replicate a set of parameters: gradients are reduced over them, shards are distributed among them.
struct Domain {
  ProcessGroup* group = nullptr;
  int rank = 0, size = 1;
};

class Mesh {
 public:
  // Collective over the factory's world. Throws kUsage if the world size is not pp*dp*cp*tp, naming all five numbers,
  // or if ep*etp does not divide dp*cp*tp.
  Mesh(MeshShape, GroupFactory&);
  const MeshShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  int size(Axis a) const { return shape_.size(a); }
  int coord(Axis a) const { return shape_.coord(a, rank_); }
  RankCoordinates all_coordinates() const { return shape_.all_coordinates(rank_); }
  // Group of the ranks that differ from this one on these axes alone. Of size 1 where the axes are: collectives are
  // then no-ops. There are groups of each axis, of {kDp, kCp} and, where etp is tp, of {kExpertDp, kEp}; kInternal for
  // other combinations.
  ProcessGroup& group(AxisSet) const;
  Domain domain(AxisSet axes) const { return {&group(axes), group(axes).rank(), group(axes).size()}; }
  ProcessGroup& world() const { return *world_; }
  // Ranks that hold the same KV heads as this one; of size 1 if every TP rank has its own.
  ProcessGroup& kv() const { return kv_ ? *kv_ : *one_; }
  // Embedding group: the ranks of the first and last stage with this rank's (dp, cp, tp) coordinates, which hold the
  // two copies of tied weights. Of size 1 if pp is 1 or this rank is on neither stage.
  ProcessGroup& embedding_group() const { return *embedding_group_; }
  // Every rank of this pipeline stage: dp x cp x tp. The world if pp is 1.
  ProcessGroup& stage() const { return stage_ ? *stage_ : *world_; }
  // tp, pp, dp, embedding, stage, world, then those that not every mesh has (cp, dp_cp, ep, expert_dp, etp, kv): the
  // same list on every rank. `size`: of the mesh's groups of this kind, even if this rank is in none. `group`: then a
  // group of this rank alone.
  struct Named {
    std::string name;
    ProcessGroup* group;
    int size;
  };
  std::vector<Named> groups() const;
  bool first_stage() const { return coord(Axis::kPp) == 0; }
  bool last_stage() const { return coord(Axis::kPp) == shape_.pp - 1; }
  std::string coordinates() const { return shape_.coordinates(rank_); }
  // Current activity of this rank, which other ranks read while they wait for it.
  RankStatus& status() const { return *status_; }

 private:
  struct AxisGroup {
    AxisSet axes;
    std::unique_ptr<ProcessGroup> group;
  };
  MeshShape shape_;
  int rank_ = 0;
  std::unique_ptr<RankStatus> own_status_;  // if the factory has none
  RankStatus* status_ = nullptr;
  std::vector<AxisGroup> axis_groups_;  // keyed by MeshShape::reduced
  std::unique_ptr<ProcessGroup> world_, kv_, embedding_group_, stage_, one_;
};

}  // namespace gt
