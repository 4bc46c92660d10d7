#include "parallel/comm/null_group.h"

#include <algorithm>

#include "parallel/comm/call.h"

namespace gt {

Work NullGroup::all_reduce(Tensor inout, ReduceOp op, Stream) {
  count_call(counters_, all_reduce_call(*this, inout, op), rank(), size());
  record(CommOp::kAllReduce, inout);
  return {};
}

Work NullGroup::all_gather(Tensor shard, Tensor full, Stream) {
  count_call(counters_, all_gather_call(*this, shard, full), rank(), size());
  record(CommOp::kAllGather, full);
  return {};
}

Work NullGroup::reduce_scatter(Tensor full, Tensor shard, Stream) {
  count_call(counters_, reduce_scatter_call(*this, full, shard), rank(), size());
  record(CommOp::kReduceScatter, full);
  return {};
}

Work NullGroup::broadcast(Tensor inout, int root, Stream) {
  count_call(counters_, broadcast_call(*this, inout, root), rank(), size());
  record(CommOp::kBroadcast, inout);
  return {};
}

Work NullGroup::all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream) {
  const CommCall c = all_to_all_call(*this, send, recv, counts);
  count_call(counters_, c, rank(), size(), counts);
  record(c.op, send);
  return {};
}

Work NullGroup::send(Tensor t, int to, int tag, Stream) {
  count_call(counters_, message_call(*this, CommOp::kSend, t, to, tag), rank(), size());
  record(CommOp::kSend, t);
  return {};
}

Work NullGroup::recv(Tensor t, int from, int tag, Stream) {
  count_call(counters_, message_call(*this, CommOp::kRecv, t, from, tag), rank(), size());
  record(CommOp::kRecv, t);
  return {};
}

void NullGroup::barrier() { count_call(counters_, CommCall{}, rank(), size()); }

NullFactory::NullFactory(int rank, int size, int local_size)
    : rank_(rank), size_(size), local_size_(local_size > 0 ? local_size : size) {
  GT_CHECK(rank >= 0 && rank < size, "rank ", rank, " of a world of ", size);
}

std::unique_ptr<ProcessGroup> NullFactory::make(std::span<const int> ranks) {
  const auto at = std::find(ranks.begin(), ranks.end(), rank_);
  GT_CHECK(at != ranks.end(), "rank ", rank_, " requests a group without itself: ", to_string(ranks));
  return std::make_unique<NullGroup>(static_cast<int>(at - ranks.begin()), static_cast<int>(ranks.size()));
}

}  // namespace gt
