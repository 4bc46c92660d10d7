#include "parallel/comm/self_group.h"

#include <cstring>

#include "parallel/comm/call.h"

namespace gt {

void SelfGroup::copy(const Tensor& from, const Tensor& to, Stream s) {
  if (from.data == to.data || from.bytes() == 0 || from.device.kind == DeviceKind::kNull) return;
  if (api_ != nullptr && from.device.kind != DeviceKind::kCpu) return api_->copy(to.data, from.data, from.bytes(), s);
  require_host(*this, from);
  require_host(*this, to);
  std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
}

Work SelfGroup::all_reduce(Tensor inout, ReduceOp op, Stream) {
  count_call(counters_, all_reduce_call(*this, inout, op), 0, 1);
  return {};
}

Work SelfGroup::all_gather(Tensor shard, Tensor full, Stream s) {
  count_call(counters_, all_gather_call(*this, shard, full), 0, 1);
  copy(shard, full, s);
  return {};
}

Work SelfGroup::reduce_scatter(Tensor full, Tensor shard, Stream s) {
  count_call(counters_, reduce_scatter_call(*this, full, shard), 0, 1);
  copy(full, shard, s);
  return {};
}

Work SelfGroup::broadcast(Tensor inout, int root, Stream) {
  count_call(counters_, broadcast_call(*this, inout, root), 0, 1);
  return {};
}

Work SelfGroup::all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream s) {
  count_call(counters_, all_to_all_call(*this, send, recv, counts), 0, 1, counts);
  copy(send, recv, s);
  return {};
}

Work SelfGroup::send(Tensor t, int to, int tag, Stream) {
  message_call(*this, CommOp::kSend, t, to, tag);
  return {};
}

Work SelfGroup::recv(Tensor t, int from, int tag, Stream) {
  message_call(*this, CommOp::kRecv, t, from, tag);
  return {};
}

void SelfGroup::barrier() { count_call(counters_, CommCall{}, 0, 1); }

std::unique_ptr<ProcessGroup> SelfFactory::make(std::span<const int> ranks) {
  GT_CHECK(ranks.size() == 1 && ranks[0] == 0, "a world of one rank cannot form the group ", to_string(ranks));
  return std::make_unique<SelfGroup>(api_);
}

}  // namespace gt
