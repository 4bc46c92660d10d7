// What one rank's end of a group writes on the board: every call, every wait. Finds calls that differ between
// neighbours of a group as soon as the second of them is made. Some stores a call; nothing when default-made.
#pragma once
#include "parallel/comm/comm_board.h"

namespace gt {

class GroupTrace {
 public:
  GroupTrace() = default;
  // Takes a free slot of local rank `local` and announces it; when none is free the group is not traced. `number`: of
  // the make() call, the same on all its ranks; `leader`: first world rank of the group.
  GroupTrace(const CommBoard&, int local, uint64_t number, int leader, int rank, int size);
  void connect();  // all ranks have announced theirs: find the neighbours' slots
  void close();    // the group ends here
  void set_label(const std::string&);

  // A collective or a message is entered; `seq`: its number in the group, on this rank.
  void collective(const CommCall&, uint64_t seq, int64_t now);
  void message(const CommCall&, uint64_t seq, int64_t now);
  void begin_wait(const CommCall&, uint64_t seq, int64_t since);
  void end_wait() {
    if (pages_ != nullptr) pages_->rank.wait_start.store(0, std::memory_order_relaxed);
  }

  // After collective(): whether a neighbour has made another call with this number: then "collective #5 differs between
  // ranks: rank 0 (world rank 4) called …, rank 1 (world rank 5) called …", and the group counts as broken on all ranks
  // of this machine. Empty, for two loads, when all is well.
  std::string disagreement(const CommCall&, uint64_t seq);
  // Whether another rank has found that; the same text.
  bool broken() const { return slot_ != nullptr && slot_->broken.load(std::memory_order_acquire) != 0; }
  std::string broken_calls() const { return board_.head->broken_calls.load(); }
  // Rank `rank` of the group, as far as it can be seen from here: "last call in this group: #4 barrier, …"; else "".
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
