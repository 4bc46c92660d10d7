#include "parallel/comm/group_trace.h"

#include <utility>

#include "kernels/core/rng.h"
#include "parallel/comm/call.h"

namespace gt {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Packs number + 1 and a hash of the call into one word, so that a neighbour reads both or neither; 0: no call.
uint64_t fingerprint(const CommCall& c, uint64_t seq) {
  const uint64_t kind = uint64_t{static_cast<uint8_t>(c.op)} | uint64_t{static_cast<uint8_t>(c.reduce)} << 8 |
                        uint64_t{static_cast<uint8_t>(c.dtype)} << 16 | uint64_t{static_cast<uint32_t>(c.peer)} << 32;
  const int64_t count = c.op == CommOp::kAllToAllV ? 0 : c.count;  // which every rank has
  return (seq + 1) << 32 | (splitmix64(splitmix64(kind) + static_cast<uint64_t>(count)) >> 32);
}

}  // namespace

GroupTrace::GroupTrace(const CommBoard& board, int local, uint64_t number, int leader, int rank, int size)
    : board_(board), key_(uint64_t{static_cast<uint32_t>(leader)} << 32 | (number + 1)) {
  if (board.pages == nullptr) return;
  pages_ = &board.pages[local];
  slot_ = pages_->find(0);
  if (slot_ == nullptr) {
    pages_ = nullptr;
    return;
  }
  slot_->posted.store(0, kRelaxed);
  slot_->messages.store(0, kRelaxed);
  slot_->last_start.store(0, kRelaxed);
  slot_->broken.store(0, kRelaxed);
  for (auto& r : slot_->recent) r.store(0, kRelaxed);
  slot_->size.store(static_cast<uint32_t>(size), kRelaxed);
  slot_->rank.store(static_cast<uint32_t>(rank), kRelaxed);
  slot_->key.store(key_, std::memory_order_release);
}

GroupTrace::Neighbour GroupTrace::neighbour(uint32_t rank) const {
  for (int r = 0; r < board_.ranks; ++r) {
    GroupSlot* s = board_.pages[r].find(key_);
    if (s != nullptr && s->rank.load(kRelaxed) == rank) return {&board_.pages[r], s};
  }
  return {};
}

void GroupTrace::connect() {
  if (slot_ == nullptr) return;
  const uint32_t rank = slot_->rank.load(kRelaxed), size = slot_->size.load(kRelaxed);
  next_ = neighbour((rank + 1) % size);
  before_ = neighbour((rank + size - 1) % size);
}

void GroupTrace::close() {
  if (slot_ != nullptr) slot_->key.store(0, std::memory_order_release);
  *this = GroupTrace();
}

void GroupTrace::set_label(const std::string& label) {
  if (slot_ != nullptr) slot_->label.store(label);
}

void GroupTrace::record(const CommCall& c, uint64_t seq, int64_t now) {
  const uint64_t n = pages_->rank.ops.load(kRelaxed), where = pages_->rank.where.load(kRelaxed);
  const int64_t step = pages_->rank.step.load(kRelaxed);
  slot_->last.store(c);
  slot_->last_start.store(now, kRelaxed);
  slot_->last_step.store(step, kRelaxed);
  slot_->last_where.store(where, kRelaxed);
  OpEntry& e = pages_->ring[n % RankPages::kRing];
  e.time.store(now, kRelaxed);
  e.step.store(step, kRelaxed);
  e.key.store(key_, kRelaxed);
  e.seq.store(seq, kRelaxed);
  e.where.store(where, kRelaxed);
  e.call.store(c);
  pages_->rank.ops.store(n + 1, std::memory_order_release);
}

void GroupTrace::collective(const CommCall& c, uint64_t seq, int64_t now) {
  if (slot_ == nullptr) return;
  record(c, seq, now);
  slot_->posted.store(seq + 1, kRelaxed);
  // Each of two neighbours stores its word, then loads the other's. In the single order of seq_cst accesses, the second
  // one reads the first one's word.
  slot_->recent[seq % GroupSlot::kRecent].store(fingerprint(c, seq), std::memory_order_seq_cst);
}

void GroupTrace::message(const CommCall& c, uint64_t seq, int64_t now) {
  if (slot_ == nullptr) return;
  record(c, seq, now);
  slot_->messages.store(seq + 1, kRelaxed);
}

void GroupTrace::begin_wait(const CommCall& c, uint64_t seq, int64_t since) {
  if (pages_ == nullptr) return;
  RankSlot& r = pages_->rank;
  r.wait_key.store(key_, kRelaxed);
  r.wait_seq.store(seq, kRelaxed);
  r.wait_is_message.store(c.op == CommOp::kSend || c.op == CommOp::kRecv, kRelaxed);
  r.wait_call.store(c);
  r.wait_start.store(since, std::memory_order_release);
}

std::string GroupTrace::last_call(int rank) const {
  const GroupSlot* s = slot_ == nullptr ? nullptr : neighbour(static_cast<uint32_t>(rank)).slot;
  if (s == nullptr) return "";
  const uint64_t posted = s->posted.load(kRelaxed), messages = s->messages.load(kRelaxed);
  if (posted + messages == 0) return "no call in this group yet";
  return cat("last call in this group: ", to_string(s->last.load()), ", ", posted, " collectives and ", messages,
             " messages so far");
}

std::string GroupTrace::disagreement(const CommCall& c, uint64_t seq) {
  if (slot_ == nullptr) return "";
  const uint64_t mine = fingerprint(c, seq);
  for (const Neighbour& n : {next_, before_}) {
    if (n.slot == nullptr) continue;
    const uint64_t theirs = n.slot->recent[seq % GroupSlot::kRecent].load(std::memory_order_seq_cst);
    if (theirs >> 32 != mine >> 32 || theirs == mine) continue;
    const OpEntry* e = n.pages->find(key_, seq);
    if (e == nullptr) continue;  // the slot has been reused by another group
    const auto called = [](const RankPages& p, uint32_t rank, const CommCall& call) {
      return cat("rank ", rank, " (world rank ", p.rank.world_rank.load(kRelaxed), ") called ", to_string(call));
    };
    const uint32_t me = slot_->rank.load(kRelaxed), size = slot_->size.load(kRelaxed);
    const uint32_t other = n.slot == next_.slot ? (me + 1) % size : (me + size - 1) % size;
    std::string first = called(*pages_, me, c), second = called(*n.pages, other, e->call.load());
    if (other < me) std::swap(first, second);
    const std::string text = cat("collective #", seq, " differs between ranks: ", first, ", ", second);
    uint64_t last = board_.head->broken_key.load(kRelaxed);
    if (last != key_ && board_.head->broken_key.compare_exchange_strong(last, key_)) {  // first rank to detect it
      board_.head->broken_calls.store(text);
      for (int r = 0; r < board_.ranks; ++r)
        if (GroupSlot* s = board_.pages[r].find(key_)) s->broken.store(1, std::memory_order_release);
    }
    return text;
  }
  return broken() ? broken_calls() : "";
}

}  // namespace gt
