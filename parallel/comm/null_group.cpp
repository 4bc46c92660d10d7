#include "parallel/comm/null_group.h"

#include <algorithm>

#include "parallel/comm/call.h"

namespace gt {

Work NullGroup::all_reduce(Tensor inout, ReduceOp op, Stream) {
  count_call(counters_, all_reduce_call(*this, inout, op), rank(), size());
  return {};
}

Work NullGroup::all_gather(Tensor shard, Tensor full, Stream) {
  count_call(counters_, all_gather_call(*this, shard, full), rank(), size());
  return {};
}

Work NullGroup::reduce_scatter(Tensor full, Tensor shard, Stream) {
  count_call(counters_, reduce_scatter_call(*this, full, shard), rank(), size());
  return {};
}

Work NullGroup::broadcast(Tensor inout, int root, Stream) {
  count_call(counters_, broadcast_call(*this, inout, root), rank(), size());
  return {};
}

Work NullGroup::all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream) {
  count_call(counters_, all_to_all_call(*this, send, recv, counts), rank(), size(), counts);
  return {};
}

Work NullGroup::send(Tensor t, int to, int tag, Stream) {
  count_call(counters_, message_call(*this, CommOp::kSend, t, to, tag), rank(), size());
  return {};
}

Work NullGroup::recv(Tensor t, int from, int tag, Stream) {
  count_call(counters_, message_call(*this, CommOp::kRecv, t, from, tag), rank(), size());
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
