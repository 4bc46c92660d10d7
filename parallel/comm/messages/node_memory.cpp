#include "parallel/comm/messages/node_memory.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/core/combine.h"

namespace gt {

// Number of parts of a call that are moved in chunks: the whole tensor, or one part per rank.
static int parts_of(const CommCall& c, int size) {
  return c.op == CommOp::kReduceScatter || c.op == CommOp::kAllGather ? size : 1;
}

// Empty tensors may have null data, which memcpy does not accept.
static void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

int64_t NodeMemory::slot_bytes(int size) {
  return std::clamp<int64_t>((2 << 20) / size, 64 << 10, 512 << 10) / 64 * 64;
}

std::unique_ptr<NodeMemory> NodeMemory::open(const SetupExchange& ranks, RankSleep& sleep, std::vector<int> world_ranks,
                                             int rank) {
  const int size = static_cast<int>(world_ranks.size());
  const int64_t slot = slot_bytes(size), bytes = static_cast<int64_t>(sizeof(RankState)) * size + 2 * slot * size;
  SharedSegment memory = SharedSegment::open(
      ranks, bytes, [rank](std::byte* base) { new (base + sizeof(RankState) * static_cast<size_t>(rank)) RankState; });
  if (!memory) return nullptr;
  return std::unique_ptr<NodeMemory>(new NodeMemory(std::move(memory), sleep, std::move(world_ranks), slot, rank));
}

std::byte* NodeMemory::slot(int r) const {
  return base_ + static_cast<int64_t>(sizeof(RankState)) * size_ +
         (static_cast<int64_t>(round_ & 1) * size_ + r) * slot_bytes_;
}

bool NodeMemory::all(std::atomic<uint64_t> RankState::*counter) const {
  for (int r = 0; r < size_; ++r) {
    if ((seat(r).*counter).load(std::memory_order_acquire) < round_) return false;
  }
  return true;
}

std::vector<int> NodeMemory::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    const auto counter = state_ == State::kReduced ? &RankState::reduced : &RankState::written;
    if ((seat(r).*counter).load(std::memory_order_acquire) < round_) ranks.push_back(r);
  }
  return ranks;
}

int64_t NodeMemory::chunk(const MessageWork& w) const {
  if (w.call.is_all_to_all()) return (part_bytes() - static_cast<int64_t>(sizeof(PartHeader))) / size_of(w.call.dtype);
  const int64_t pieces = w.call.op == CommOp::kReduceScatter ? size_ : 1;  // in one slot
  const int64_t n = w.call.count / parts_of(w.call, size_);
  return std::min(slot_bytes_ / pieces / 8 * 8 / size_of(w.call.dtype), n - at_);
}

// Each round moves a chunk of every part; the rank with the largest one needs the most rounds.
void NodeMemory::write_parts(const MessageWork& w) {
  const int64_t e = size_of(w.call.dtype), capacity = chunk(w);
  int64_t largest = 0;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const PartHeader header{w.offsets.sends(r), w.offsets.expects(r)};
    std::byte* to = slot(rank_) + r * part_bytes();
    new (to) PartHeader(header);
    const int64_t done = std::min(at_, header.sends), first = w.offsets.send[static_cast<size_t>(r)] + done;
    copy_bytes(to + sizeof header, w.a.data + first * e, std::min(capacity, header.sends - done) * e);
    largest = std::max(largest, header.sends);
  }
  seat(rank_).largest_part[round_ & 1] = largest;
  const auto me = static_cast<size_t>(rank_);
  if (at_ == 0)
    copy_bytes(w.b.data + w.offsets.recv[me] * e, w.a.data + w.offsets.send[me] * e, w.offsets.sends(rank_) * e);
}

void NodeMemory::read_parts(const MessageWork& w) {
  const int64_t e = size_of(w.call.dtype), capacity = chunk(w);
  largest_part_ = 0;
  for (int r = 0; r < size_; ++r) largest_part_ = std::max(largest_part_, seat(r).largest_part[round_ & 1]);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const std::byte* from = slot(r) + rank_ * part_bytes();
    const PartHeader theirs = *std::launder(reinterpret_cast<const PartHeader*>(from));
    const int64_t expected = w.offsets.expects(r), sent = w.offsets.sends(r);
    if (theirs.sends != expected) disagree(w, parts_differ(r, theirs.sends, rank_, expected));
    if (theirs.expects != sent) disagree(w, parts_differ(rank_, sent, r, theirs.expects));
    const int64_t done = std::min(at_, expected), first = w.offsets.recv[static_cast<size_t>(r)] + done;
    copy_bytes(w.b.data + first * e, from + sizeof theirs, std::min(capacity, expected - done) * e);
  }
}

