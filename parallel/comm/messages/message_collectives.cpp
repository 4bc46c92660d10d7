// Rank-ordered collectives built from messages. reduce_scatter: every rank sends slice j to rank j, which adds in rank
// order. all_reduce: reduce_scatter, then all_gather. Small tensors, and those of two ranks, are sent to every rank and
// added locally: one latency instead of two, and two ranks send no more bytes for it. Slices have the element bounds
// n*j/N, so the sums are those of the thread backend. all_to_all: every rank sends its parts to their ranks.
#include <algorithm>
#include <cstring>

#include "kernels/core/combine.h"
#include "parallel/comm/messages/message_state.h"

namespace gt {
namespace {

constexpr uint64_t kSequences = 4096;  // tags of a collective: (sequence modulo this) * 2 + phase - 1

int tag_of(const MessageWork& w) { return static_cast<int>(w.seq % kSequences) * 2 + w.phase - 1; }
int64_t bound(int64_t n, int j, int size) { return n * j / size; }  // first element of rank j's slice

std::byte* staging(MessageWork& w, int64_t bytes) {
  if (static_cast<int64_t>(w.staging.size()) < bytes) w.staging.resize(static_cast<size_t>(bytes));
  return w.staging.data();
}

// All-reduces in one phase of messages.
bool sends_whole(const MessageWork& w, int size) { return size == 2 || w.call.bytes() <= kSmallCollective; }

// Orders peers so that the load is spread: the next rank first.
template <class F>
void each_peer(int rank, int size, F f) {
  for (int k = 1; k < size; ++k) f((rank + k) % size, (rank + size - k) % size);
}

// Sends `mine` (`bytes` bytes) to all peers; receives rank r's data at target(r).
template <class Target>
void exchange(MessageWork& w, int rank, int size, const std::byte* mine, int64_t bytes, Target target) {
  each_peer(rank, size, [&](int, int from) { w.messages->receive(target(from), bytes, from, tag_of(w)); });
  each_peer(rank, size, [&](int to, int) { w.messages->send(mine, bytes, to, tag_of(w)); });
}

// Sends slice j of `full` to rank j and receives all ranks' data for its own slice in staging, in rank order.
void scatter_slices(MessageWork& w, int rank, int size) {
  const int64_t n = w.call.count, e = size_of(w.call.dtype), begin = bound(n, rank, size) * e;
  const int64_t bytes = bound(n, rank + 1, size) * e - begin;
  std::byte* at = staging(w, bytes * size);
  w.parts.resize(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) w.parts[static_cast<size_t>(r)] = r == rank ? w.a.data + begin : at + r * bytes;
  each_peer(rank, size, [&](int, int from) { w.messages->receive(at + from * bytes, bytes, from, tag_of(w)); });
  each_peer(rank, size, [&](int to, int) {
    const int64_t first = bound(n, to, size) * e;
    w.messages->send(w.a.data + first, bound(n, to + 1, size) * e - first, to, tag_of(w));
  });
}

void gather_slices(MessageWork& w, int rank, int size) {
  const int64_t n = w.call.count, e = size_of(w.call.dtype), begin = bound(n, rank, size) * e;
  each_peer(rank, size, [&](int, int from) {
    const int64_t first = bound(n, from, size) * e;
    w.messages->receive(w.a.data + first, bound(n, from + 1, size) * e - first, from, tag_of(w));
  });
  each_peer(rank, size, [&](int to, int) {
    w.messages->send(w.a.data + begin, bound(n, rank + 1, size) * e - begin, to, tag_of(w));
  });
}

// Also sends empty parts, so that ranks that disagree about one are found.
void exchange_parts(MessageWork& w, int rank, int size) {
  const int64_t e = size_of(w.call.dtype);
  const PeerOffsets& o = w.offsets;
  const auto from = [&](int r) { return w.a.data + o.send[static_cast<size_t>(r)] * e; };
  const auto to = [&](int r) { return w.b.data + o.recv[static_cast<size_t>(r)] * e; };
  each_peer(rank, size, [&](int, int r) { w.messages->receive(to(r), o.expects(r) * e, r, tag_of(w)); });
  each_peer(rank, size, [&](int r, int) { w.messages->send(from(r), o.sends(r) * e, r, tag_of(w)); });
  if (o.sends(rank) > 0) std::memcpy(to(rank), from(rank), static_cast<size_t>(o.sends(rank) * e));
}

}  // namespace

void begin_collective(MessageWork& w, int rank, int size) {
  w.phase = 1;
  const int64_t bytes = w.call.bytes(), shard = bytes / size;
  switch (w.call.op) {
    case CommOp::kAllReduce:
      if (sends_whole(w, size)) {
        std::byte* at = staging(w, bytes * (size - 1));
        const auto of = [&](int r) { return at + (r < rank ? r : r - 1) * bytes; };
        w.parts.resize(static_cast<size_t>(size));
        for (int r = 0; r < size; ++r) w.parts[static_cast<size_t>(r)] = r == rank ? w.a.data : of(r);
        exchange(w, rank, size, w.a.data, bytes, of);
      } else {
        scatter_slices(w, rank, size);
      }
      break;
    case CommOp::kReduceScatter: scatter_slices(w, rank, size); break;
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV: exchange_parts(w, rank, size); break;
    case CommOp::kAllGather: {
      std::byte* own = w.a.data + rank * shard;
      if (own != w.b.data && shard > 0) std::memcpy(own, w.b.data, static_cast<size_t>(shard));
      exchange(w, rank, size, own, shard, [&](int r) { return w.a.data + r * shard; });
      break;
    }
    case CommOp::kBroadcast:
      if (rank != w.call.peer)
        w.messages->receive(w.a.data, bytes, w.call.peer, tag_of(w));
      else
        each_peer(rank, size, [&](int to, int) { w.messages->send(w.a.data, bytes, to, tag_of(w)); });
      break;
    case CommOp::kBarrier:
      exchange(w, rank, size, nullptr, 0, [](int) { return static_cast<std::byte*>(nullptr); });
      break;
    default: fail(Exit::kInternal, "not a collective: ", to_string(w.call));
  }
}

void continue_collective(MessageWork& w, int rank, int size) {
  const int64_t n = w.call.count, begin = bound(n, rank, size), slice = bound(n, rank + 1, size) - begin;
  const bool sum = w.call.op == CommOp::kAllReduce || w.call.op == CommOp::kReduceScatter;
  if (!sum || w.phase == 2) {
    w.phase = 0;
  } else if (w.call.op == CommOp::kReduceScatter) {
    reduce_in_order(w.b.data, w.parts.data(), size, slice, w.call.dtype, w.call.reduce);
    w.phase = 0;
  } else if (sends_whole(w, size)) {
    reduce_in_order(w.a.data, w.parts.data(), size, n, w.call.dtype, w.call.reduce);
    w.phase = 0;
  } else {
    std::byte* own = w.a.data + begin * size_of(w.call.dtype);
    reduce_in_order(own, w.parts.data(), size, slice, w.call.dtype, w.call.reduce);
    w.phase = 2;
    gather_slices(w, rank, size);
  }
}

}  // namespace gt
