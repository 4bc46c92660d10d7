#include "parallel/comm/call.h"

#include <iterator>

namespace gt {
namespace {
constexpr const char* kOpNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",   "barrier",
                                    "send",       "recv",       "all_to_all",     "all_to_all_v"};
constexpr const char* kReduceNames[] = {"sum", "max", "min"};

void check_reducible(const ProcessGroup& g, const char* op, DType t, ReduceOp r) {
  switch (t) {
    case DType::kF32:
    case DType::kF64:
    case DType::kI32:
    case DType::kI64:
    case DType::kBF16:
    case DType::kF16: return;
    case DType::kByte:
      if (r != ReduceOp::kSum) return;
      break;
    default: break;
  }
  fail(Exit::kInternal, g.label(), ": ", op, " cannot ", kReduceNames[static_cast<int>(r)], " ", name_of(t),
       "; f32, f64, i32, i64, bf16 and f16 reduce, byte only by max or min");
}

void check_parts(const ProcessGroup& g, const char* op, const Tensor& shard, const Tensor& full) {
  GT_REQUIRE(shard.dtype == full.dtype, Exit::kInternal, g.label(), ": ", op, " of a ", name_of(shard.dtype),
             " shard and a ", name_of(full.dtype), " full tensor; both must have one dtype");
  GT_REQUIRE(shard.numel() * g.size() == full.numel(), Exit::kInternal, g.label(), ": ", op, " over ", g.size(),
             " ranks needs a full tensor of ", shard.numel() * g.size(), " elements for a shard of ", shard.numel(),
             ", found ", full.numel());
}

// Checks one tensor's counts and returns their sum.
int64_t sum_of(const ProcessGroup& g, const char* which, std::span<const int64_t> counts, int64_t width) {
  GT_REQUIRE(static_cast<int>(counts.size()) == g.size(), Exit::kInternal, g.label(), ": all_to_all_v with ",
             counts.size(), " ", which, " counts in a group of ", g.size(), " ranks");
  int64_t sum = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    int64_t part = 0;
    GT_REQUIRE(counts[r] >= 0 && width > 0 && !__builtin_mul_overflow(counts[r], width, &part) &&
                   !__builtin_add_overflow(sum, part, &sum),
               Exit::kInternal, g.label(), ": all_to_all_v with a ", which, " count of ", counts[r], " x ", width,
               " elements for rank ", r);
  }
  return sum;
}

bool overlap(const Tensor& a, const Tensor& b) {
  return a && b && a.bytes() > 0 && b.bytes() > 0 && a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

void check_member(const ProcessGroup& g, const char* op, int rank) {
  GT_REQUIRE(rank >= 0 && rank < g.size(), Exit::kInternal, g.label(), ": ", op, " names rank ", rank,
             " of a group of ", g.size());
}
}  // namespace

const char* name_of(CommOp op) {
  return static_cast<size_t>(op) < std::size(kOpNames) ? kOpNames[static_cast<size_t>(op)] : "?";
}

std::string to_string(const CommCall& c) {
  const std::string op = name_of(c.op), data = cat(name_of(c.dtype), " x ", c.count);
  switch (c.op) {
    case CommOp::kAllReduce: return cat(op, "(", kReduceNames[static_cast<int>(c.reduce)], ", ", data, ")");
    case CommOp::kBarrier: return op;
    case CommOp::kBroadcast: return cat(op, "(", data, ", root ", c.peer, ")");
    case CommOp::kSend:
    case CommOp::kRecv: return cat(op, "(", data, ", rank ", c.peer, ", tag ", c.tag, ")");
    default: return cat(op, "(", data, ")");
  }
}

std::string to_string(std::span<const int> ranks) {
  std::string s = "[";
  for (int r : ranks) s += cat(s.size() > 1 ? "," : "", r);
  return s + "]";
}

CommCall all_reduce_call(const ProcessGroup& g, const Tensor& t, ReduceOp r) {
  check_reducible(g, "all_reduce", t.dtype, r);
  return {CommOp::kAllReduce, r, t.dtype, t.numel(), 0, 0};
}

CommCall all_gather_call(const ProcessGroup& g, const Tensor& shard, const Tensor& full) {
  check_parts(g, "all_gather", shard, full);
  return {CommOp::kAllGather, ReduceOp::kSum, full.dtype, full.numel(), 0, 0};
}

CommCall reduce_scatter_call(const ProcessGroup& g, const Tensor& full, const Tensor& shard) {
  check_parts(g, "reduce_scatter", shard, full);
  check_reducible(g, "reduce_scatter", full.dtype, ReduceOp::kSum);
  return {CommOp::kReduceScatter, ReduceOp::kSum, full.dtype, full.numel(), 0, 0};
}

