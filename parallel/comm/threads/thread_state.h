// Private to the thread backend: state shared by the threads of one world and the members of one group.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/side_channel.h"
#include "parallel/comm/threads/thread_device.h"
#include "parallel/comm/threads/thread_group.h"

namespace gt {

// One collective in flight. Ranks fill a/b under the group's mutex. Once all have arrived, work items (independent
// parts of the result) are claimed by an atomic counter and processed without a lock.
struct ThreadCollective {
  bool used = false;
  uint64_t seq = 0;
  CommCall call;
  int first_rank = 0;  // posted first: the other side of a mismatch
  int arrived = 0, departed = 0;
  bool complete = false;
  int64_t finished = 0;              // steady_ns
  std::vector<int64_t> started;      // by rank
  std::vector<Tensor> a, b;          // by rank: inout, full or send; shard or recv
  std::vector<PeerOffsets> offsets;  // by rank, of an all_to_all
  int64_t items = 0;
  std::atomic<int64_t> claimed{0}, finished_items{0};
  // For tensors on a device, where the call is complete once it is queued (thread_device.h).
  bool on_device = false;
  std::vector<Event> ready;  // by rank
  Event done = nullptr;      // of the slot, reused
};

// What rank `from` sends to rank `to` in an all_to_all.
struct ThreadPart {
  const std::byte* from;
  std::byte* to;
  int64_t bytes;
};
ThreadPart part_of(const ThreadCollective&, int from, int to);

// One side of a message, waiting in its channel for the other side.
struct ThreadMessage {
  CommCall call;
  std::byte* data = nullptr;
  int owner = 0;
  bool complete = false;
  int64_t started = 0, finished = 0;  // steady_ns
  ThreadMessage* next = nullptr;
  uint64_t index = 0;
  bool on_device = false;
  Event ready = nullptr, done = nullptr;  // on the owner's stream; of the copy, reused by the next message
};

struct ThreadGroupState {
  ThreadGroupState(ThreadWorld::Shared&, std::vector<int> ranks, const SharedDevice&);
  ~ThreadGroupState();

  struct Channel {
    ThreadMessage *head = nullptr, *tail = nullptr;
    bool sends = false;
    DeviceLane lane;  // per channel, so that tags never block each other
  };
  struct RankState {  // one rank of the group
    std::condition_variable wake;
    uint64_t posted = 0;    // collectives posted so far
    uint64_t messages = 0;  // sends and receives posted so far
    bool any = false;
    CommCall last;
  };

  ThreadWorld::Shared& world;
  const std::vector<int> ranks;
  const SharedDevice device;
  int members = 0;  // live ThreadGroup objects
  int ever = 0;

  std::mutex mutex;
  std::deque<RankState> seats;
  std::vector<std::unique_ptr<ThreadCollective>>
      ring;         // by sequence number modulo its size; grows when ranks run ahead
  DeviceLane lane;  // of the collectives
  std::map<std::tuple<int, int, int>, Channel> channels;  // (source, destination, tag)
  std::deque<ThreadMessage> messages;
  std::vector<uint64_t> free_messages;

  ThreadCollective& slot(uint64_t seq);  // the one in use for seq, or a fresh one
  ThreadMessage& message();
  void wake_all();
  std::string who(int rank) const;        // "rank 1 (world rank 5)"
  std::string last_call(int rank) const;  // "last call: #4 all_reduce(…)"
};

struct ThreadWorld::Shared {
  Shared(int ranks, std::chrono::milliseconds limit) : size(ranks), deadline(limit), made(static_cast<size_t>(ranks)) {
    board = {&head, pages.get(), ranks};
    for (int r = 0; r < ranks; ++r) {
      pages[static_cast<size_t>(r)].rank.world_rank.store(r);
      status.emplace_back(pages[static_cast<size_t>(r)].rank);
    }
  }
  const int size;
  const std::chrono::milliseconds deadline;

  BoardHead head;
  const std::unique_ptr<RankPages[]> pages = std::make_unique<RankPages[]>(static_cast<size_t>(size));
  CommBoard board;
  std::deque<RankStatus> status;  // by rank

  std::mutex mutex;       // registry; taken before a group's mutex, never after
  std::vector<int> made;  // make() calls so far, by rank
  std::map<std::pair<int, std::vector<int>>, std::unique_ptr<ThreadGroupState>> groups;  // (make number, ranks)

  std::mutex notes_mutex;
  std::map<std::tuple<int, int, uint64_t, uint64_t>, std::deque<Note>> notes;  // (from, to, group, tag)

  std::atomic<bool> failed{false};  // set after the three below, which are then immutable
  int failed_rank = -1;
  std::string failure;
  Exit failure_code = Exit::kInternal;
  std::atomic<int> touching{0};  // threads currently accessing other ranks' buffers

  void abort(int rank, const std::string& message, Exit code);
  void drain() const;  // returns once no thread accesses other ranks' buffers
  [[noreturn]] void throw_failure() const;
  void check() const {
    if (failed.load(std::memory_order_acquire)) throw_failure();
  }
};

}  // namespace gt
