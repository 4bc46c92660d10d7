// Static proof of a layout. A step of one rank's engine runs on the null backend; every op, collective and message
// gives the tensors that it writes a type per mesh axis (layout_type.h), derived from those that it reads. What does
// not fit is an error that names op, axis and both types: a sum that is missing, made twice or over other ranks, a
// gradient that is not what its parameter's sharding requires, an update that reads partial sums, a value that was not
// gathered.
//
// All ranks of a stage run the same program, so one rank of each stage is enough. What types cannot see is in
// docs/guarantees.md: numbers inside kernels, positions, factors.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "parallel/comm/process_group.h"
#include "parallel/mesh.h"
#include "parallel/proof/layout_type.h"
#include "parallel/zero/param_store.h"

namespace gt::proof {

// Shape of what stages send each other.
struct Boundary {
  int64_t elements = 0;
  bool rows_split = false;  // over tp; else equal on every tp rank
};

// Collectives of one kind over the same ranks on tensors of the same shapes, as one line of the engine makes them.
struct Site {
  CommOp op = CommOp::kAllReduce;
  std::vector<Along> over;
  Shape part, whole;
  friend bool operator==(const Site& a, const Site& b) {
    return a.op == b.op && a.over == b.over && a.part == b.part && a.whole == b.whole;
  }
};

std::string to_string(const Site&);  // "all_reduce over dp, cp of [128]"

// An injected fault: the collectives of a site are left out, made twice, or made over other ranks.
struct Fault {
  Site site;
  int times = 0;
  std::vector<Along> over;
};

// The first call of a rank that does not fit. Calls are numbered from 1.
class LayoutError : public Error {
 public:
  LayoutError(const std::string& what, int of_rank, int64_t number)
      : Error(what, Exit::kInternal), rank(of_rank), call(number) {}
  int rank;
  int64_t call;
  std::vector<std::pair<std::string, int64_t>> written;  // operands, and the calls that wrote them last
};

// Observes this thread's calls until destroyed; one per thread. `traced`: numbers of calls whose stacks are kept.
class LayoutProof {
 public:
  LayoutProof(const MeshShape&, int rank, std::optional<Fault> = {}, std::set<int64_t> traced = {});
  ~LayoutProof();
  LayoutProof(const LayoutProof&) = delete;
  LayoutProof& operator=(const LayoutProof&) = delete;

  const Backend& backend() const;  // the null backend, observed
  GroupFactory& factory();         // its groups are observed

  // Call before the first step. tokens: memory of what a microbatch has for each sequence.
  void begin(const ParamStore&, const Tensor& tokens, Boundary);
  int64_t ops() const, messages() const;                        // observed so far: calls of ops, of groups
  const std::vector<Site>& sites() const;                       // of the collectives observed so far
  const std::map<int64_t, std::vector<void*>>& stacks() const;  // of traced calls, innermost frame first
  // Whether layouts of this mesh can be proved: etp is tp, and of ep and cp one divides the other.
  static bool supports(const MeshShape&);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt::proof