CommCall broadcast_call(const ProcessGroup& g, const Tensor& t, int root) {
  check_member(g, "broadcast", root);
  return {CommOp::kBroadcast, ReduceOp::kSum, t.dtype, t.numel(), root, 0};
}

CommCall all_to_all_call(const ProcessGroup& g, const Tensor& send, const Tensor& recv, const PeerCounts& counts) {
  const bool equal = counts.send.empty() && counts.recv.empty();
  const CommCall c{equal ? CommOp::kAllToAll : CommOp::kAllToAllV, ReduceOp::kSum, send.dtype, send.numel(), 0, 0};
  GT_REQUIRE(send.dtype == recv.dtype, Exit::kInternal, g.label(), ": ", name_of(c.op), " of ", name_of(send.dtype),
             " into ", name_of(recv.dtype), "; both must have one dtype");
  GT_REQUIRE(!overlap(send, recv), Exit::kInternal, g.label(), ": ", name_of(c.op), " within one memory");
  if (equal) {
    GT_REQUIRE(send.numel() == recv.numel() && send.numel() % g.size() == 0, Exit::kInternal, g.label(),
               ": all_to_all of ", send.numel(), " elements into ", recv.numel(), "; both must be one multiple of ",
               g.size(), " ranks");
    return c;
  }
  const int64_t sent = sum_of(g, "send", counts.send, counts.width), got = sum_of(g, "recv", counts.recv, counts.width);
  GT_REQUIRE(sent == send.numel() && got == recv.numel(), Exit::kInternal, g.label(), ": all_to_all_v by counts of ",
             sent, " and ", got, " elements needs tensors of so many, found ", send.numel(), " and ", recv.numel());
  const auto me = static_cast<size_t>(g.rank());
  GT_REQUIRE(counts.send[me] == counts.recv[me], Exit::kInternal, g.label(), ": all_to_all_v: ",
             parts_differ(g.rank(), counts.send[me] * counts.width, g.rank(), counts.recv[me] * counts.width));
  return c;
}

void PeerOffsets::set(const CommCall& c, const PeerCounts& counts, int size) {
  send.resize(static_cast<size_t>(size) + 1), recv.resize(send.size());
  for (size_t r = 0; r < static_cast<size_t>(size); ++r) {
    send[r + 1] = send[r] + (counts.send.empty() ? c.count / size : counts.send[r] * counts.width);
    recv[r + 1] = recv[r] + (counts.recv.empty() ? c.count / size : counts.recv[r] * counts.width);
  }
}

std::string parts_differ(int from, int64_t sent, int to, int64_t expected) {
  return cat("rank ", from, " sends ", sent, " elements to rank ", to, ", which expects ", expected);
}

CommCall message_call(const ProcessGroup& g, CommOp op, const Tensor& t, int peer, int tag) {
  const char* name = kOpNames[static_cast<int>(op)];
  check_member(g, name, peer);
  GT_REQUIRE(peer != g.rank(), Exit::kInternal, g.label(), ": ", name, " between rank ", peer, " and itself");
  GT_REQUIRE(tag >= 0, Exit::kInternal, g.label(), ": ", name, " with negative tag ", tag);
  return {op, ReduceOp::kSum, t.dtype, t.numel(), peer, tag};
}

void require_host(const ProcessGroup& g, const Tensor& t) {
  GT_REQUIRE(t.device.kind == DeviceKind::kCpu, Exit::kInternal, g.label(), ": the ", g.backend(),
             " backend moves host memory only, found a tensor on another device");
}

void count_call(CommCounters& n, const CommCall& c, int rank, int size, const PeerCounts& counts) {
  const int64_t bytes = c.bytes(), ring = bytes * (size - 1);
  CommCounters::Op& op = n.of(c.op);
  ++op.calls;
  op.payload += bytes;
  switch (c.op) {
    case CommOp::kAllReduce: op.bytes += 2 * ring / size; break;
    case CommOp::kAllGather:
    case CommOp::kReduceScatter:
    case CommOp::kAllToAll: op.bytes += ring / size; break;
    case CommOp::kAllToAllV:
      op.bytes += bytes - counts.send[static_cast<size_t>(rank)] * counts.width * size_of(c.dtype);
      break;
    case CommOp::kBroadcast: op.bytes += rank == c.peer && size > 1 ? bytes : 0; break;
    case CommOp::kSend:
    case CommOp::kRecv: op.bytes += bytes; break;
    case CommOp::kBarrier: break;
  }
}

}  // namespace gt
