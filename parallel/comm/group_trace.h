// Writes one rank's calls and waits in a group to the board. Detects calls that differ between neighbours of a group as
// soon as the second one is made. Costs a few stores per call; does nothing if default-constructed.
#pragma once
#include "parallel/comm/watch/comm_board.h"

namespace gt {

class GroupTrace {
 public:
  GroupTrace() = default;
  // Takes a free slot of local rank `local` and registers it; if none is free, the group is not traced. `number`: of
  // the make() call, the same on all its ranks; `leader`: first world rank of the group.
  GroupTrace(const CommBoard&, int local, uint64_t number, int leader, int rank, int size);
  void connect();  // once all ranks have registered: finds the neighbours' slots
  void close();    // releases the slot
  void set_label(const std::string&);

  // Records the start of a collective or message; `seq`: its number in the group, on this rank.
  void collective(const CommCall&, uint64_t seq, int64_t now);
  void message(const CommCall&, uint64_t seq, int64_t now);
  void begin_wait(const CommCall&, uint64_t seq, int64_t since);
  void end_wait() {
    if (pages_ != nullptr) pages_->rank.wait_start.store(0, std::memory_order_relaxed);
  }

  // Call after collective(). Returns "" if neighbours have made no other call with this number; costs two loads.
  // Otherwise marks the group as broken on all ranks of this machine and returns "collective #5 differs between ranks:
  // rank 0 (world rank 4) called …, rank 1 (world rank 5) called …".
  std::string disagreement(const CommCall&, uint64_t seq);
  // Whether any rank has detected a mismatch, and its text.
  bool broken() const { return slot_ != nullptr && slot_->broken.load(std::memory_order_acquire) != 0; }
  std::string broken_calls() const { return board_.head->broken_calls.load(); }
  // Last call of rank `rank` of the group: "last call in this group: #4 barrier, …"; "" if it is not on this board.
  std::string last_call(int rank) const;

 private:
  void record(const CommCall&, uint64_t seq, int64_t now);
  struct Neighbour {
    RankPages* pages = nullptr;
    GroupSlot* slot = nullptr;  // nullptr: on another machine
  };
  Neighbour neighbour(uint32_t rank) const;
  CommBoard board_;
  RankPages* pages_ = nullptr;
  GroupSlot* slot_ = nullptr;
  Neighbour next_, before_;
  uint64_t key_ = 0;
};

}  // namespace gt
