// Reads a board and diagnoses which ranks stall the others. Pure functions of what was read, so that every case is
// testable.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/watch/comm_board.h"

namespace gt {

struct GroupView {  // one rank's slot in a group
  uint64_t key = 0;
  std::string label;
  int rank = 0, size = 0;
  uint64_t posted = 0, messages = 0;
  CommCall last;
  int64_t last_start = 0, last_step = 0;
  uint64_t last_where = kNoPosition;
};

struct RankView {
  int world_rank = -1;
  int64_t pid = 0, step = 0;
  uint64_t where = kNoPosition;
  RunPhase phase = RunPhase::kInit;
  std::string coordinates;
  std::string host;     // "": this machine
  bool frozen = false;  // its monitor's heartbeat has stopped
  double silent_s = 0;  // for how long
  bool waits = false;
  double waited_s = 0, limit_s = 0;
  uint64_t wait_key = 0, wait_seq = 0;
  CommCall wait_call;
  std::vector<GroupView> groups;
  const GroupView* find(uint64_t key) const;
};

constexpr double kFrozenSeconds = 3;      // without a heartbeat
constexpr double kStepLimitSeconds = 10;  // shortest limit of a wait in a step

// Index: local rank; a caller may append ranks of other machines. `now`: steady_ns.
std::vector<RankView> read_board(const CommBoard&, int64_t now);

enum class StallKind : uint8_t {
  kLate,       // `ranks` run, are frozen or have ended while others wait for them
  kDesync,     // `ranks` made different calls with one number
  kDeadlock,   // `ranks` wait for each other in a cycle
  kTransport,  // all have arrived, but `ranks` still wait; or the missing ones are on other machines
};

struct Diagnosis {
  StallKind kind = StallKind::kTransport;
  std::vector<int> ranks;    // indices
  std::string desync_calls;  // kDesync: who called what
};

// Wait-for graph. A rank waiting in a collective has edges to the members of its group that have not entered it and to
// frozen ones. A rank waiting for a message has an edge to its peer. Frozen, running and ended ranks have no edges.
// Ranks without edges that are reachable from a waiting one are late. If there are none, the lowest edges are followed
// from the lowest rank with edges: a cycle is a deadlock.
Diagnosis diagnose(const std::vector<RankView>&, const CommBoard* board = nullptr);

// Whether all late ranks are alive and reading or writing checkpoints: slow disks are not a hang.
bool late_on_checkpoint_io(const Diagnosis&, const std::vector<RankView>&);

// Lowers all limits to that of a fast step if frozen ranks alone are late: their phase explains slowness, not silence.
void shorten_limits_for_frozen(std::vector<RankView>&, const CommBoard* board = nullptr);

// Returns the waiting rank furthest beyond its limit, in seconds; nullopt if none is beyond both `factor` x its limit
// and `at_least` seconds. Frozen ranks are skipped.
std::optional<int> longest_wait(const std::vector<RankView>&, double factor = 1, double at_least = 0);

// One paragraph: the stalled call and its waiter, and for the ranks that have not arrived their last call, step, stage
// and microbatch.
std::string stall_text(const std::vector<RankView>&, const Diagnosis&, int waiter, int64_t now,
                       const std::string& host);
std::string who(const RankView&, const std::string& host);  // "rank 3 (node07 pid 4711, pp1 dp0 tp1)"
std::string position_text(int64_t step, uint64_t where);    // "step 12, stage 1, microbatch 3"

// One line per rank: its position and what it waits for.
std::string board_text(const std::vector<RankView>&, int64_t now, const std::string& host);

// Writes slots.txt and, for each rank, rank-N.txt with its last calls into an existing folder. Best effort.
void dump_board(const CommBoard&, const std::vector<RankView>&, int64_t now, const std::string& folder);

}  // namespace gt
