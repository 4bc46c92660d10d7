#include "parallel/comm/call.h"

#include <iterator>

namespace gt {
namespace {
constexpr const char* kOpNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier",
                                    "send",       "recv"};
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

void count_call(CommCounters& n, const CommCall& c, int rank, int size) {
  const int64_t bytes = c.bytes(), ring = bytes * (size - 1);
  CommCounters::Op& op = n.of(c.op);
  ++op.calls;
  op.payload += bytes;
  switch (c.op) {
    case CommOp::kAllReduce: op.bytes += 2 * ring / size; break;
    case CommOp::kAllGather:
    case CommOp::kReduceScatter: op.bytes += ring / size; break;
    case CommOp::kBroadcast: op.bytes += rank == c.peer && size > 1 ? bytes : 0; break;
    case CommOp::kSend:
    case CommOp::kRecv: op.bytes += bytes; break;
    case CommOp::kBarrier: break;
  }
}

}  // namespace gt
