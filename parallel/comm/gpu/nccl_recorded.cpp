// NCCL calls in recordings of the compute stream (kernels/replay.h): recorded, captured, and awaited by the graph.
#include <algorithm>

#include "parallel/comm/gpu/nccl_engine.h"
#include "parallel/comm/gpu/nccl_tickets.h"

namespace gt {
namespace {

NcclLane* lane_of(const SideCall& s) { return reinterpret_cast<NcclLane*>(s.words[0]); }  // nullptr: a wait

CommCall call_of(const SideCall& s) {
  return {static_cast<CommOp>(s.words[1] & 0xff),
          static_cast<ReduceOp>(s.words[1] >> 8 & 0xff),
          static_cast<DType>(s.words[1] >> 16 & 0xff),
          static_cast<int64_t>(s.words[2]),
          static_cast<int32_t>(s.words[3]),
          0};
}

}  // namespace

SideCall kept(SideCalls& by, NcclLane& lane, const CommCall& c, std::byte* a, std::byte* b) {
  const auto what =
      static_cast<uint64_t>(c.op) | static_cast<uint64_t>(c.reduce) << 8 | static_cast<uint64_t>(c.dtype) << 16;
  return {&by,
          {reinterpret_cast<uint64_t>(&lane), what, static_cast<uint64_t>(c.count), static_cast<uint32_t>(c.peer),
           reinterpret_cast<uint64_t>(a), reinterpret_cast<uint64_t>(b), 0}};
}

SideCall recorded_wait(SideCalls& by, size_t number) { return {&by, {0, 0, 0, 0, 0, 0, number}}; }

// Once the recording holds nothing back, the lane's stream has already joined the recorded one: nothing to wait for.
const CommCall& NcclEngine::wait_held(uint64_t ticket, Stream s) {
  const size_t number = number_of(ticket);
  if (run_of(ticket) == Recording::current_run()) Recording::side_call(recorded_wait(*this, number), s);
  if (s.native == nullptr) device_.synchronize(held_stream_);
  return held_calls_[number];
}

void NcclEngine::make(const SideCall& side, size_t number, Stream recorded, bool captured) {
  const Recording::Bypass aside;
  NcclLane* lane = lane_of(side);
  if (lane == nullptr) {
    const auto at = std::find_if(branches_.begin(), branches_.end(),
                                 [&](const Branch& b) { return b.number == static_cast<size_t>(side.words[6]); });
    if (at == branches_.end()) return;  // of an earlier graph segment, at whose end it was joined
    const Branch b = *at;
    branches_.erase(at);
    return join(b, recorded, captured);
  }
  std::unique_lock lock(mutex_);
  NcclCall c;
  c.call = call_of(side);
  c.a = reinterpret_cast<std::byte*>(side.words[4]);
  c.b = reinterpret_cast<std::byte*>(side.words[5]);
  c.lane = lane;
  if (c.call.is_all_to_all()) c.offsets.set(c.call, {}, lane->size);
  if (captured) return capture(*lane, c, number, recorded, lock);
  branches_.push_back({number, post_locked(*lane, c.call, c.a, c.b, recorded, lane->seq)});
}

// Also under capture, NCCL may take time to accept a call; if it must connect first, it waits for the peers.
void NcclEngine::await_captured(NcclLane& lane, const NcclCall& c, std::unique_lock<std::mutex>& lock) {
  const int64_t begin = steady_ns();
  while (in_progress(lane, &c.call)) {
    if (steady_ns() - begin > deadline_ns_.load()) {
      const std::string text = cat(lane.label, ": rank ", lane.rank, " waited ", deadline_ns_.load() / 1'000'000,
                                   " ms to capture ", to_string(c.call), ", which other ranks may not have begun");
      abort_locked(text, Exit::kHang);
      fail(Exit::kHang, text);
    }
    lock.unlock();  // lets the watching thread end the world
    std::this_thread::yield();
    lock.lock();
    throw_if_broken();
  }
}

// Requires: the lane is idle (settle).
void NcclEngine::capture(NcclLane& lane, const NcclCall& c, size_t number, Stream recorded,
                         std::unique_lock<std::mutex>& lock) {
  throw_if_broken();
  device_.record(lane.fork, recorded);
  device_.wait(lane.fork, lane.stream);
  const int result = c.call.is_empty() ? nccl::kSuccess : issue(c);
  require(result, lane.comm, cat(lane.label, ": capturing ", to_string(c.call)));
  if (result == nccl::kInProgress) await_captured(lane, c, lock);
  const size_t at = captured_;
  if (++captured_ > branch_ends_.size()) branch_ends_.push_back(device_.create_event(index_));
  device_.record(branch_ends_[at], lane.stream);
  branches_.push_back({number, at});
}

void NcclEngine::join(const Branch& b, Stream recorded, bool captured) {
  if (captured)
    device_.wait(branch_ends_[b.ticket], recorded);
  else
    wait(b.ticket, recorded);
}

void NcclEngine::close(Stream recorded, bool captured) {
  const Recording::Bypass aside;
  for (const Branch& b : branches_) join(b, recorded, captured);
  branches_.clear();
}

template <class Visit>
void NcclEngine::each_lane(std::span<const SideCall> sides, Visit visit) {
  ++walk_;
  for (const SideCall& s : sides) {
    NcclLane* lane = lane_of(s);
    if (lane != nullptr && std::exchange(lane->walked, walk_) != walk_) visit(*lane);
  }
}

// Two calls of one communicator must not run concurrently: the graph starts after the calls posted before it. Calls
// posted after it wait for the compute stream, and so for the graph.
void NcclEngine::settle(std::span<const SideCall> sides, Stream recorded) {
  const Recording::Bypass aside;
  branches_.clear();  // of a capture that failed
  captured_ = 0;
  each_lane(sides, [&](NcclLane& lane) {
    drain_lane(lane);
    const std::lock_guard lock(mutex_);
    throw_if_broken();
    if (!std::exchange(lane.loose, false)) return;
    device_.record(lane.last, lane.stream);
    device_.wait(lane.last, recorded);
  });
}

// One entry for the whole graph, so that a graph that does not complete is detected.
void NcclEngine::launched(std::span<const SideCall> sides, Stream recorded) {
  const auto first = std::find_if(sides.begin(), sides.end(), [](const SideCall& s) { return lane_of(s) != nullptr; });
  if (first == sides.end()) return;
  const Recording::Bypass aside;
  const std::lock_guard lock(mutex_);
  NcclCall& c = allocate_call();
  c.call = call_of(*first);
  c.lane = lane_of(*first);
  c.seq = c.lane->seq;
  c.launched = c.waited = c.in_graph = true;
  device_.record(c.done, recorded);
}

bool NcclEngine::agree(std::span<const SideCall> sides, bool good) {
  const Recording::Bypass aside;
  each_lane(sides, [&](NcclLane& lane) { good = lane.agree(good); });
  return good;
}

}  // namespace gt
