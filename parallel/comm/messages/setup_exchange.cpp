#include "parallel/comm/messages/setup_exchange.h"

#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/call.h"
#include "parallel/comm/watch/comm_board.h"

namespace gt {

void SetupExchange::finish(MessageSet& set) const {
  const int64_t begin = steady_ns();
  for (int round = 0;; ++round) {
    transport_.advance();
    const MessageSet::State state = set.test();
    GT_CHECK(state.peer < 0, "rank ", state.peer, " takes no part in setting up shared memory");
    if (state.done) return;
    if (steady_ns() - begin > std::chrono::nanoseconds(deadline_).count()) {
      std::vector<int> missing;
      set.missing(missing, true);
      fail(Exit::kHang, "setting up shared memory: rank ", rank_, " waited ", deadline_.count(),
           " ms; nothing from ranks ", to_string(missing), " of its group");
    }
    if (round > 16) transport_.pause(100);
  }
}

void SetupExchange::broadcast(void* data, int64_t bytes) const {
  const auto set = transport_.make_set();
  set->use(channel_);
  auto* at = static_cast<std::byte*>(data);
  if (rank_ != 0) set->receive(at, bytes, 0, 0);
  for (int r = 1; rank_ == 0 && r < size_; ++r) set->send(at, bytes, r, 0);
  finish(*set);
}

bool SetupExchange::everybody(bool mine) const {
  std::vector<uint8_t> all(static_cast<size_t>(size_), mine ? 1 : 0);
  const auto set = transport_.make_set();
  set->use(channel_);
  const auto at = [&](int r) { return reinterpret_cast<std::byte*>(&all[static_cast<size_t>(r)]); };
  if (rank_ != 0) set->send(at(rank_), 1, 0, 0);
  for (int r = 1; rank_ == 0 && r < size_; ++r) set->receive(at(r), 1, r, 0);
  finish(*set);
  uint8_t out = 1;
  for (const uint8_t one : all) out = out & one;
  broadcast(&out, 1);
  return out != 0;
}

}  // namespace gt
