#include "parallel/comm/threads/thread_state.h"

#include <thread>

namespace gt {

ThreadGroupState::ThreadGroupState(ThreadWorld::Shared& w, std::vector<int> r, const SharedDevice& d)
    : world(w), ranks(std::move(r)), device(d), seats(ranks.size()), ring(16) {}

ThreadGroupState::~ThreadGroupState() {
  for (const auto& c : ring)
    if (c && c->done != nullptr) device.api->destroy_event(c->done);
  for (const ThreadMessage& m : messages)
    if (m.done != nullptr) device.api->destroy_event(m.done);
}

ThreadCollective& ThreadGroupState::slot(uint64_t seq) {
  for (;;) {
    std::unique_ptr<ThreadCollective>& held = ring[seq % ring.size()];
    if (!held) {
      held = std::make_unique<ThreadCollective>();
      held->a.resize(ranks.size());
      held->b.resize(ranks.size());
      held->offsets.resize(ranks.size());
      held->started.resize(ranks.size());
      held->ready.resize(ranks.size());
    }
    if (held->used && held->seq == seq) return *held;
    if (!held->used) {
      held->used = true;
      held->seq = seq;
      held->arrived = held->departed = 0;
      held->complete = false;
      held->claimed = held->finished_items = 0;
      return *held;
    }
    // An older collective still occupies the slot: double the ring. Objects keep their addresses; numbers distinct
    // modulo the old size stay distinct modulo the new one.
    std::vector<std::unique_ptr<ThreadCollective>> larger(ring.size() * 2);
    for (auto& c : ring) {
      if (c && c->used) larger[c->seq % larger.size()] = std::move(c);
    }
    ring = std::move(larger);
  }
}

ThreadPart part_of(const ThreadCollective& c, int from, int to) {
  const PeerOffsets &mine = c.offsets[static_cast<size_t>(from)], &theirs = c.offsets[static_cast<size_t>(to)];
  const int64_t e = size_of(c.call.dtype);
  return {c.a[static_cast<size_t>(from)].data + mine.send[static_cast<size_t>(to)] * e,
          c.b[static_cast<size_t>(to)].data + theirs.recv[static_cast<size_t>(from)] * e, mine.sends(to) * e};
}

ThreadMessage& ThreadGroupState::message() {
  if (free_messages.empty()) {
    messages.emplace_back();
    messages.back().index = messages.size() - 1;
    free_messages.push_back(messages.back().index);
  }
  ThreadMessage& m = messages[free_messages.back()];
  free_messages.pop_back();
  m.complete = false;
  m.next = nullptr;
  return m;
}

void ThreadGroupState::wake_all() {
  for (RankState& s : seats) s.wake.notify_all();
}

std::string ThreadGroupState::who(int rank) const {
  return cat("rank ", rank, " (world rank ", ranks[static_cast<size_t>(rank)], ")");
}

std::string ThreadGroupState::last_call(int rank) const {
  const RankState& s = seats[static_cast<size_t>(rank)];
  if (!s.any) return "no call in this group yet";
  return cat("last call in this group: ", to_string(s.last), ", ", s.posted, " collectives and ", s.messages,
             " messages so far");
}

void ThreadWorld::Shared::abort(int rank, const std::string& message, Exit code) {
  {
    std::lock_guard registry(mutex);
    if (!failed.load()) {
      failed_rank = rank;
      failure = message;
      failure_code = code;
      failed.store(true);
    }
    for (auto& [key, group] : groups) {
      std::lock_guard lock(group->mutex);  // no rank is between its check of `failed` and its sleep
      group->wake_all();
    }
  }
  drain();
}

void ThreadWorld::Shared::drain() const {
  while (touching.load() > 0) std::this_thread::yield();
}

void ThreadWorld::Shared::throw_failure() const {
  drain();  // the caller is about to free its buffers
  fail(failure_code, "rank ", failed_rank, " failed first: ", failure);
}

}  // namespace gt