// Opens a round: copies this rank's data to its slot. The slot was last read two rounds ago, and ranks that have
// entered the round in between have finished reading it.
void NodeMemory::write(MessageWork& w) {
  ++round_;
  const int64_t e = size_of(w.call.dtype), bytes = chunk(w) * e, from = at_ * e, part = w.call.bytes() / size_;
  std::byte* mine = slot(rank_);
  switch (w.call.op) {
    case CommOp::kAllReduce: copy_bytes(mine, w.a.data + from, bytes); break;
    case CommOp::kAllGather: copy_bytes(mine, w.b.data + from, bytes); break;
    case CommOp::kBroadcast:
      if (rank_ == w.call.peer) copy_bytes(mine, w.a.data + from, bytes);
      break;
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV: write_parts(w); break;
    default:
      for (int r = 0; r < size_; ++r) copy_bytes(mine + r * bytes, w.a.data + r * part + from, bytes);
  }
  seat(rank_).call[round_ & 1] = w.call;
  announce(&RankState::written);
  state_ = State::kWritten;
}

void NodeMemory::announce(std::atomic<uint64_t> RankState::*counter) {
  (seat(rank_).*counter).store(round_, std::memory_order_release);
  sleep_.wake_others(world_ranks_);
}

void NodeMemory::check_calls(const MessageWork& w) {
  for (int r = 0; r < size_; ++r) {
    const CommCall other = seat(r).call[round_ & 1], mine = w.call;
    if (!mine.agrees(other))
      disagree(w, cat("rank ", rank_, " called ", to_string(mine), ", rank ", r, " called ", to_string(other)));
  }
}

void NodeMemory::disagree(const MessageWork& w, const std::string& how) {
  for (MessageWork* queued : queue_) queued->phase = 0;  // no call of this group can complete any more
  queue_.clear();
  fail(Exit::kInternal, w.group->label(), ": a collective differs between ranks: ", how);
}

bool NodeMemory::step(MessageWork& w) {
  const int64_t e = size_of(w.call.dtype);
  if (state_ == State::kIdle) write(w);
  const int64_t elements = chunk(w), bytes = elements * e, from = at_ * e, part = w.call.bytes() / size_;
  if (state_ == State::kWritten) {
    if (!all(&RankState::written)) return false;
    check_calls(w);
    parts_.resize(static_cast<size_t>(size_));
    if (w.call.op == CommOp::kAllReduce) {  // this rank sums its slice of the chunk into the first slot
      const int64_t begin = elements * rank_ / size_, end = elements * (rank_ + 1) / size_;
      for (int r = 0; r < size_; ++r) parts_[static_cast<size_t>(r)] = slot(r) + begin * e;
      reduce_in_order(slot(0) + begin * e, parts_.data(), size_, end - begin, w.call.dtype, w.call.reduce);
      announce(&RankState::reduced);
      state_ = State::kReduced;
    } else if (w.call.op == CommOp::kReduceScatter) {
      for (int r = 0; r < size_; ++r) parts_[static_cast<size_t>(r)] = slot(r) + rank_ * bytes;
      reduce_in_order(w.b.data + from, parts_.data(), size_, elements, w.call.dtype, w.call.reduce);
    } else if (w.call.is_all_to_all()) {
      read_parts(w);
    } else if (w.call.op == CommOp::kAllGather) {
      for (int r = 0; r < size_; ++r) {
        std::byte* to = w.a.data + r * part + from;
        if (r != rank_ || to != w.b.data + from) copy_bytes(to, slot(r), bytes);
      }
    } else if (rank_ != w.call.peer) {
      copy_bytes(w.a.data + from, slot(w.call.peer), bytes);
    }
  }
  if (state_ == State::kReduced) {
    if (!all(&RankState::reduced)) return false;
    copy_bytes(w.a.data + from, slot(0), bytes);
  }
  state_ = State::kIdle;
  at_ += elements;
  if (at_ >= (w.call.is_all_to_all() ? largest_part_ : w.call.count / parts_of(w.call, size_))) w.phase = 0, at_ = 0;
  return true;
}

void NodeMemory::advance() {
  while (!queue_.empty() && step(*queue_.front())) {
    if (queue_.front()->phase == 0) queue_.erase(queue_.begin());
  }
}

}  // namespace gt
