// Communication of a run's training steps by group and op, printed by log.comm at the end. Excludes evaluation, saves
// and loads, so that bytes can be compared with the closed forms (tests/parallel/closed_forms.h).
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace gt {

struct CommRow {
  std::string group;                          // tp, pp, dp, embedding, stage, world
  std::string op;                             // all_reduce, …
  int64_t calls = 0, bytes = 0, payload = 0;  // all ranks: bytes sent by ring algorithms (recv: received); full tensors
  double seconds = 0;  // from each call to its completion, summed over ranks; overlaps with compute and other calls
  double blocked_seconds = 0;  // host time inside calls and waits, summed over ranks
  bool in_graphs = false;      // some calls are in device graphs and missing from `seconds`
};

class CommLog {
 public:
  explicit CommLog(const Mesh&);
  void begin_step();
  void end_step();
  int64_t steps() const { return steps_; }
  // Returns the rows with calls, summed over all ranks and equal on every rank. Collective over the world.
  std::vector<CommRow> rows() const;

 private:
  ProcessGroup& world_;
  const std::vector<Mesh::Named> groups_;
  std::vector<CommCounters> before_, total_;  // by group
  int64_t steps_ = 0;
};

// Returns "group op calls bytes …", one line per row, values per step (calls, bytes: all ranks; seconds: mean over
// ranks).
std::string comm_table(const std::vector<CommRow>&, int64_t steps, int world);
std::string comm_json(const std::vector<CommRow>&, int64_t steps);  // the sums, as an object

}  // namespace gt
