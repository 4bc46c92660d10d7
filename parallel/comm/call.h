// One operation, as all backends describe it: its name in reports, its argument checks, the bytes it accounts for.
// Independent of transports.
#pragma once
#include <string>

#include "parallel/comm/process_group.h"

namespace gt {

// One call, as every rank of a group must make it. `count`: elements of the full tensor; `peer`: root of a broadcast or
// the other rank of a message; `tag`: of a message.
struct CommCall {
  CommOp op = CommOp::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  DType dtype = DType::kByte;
  int64_t count = 0;
  int32_t peer = 0;
  int32_t tag = 0;
  int64_t bytes() const { return count * size_of(dtype); }
  friend bool operator==(const CommCall&, const CommCall&) = default;
};

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
CommCall message_call(const ProcessGroup&, CommOp, const Tensor&, int peer, int tag);

// Throws if a tensor is not in host memory, naming the backend.
void require_host(const ProcessGroup&, const Tensor&);

// Adds one call to the counters of rank `rank` of `size`. Bytes follow the ring formulas, whatever the transport sends:
// all_reduce 2n(N-1)/N, reduce_scatter and all_gather n(N-1)/N, broadcast n on the root, send n. n = bytes of the full
// tensor; results are rounded down to whole bytes.
void count_call(CommCounters&, const CommCall&, int rank, int size);

}  // namespace gt
