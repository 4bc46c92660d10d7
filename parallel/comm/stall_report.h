// Reads a board and says who keeps the others waiting. Pure functions of what was read, so that every case is a test.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/comm_board.h"

namespace gt {

struct GroupView {  // one rank's end of a group
  uint64_t key = 0;
  std::string label;
  int rank = 0, size = 0;
  uint64_t posted = 0, messages = 0;
  CommCall last;
  int64_t last_start = 0, last_step = 0;
  uint64_t last_where = kNowhere;
};

struct RankView {
  int world_rank = -1;
  int64_t pid = 0, step = 0;
  uint64_t where = kNowhere;
  RunPhase phase = RunPhase::kInit;
  std::string place;
  std::string host;        // "": this machine
  bool frozen = false;     // its monitor gives no sign of life
  double silent_s = 0;     // since when
  bool waits = false;
  double waited_s = 0, limit_s = 0;
  uint64_t wait_key = 0, wait_seq = 0;
  CommCall wait_call;
  std::vector<GroupView> groups;
  const GroupView* find(uint64_t key) const;
};

constexpr double kFrozenSeconds = 3;  // without a beat

// Index: local rank; a caller may append ranks of other machines. `now`: steady_ns.
std::vector<RankView> read_board(const CommBoard&, int64_t now);

enum class StallKind : uint8_t {
  kLate,       // `ranks` run, are frozen or have ended while others wait for them
  kDesync,     // `ranks` made different calls with one number
  kDeadlock,   // `ranks` wait for each other in a circle
  kTransport,  // everybody has arrived, `ranks` wait all the same; or the missing ones are on other machines
};

struct Diagnosis {
  StallKind kind = StallKind::kTransport;
  std::vector<int> ranks;    // indices
  std::string desync_calls;  // kDesync: who called what
};

// Edges: a waiting rank points to the members of its group that have not entered this collective and to frozen ones, or
// to the other side of its message. A frozen, running or ended rank points nowhere. Ranks without edges that a waiting
// one reaches are late. If there is none: from the least rank with edges follow the least edge, a circle is a deadlock.
Diagnosis diagnose(const std::vector<RankView>&, const CommBoard* board = nullptr);

// Whether all that is late is ranks that live and read or write checkpoints: slow disks are no hang.
bool late_on_files(const Diagnosis&, const std::vector<RankView>&);

// The rank that waits longest, by how far it is beyond its limit; nothing when none is beyond `factor` x its limit and
// `at_least` seconds.
std::optional<int> longest_wait(const std::vector<RankView>&, double factor = 1, double at_least = 0);

// One paragraph: what waits, for whom, who has not arrived with their last call, step, stage and microbatch.
std::string stall_text(const std::vector<RankView>&, const Diagnosis&, int waiter, int64_t now,
                       const std::string& host);
std::string who(const RankView&, const std::string& host);  // "rank 3 (node07 pid 4711, pp1 dp0 tp1)"
std::string where_text(int64_t step, uint64_t where);       // "step 12, stage 1, microbatch 3"

// One line a rank: where it is and what it waits for.
std::string board_text(const std::vector<RankView>&, int64_t now, const std::string& host);

// Writes slots.txt and one rank-N.txt with its last calls for each rank into a folder that exists. Best effort.
void dump_board(const CommBoard&, const std::vector<RankView>&, int64_t now, const std::string& folder);

}  // namespace gt
