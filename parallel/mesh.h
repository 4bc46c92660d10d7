// The cartesian grid of ranks: the only place that turns a rank number into coordinates and groups.
// rank = ((pp * DP + dp) * CP + cp) * TP + tp: tp fastest (inside a node), pp slowest (across nodes). ep and cp are 1
// today; their axes exist so that nothing moves when they come.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "autograd/parameter.h"  // Axis
#include "parallel/comm/process_group.h"

namespace gt {

struct MeshShape {
  int pp = 1, dp = 1, ep = 1, cp = 1, tp = 1;
  // Consecutive tp ranks that hold the same key and value heads, where a model has fewer of them than tp ranks: a
  // divisor of tp. No axis: it changes no rank's place.
  int kv_ranks = 1;
  int world() const { return pp * dp * cp * tp; }
  int size(Axis) const;
  int coord(Axis, int rank) const;
  // All ranks that share every coordinate but `axis` with `rank`, ascending.
  std::vector<int> line(Axis, int rank) const;
  std::string place(int rank) const;  // "pp1 dp0 tp1"
};

class Mesh {
 public:
  // Collective over the factory's world. Throws kUsage when the world is not pp*dp*cp*tp, naming all five numbers.
  Mesh(MeshShape, GroupFactory&);
  const MeshShape& shape() const { return shape_; }
  int rank() const { return rank_; }
  int size(Axis a) const { return shape_.size(a); }
  int coord(Axis a) const { return shape_.coord(a, rank_); }
  ProcessGroup& group(Axis) const;  // of size 1: collectives are no-ops
  ProcessGroup& world() const { return *world_; }
  // Ranks that hold the same key and value heads as this one; of size 1 where every tp rank has its own.
  ProcessGroup& kv() const { return kv_ ? *kv_ : *one_; }
  // Ranks of the first and last stage with this rank's (dp, tp) place: the two copies of tied weights. Size 1 when pp
  // is 1 or this rank is on neither end.
  ProcessGroup& ends() const { return *ends_; }
  // Every rank of this pipeline stage: dp x cp x tp. The world when pp is 1.
  ProcessGroup& stage() const { return stage_ ? *stage_ : *world_; }
  // tp, pp, dp, ends, stage, world, and kv where there are some: the same list on every rank. `size` is that of the mesh's groups of this kind (this
  // rank may be on neither end); `group` may be this rank's group of one.
  struct Named {
    const char* name;
    ProcessGroup* group;
    int size;
  };
  std::vector<Named> groups() const;
  bool first_stage() const { return coord(Axis::kPp) == 0; }
  bool last_stage() const { return coord(Axis::kPp) == shape_.pp - 1; }
  std::string place() const { return shape_.place(rank_); }
  // Where this rank says what it is doing, for its neighbours to see when they wait for it.
  RankStatus& status() const { return *status_; }

 private:
  MeshShape shape_;
  int rank_ = 0;
  std::unique_ptr<RankStatus> own_status_;  // where the factory has none
  RankStatus* status_ = nullptr;
  std::unique_ptr<ProcessGroup> world_, pp_, dp_, tp_, kv_, ends_, stage_, one_;
};

}  // namespace gt
