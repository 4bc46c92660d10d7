#include "parallel/comm/messages/rank_sleep.h"

#include <sched.h>

#include <algorithm>

namespace gt {

void Patience::yield() {
  const int64_t before = steady_ns();
  sched_yield();
  const int64_t after = steady_ns();
  if (after - before > kTakenNs)
    ++taken_;
  else
    idle_ns_ += after - last_;
  last_ = after;
}

RankSleep::RankSleep(MessageTransport& transport, const CommBoard& board, int board_rank, bool shared)
    : transport_(transport),
      board_(board),
      wakes_(shared && transport.can_wake()),
      own_(board.pages[board_rank].rank.asleep) {}

void RankSleep::wake_others(std::span<const int> world_ranks) {
  if (!wakes_) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // between what was published and the flags
  const std::vector<int>& here = transport_.local_ranks();
  for (const int r : world_ranks) {
    if (r == transport_.rank()) continue;
    const auto local = std::lower_bound(here.begin(), here.end(), r) - here.begin();
    std::atomic<uint32_t>& asleep = board_.pages[local].rank.asleep;
    if (asleep.load(std::memory_order_relaxed) != 0 && asleep.exchange(0) != 0) transport_.wake(r);
  }
}

}  // namespace gt
