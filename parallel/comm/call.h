// One operation, as all backends describe it: its name in reports, its argument checks, the bytes it accounts for.
// Independent of transports.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

// One call, as every rank of a group must make it. `count`: elements of the full tensor, of an all_to_all of what this
// rank sends; `peer`: root of a broadcast or the other rank of a message; `tag`: of a message.
struct CommCall {
  CommOp op = CommOp::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  DType dtype = DType::kByte;
  int64_t count = 0;
  int32_t peer = 0;
  int32_t tag = 0;
  int64_t bytes() const { return count * size_of(dtype); }
  friend bool operator==(const CommCall&, const CommCall&) = default;
  // Whether two ranks make one collective by these calls. Ranks send different amounts in an all_to_all_v.
  bool agrees(CommCall other) const {
    if (op == CommOp::kAllToAllV) other.count = count;
    return *this == other;
  }
  bool is_all_to_all() const { return op == CommOp::kAllToAll || op == CommOp::kAllToAllV; }
  // Whether no rank of the group moves data, so that the call is complete at once.
  bool is_empty() const { return count == 0 && op != CommOp::kBarrier && op != CommOp::kAllToAllV; }
};

// Where the parts of an all_to_all lie, in elements: part j of `send` is [send[j], send[j + 1]).
struct PeerOffsets {
  std::vector<int64_t> send, recv;
  void set(const CommCall&, const PeerCounts&, int size);
  int64_t sends(int peer) const { return send[static_cast<size_t>(peer) + 1] - send[static_cast<size_t>(peer)]; }
  int64_t expects(int peer) const { return recv[static_cast<size_t>(peer) + 1] - recv[static_cast<size_t>(peer)]; }
};
// "rank 0 sends 5 elements to rank 1, which expects 6"
std::string parts_differ(int from, int64_t sent, int to, int64_t expected);

const char* name_of(CommOp);
std::string to_string(const CommCall&);             // "all_reduce(sum, f32 x 128)", "recv(f32 x 12, rank 1, tag 3)"
std::string to_string(std::span<const int> ranks);  // "[0,4]"

// Build a call and check its tensors: counts that fit the group, equal dtypes, root or peer in the group, reduction
// supported by the dtype. Reductions: f32, f64, i32, i64; bf16 and f16 are added in f32 and rounded once; byte supports
// max and min only. Errors are kInternal and name the group's label.
CommCall all_reduce_call(const ProcessGroup&, const Tensor& inout, ReduceOp);
CommCall all_gather_call(const ProcessGroup&, const Tensor& shard, const Tensor& full);
CommCall reduce_scatter_call(const ProcessGroup&, const Tensor& full, const Tensor& shard);
CommCall broadcast_call(const ProcessGroup&, const Tensor& inout, int root);
CommCall all_to_all_call(const ProcessGroup&, const Tensor& send, const Tensor& recv, const PeerCounts&);
CommCall message_call(const ProcessGroup&, CommOp, const Tensor&, int peer, int tag);

// Throws if a tensor is not in host memory, naming the backend.
void require_host(const ProcessGroup&, const Tensor&);

// Adds one call to the counters of rank `rank` of `size`. Bytes follow the ring formulas, whatever the transport sends:
// all_reduce 2n(N-1)/N, reduce_scatter, all_gather and all_to_all n(N-1)/N, broadcast n on the root, send n. n = bytes
// of the full tensor; results are rounded down to whole bytes. all_to_all_v: what is sent to other ranks, by `counts`.
void count_call(CommCounters&, const CommCall&, int rank, int size, const PeerCounts& counts = {});

}  // namespace gt
