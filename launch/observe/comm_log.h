// The communication of a run's training steps, by group and kind of call: what log.comm shows at the end. Evaluation,
// saving and loading are left out, so that bytes can be held against the closed forms (parallel/comm/README.md).
#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace gt {

CommCounters difference(const CommCounters& after, const CommCounters& before);

struct CommRow {
  std::string group;                          // tp, pp, dp, ends, stage, world
  std::string op;                             // all_reduce, …
  int64_t calls = 0, bytes = 0, payload = 0;  // all ranks: bytes sent by the ring forms (recv: received); full tensors
  double seconds = 0;  // from each call to its end, summed over all ranks; overlaps with computing and with other calls
  double blocked_seconds = 0;  // the ranks' threads inside calls and waits, summed
  bool in_graphs = false;  // calls may be parts of graphs: those are not in `seconds`, only the device sees their end
};

class CommLog {
 public:
  explicit CommLog(const Mesh&);
  void begin_step();
  void end_step();
  int64_t steps() const { return steps_; }
  // Collective over the world; rows with calls, equal on every rank. Sums over all ranks.
  std::vector<CommRow> rows() const;

 private:
  ProcessGroup& world_;
  const std::vector<Mesh::Named> groups_;
  std::vector<CommCounters> before_, total_;  // by group
  int64_t steps_ = 0;
};

// "group op calls bytes …", a line a row, figures a step (calls, bytes: all ranks; seconds: mean of the ranks).
std::string comm_table(const std::vector<CommRow>&, int64_t steps, int world);
std::string comm_json(const std::vector<CommRow>&, int64_t steps);  // the sums, as an object

}  // namespace gt
