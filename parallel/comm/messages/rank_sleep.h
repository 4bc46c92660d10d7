// How a rank of a machine with fewer processors than ranks waits: it sleeps until a message arrives, or until a rank of
// the machine has changed what they share (node_memory.h) and wakes it. A rank that polled instead would take the
// processor from those that compute.
#pragma once
#include <algorithm>
#include <span>

#include "parallel/comm/messages/message_transport.h"
#include "parallel/comm/watch/comm_board.h"

namespace gt {

// How long one wait polls before it sleeps: until other ranks have used its processor, or for a moment if none needs
// it, because a processor that falls asleep takes tens of microseconds to come back. `more`: for calls that follow each
// other closely, as collectives in node memory do, and where sleeps are not ended by what they wait for.
class Patience {
 public:
  explicit Patience(bool more) : most_taken_(more ? 64 : 1) {}
  bool lasts() const { return taken_ < most_taken_ && idle_ns_ < kMostIdleNs; }
  void yield();  // the processor, once

 private:
  static constexpr int64_t kTakenNs = 5'000, kMostIdleNs = 200'000;  // another rank ran meanwhile; without any
  const int most_taken_;
  int taken_ = 0;
  int64_t last_ = steady_ns(), idle_ns_ = 0;
};

class RankSleep {
 public:
  // `board`: of the machine's ranks, this one at `board_rank`. `shared`: it is in memory that all of them map.
  RankSleep(MessageTransport&, const CommBoard& board, int board_rank, bool shared);
  bool wakes() const { return wakes_; }  // other ranks end the sleep

  // Sleeps unless ready() is true; returns after an event, or some time without one. ready() is called once more after
  // this rank has announced that it sleeps, so that what another rank writes in between is seen by one of them.
  // `round`: of the wait; without wake-ups, pauses grow with it.
  template <class Ready>
  void sleep(int round, Ready ready) {
    if (!wakes_) return transport_.pause(std::min(kShortestPause + round / 8, kLongestPause));
    own_.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // between the flag and what ready() reads
    if (!ready()) transport_.pause(kSleep);
    own_.store(0, std::memory_order_relaxed);
  }

  // Called after this rank has published something: wakes those of these ranks that sleep.
  void wake_others(std::span<const int> world_ranks);

 private:
  static constexpr int kShortestPause = 20, kLongestPause = 500, kSleep = 20'000;  // microseconds
  MessageTransport& transport_;
  const CommBoard& board_;
  const bool wakes_;
  std::atomic<uint32_t>& own_;
};

}  // namespace gt
