#include "parallel/comm/messages/message_state.h"

#include <sched.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "parallel/comm/messages/node_memory.h"

namespace gt {

MessageWork& MessageFactory::Shared::start(const ProcessGroup& group, MessageChannel& channel, const CommCall& call,
                                           uint64_t seq) {
  if (free_.empty()) {
    works_.emplace_back();
    works_.back().messages = transport->make_set();
    works_.back().index = works_.size() - 1;
    free_.push_back(works_.size() - 1);
  }
  MessageWork& w = works_[free_.back()];
  free_.pop_back();
  w.group = &group;
  w.call = call;
  w.seq = seq;
  w.phase = 1;
  w.node = nullptr;
  w.messages->use(channel);
  active_.push_back(&w);
  return w;
}

void MessageFactory::Shared::disagree(const MessageWork& w, const MessageSet::State& s) {
  fail(Exit::kInternal, w.group->label(), ": rank ", w.group->rank(), " called ", to_string(w.call), " #", w.seq,
       " and expected ", s.expected, " bytes from rank ", s.peer, ", which sent ",
       s.sent < 0 ? std::string("more") : cat(s.sent), ": the ranks disagree about this call");
}

// Once all messages of the current phase are complete, starts the next phase. A message of another size than this
// rank's call implies completes the work with an error.
void MessageFactory::Shared::advance(MessageWork& w) {
  if (w.node != nullptr) return w.node->advance();
  while (w.phase > 0) {
    const int phase = std::exchange(w.phase, 0);  // complete, should test() throw
    const MessageSet::State state = w.messages->test();
    if (state.peer >= 0) disagree(w, state);
    w.phase = phase;
    if (!state.done) return;
    if (w.call.op == CommOp::kSend || w.call.op == CommOp::kRecv)
      w.phase = 0;
    else
      continue_collective(w, w.group->rank(), w.group->size());
  }
}

void MessageFactory::Shared::progress() {
  if (!active_.empty()) transport->advance();
  for (MessageWork* w : active_) advance(*w);
  retire();
}

void MessageFactory::Shared::retire() {
  std::erase_if(active_, [](const MessageWork* w) {
    if (w->phase != 0) return false;
    w->counters->of(w->call.op).flight_ns += steady_ns() - w->started;
    return true;
  });
}

void MessageFactory::Shared::abandon(const ProcessGroup& group) {
  std::erase_if(active_, [&](MessageWork* w) {
    if (w->group != &group) return false;
    w->messages->abandon();
    return true;
  });
}

CommCall MessageFactory::Shared::wait(uint64_t index) {
  MessageWork& w = works_[index];
  const int64_t begin = steady_ns(), limit = std::chrono::nanoseconds(deadline).count();
  struct Waiting {  // reset on return and on exceptions
    GroupTrace* trace = nullptr;
    ~Waiting() {
      if (trace != nullptr) trace->end_wait();
    }
  } waiting;
  Patience patience(w.node != nullptr || !sleep->wakes());
  for (int round = 0;; ++round) {
    constexpr int kPolls = 16;  // of memory for each one of the transport, which may be a system call
    if (!crowded && w.node != nullptr && round % kPolls != 0)
      w.node->advance(), retire();
    else
      progress();
    if (w.phase == 0) break;
    if (waiting.trace == nullptr) {
      w.trace->begin_wait(w.call, w.seq, begin);
      waiting.trace = w.trace;
    }
    if (w.trace->broken()) fail(Exit::kInternal, w.group->label(), ": ", w.trace->broken_calls());
    if (steady_ns() - begin > limit) hang(w);
    if (!crowded && round < 200) continue;
    if (!crowded) {
      sched_yield();
    } else if (patience.lasts()) {
      patience.yield();
    } else {
      sleep->sleep(round, [&] {
        progress();
        return w.phase == 0;
      });
    }
  }
  // Kept in descending order, so that a repeated sequence of calls reuses the same objects, with staging of the right
  // size.
  free_.insert(std::upper_bound(free_.begin(), free_.end(), index, std::greater<>()), index);
  return w.call;
}

void MessageFactory::Shared::hang(MessageWork& w) {
  std::vector<int> missing;
  if (w.node != nullptr) missing = w.node->missing();
  w.messages->missing(missing, w.call.op == CommOp::kSend);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  std::string last;
  for (int r : missing)
    if (const std::string call = w.trace->last_call(r); !call.empty()) last += cat("; rank ", r, ": ", call);
  fail(Exit::kHang, w.group->label(), ": rank ", w.group->rank(), " (world rank ", rank, ") waited ", deadline.count(),
       " ms in ", to_string(w.call), " #", w.seq, "; nothing from ranks ", to_string(missing), " of this group", last);
}

}  // namespace gt
