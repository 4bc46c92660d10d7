// One interface over NCCL (GPU), MPI (CPU), threads of one process, self (size 1) and null (planning). Calls are
// asynchronous and stream-ordered: a call starts after the work already queued on `after` and returns at once. CPU
// backends reduce in rank order: each output element is ((x0 + x1) + x2) + …, whatever the chunking. Results
// therefore do not depend on backend, overlap or bucket sizes. All dtypes can be moved. f32, f64, i32, i64, bf16 and
// f16 (added in f32, rounded once) can be reduced, byte by max and min only.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/combine.h"
#include "kernels/core/tensor.h"
#include "parallel/comm/comm_spans.h"
#include "parallel/comm/group_trace.h"
#include "parallel/comm/watch/rank_status.h"

namespace gt {

// Numeric values are part of the files of measured times: append only. kAllToAllV: with unequal parts.
enum class CommOp : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kBarrier,
  kSend,
  kRecv,
  kAllToAll,
  kAllToAllV
};
constexpr int kNumCommOps = 9;

class ProcessGroup;

// Handle of an outstanding call: copyable, not owning. Must be waited for exactly once; a default-constructed one needs
// no wait.
class Work {
 public:
  Work() = default;
  Work(ProcessGroup* group, uint64_t ticket) : group_(group), ticket_(ticket) {}
  void wait(Stream s);  // later work on `s` sees the result; blocks the host only on CPU
  bool pending() const { return group_ != nullptr; }

 private:
  ProcessGroup* group_ = nullptr;
  uint64_t ticket_ = 0;
};

// Calls of one rank in a group, by operation: bytes by the closed forms of tests/parallel/closed_forms.h, and times.
struct CommCounters {
  struct Op {
    int64_t calls = 0;
    int64_t bytes = 0;       // sent; for a receive: received
    int64_t payload = 0;     // bytes of the full tensors
    int64_t flight_ns = 0;   // from each call to its completion
    int64_t blocked_ns = 0;  // this rank's thread inside calls and waits
    void add(const Op& o, int64_t times = 1) {
      calls += times * o.calls, bytes += times * o.bytes, payload += times * o.payload;
      flight_ns += times * o.flight_ns, blocked_ns += times * o.blocked_ns;
    }
  };
  Op ops[kNumCommOps];  // by CommOp
  Op& of(CommOp op) { return ops[static_cast<int>(op)]; }
  const Op& of(CommOp op) const { return ops[static_cast<int>(op)]; }
  int64_t bytes(CommOp op) const { return of(op).bytes; }
  // Sums over all operations: bytes sent, calls, blocked time.
  int64_t total() const { return sum(&Op::bytes) - bytes(CommOp::kRecv); }
  int64_t calls() const { return sum(&Op::calls); }
  int64_t blocked_ns() const { return sum(&Op::blocked_ns); }
  // Adds `times` times the other's counts: -1 for the counts since `n` was read.
  void add(const CommCounters& n, int64_t times = 1) {
    for (int i = 0; i < kNumCommOps; ++i) ops[i].add(n.ops[i], times);
  }

 private:
  int64_t sum(int64_t Op::*member) const {
    int64_t all = 0;
    for (const Op& o : ops) all += o.*member;
    return all;
  }
};

// Sizes of the parts of an all-to-all, by rank of the group, this one included: `width` times so many elements are sent
// to and received from it. Parts lie in rank order without gaps. Default: equal parts. Read during the call only.
struct PeerCounts {
  std::span<const int64_t> send, recv;
  int64_t width = 1;  // elements of a counted row
};

class ProcessGroup {
 public:
  ProcessGroup(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view backend() const = 0;
  virtual bool capturable() const { return false; }  // may be recorded into a CUDA graph

  // Collectives: every rank of the group calls them in the same order with the same count and dtype. Buffers must not
  // be touched until the ticket has been waited for. Empty tensors are legal.
  // all_reduce: in place. all_gather: full = concatenation of the shards in rank order; shard may alias its own range
  // of full. reduce_scatter: full has size() equal parts; shard (may alias this rank's part of full) receives the sum
  // of part rank().
  virtual Work all_reduce(Tensor inout, ReduceOp, Stream after) = 0;
  virtual Work all_gather(Tensor shard, Tensor full, Stream after) = 0;
  virtual Work reduce_scatter(Tensor full, Tensor shard, Stream after) = 0;  // sum
  virtual Work broadcast(Tensor inout, int root, Stream after) = 0;
  // Part j of `send` goes to rank j, where it becomes part rank() of `recv` (MPI_Alltoallv). Equal parts: both tensors
  // have size() of them and as many elements on every rank. Unequal parts: the sums of the counts are the elements of
  // the tensors; a count may be 0, and an empty tensor names its device like any other. What rank i sends to rank j
  // must be what j expects from i. Ranks that disagree fail with both counts (README.md). The
  // tensors must not overlap.
  virtual Work all_to_all(Tensor send, Tensor recv, const PeerCounts&, Stream after) = 0;

  // Point to point. Messages of one (source, destination, tag) arrive in order; different tags never block each other.
  virtual Work send(Tensor, int to, int tag, Stream after) = 0;
  virtual Work recv(Tensor, int from, int tag, Stream after) = 0;

  virtual void barrier() = 0;
  // Advances outstanding work; the executor calls it between actions. MPI makes no progress outside its own calls.
  virtual void poll() {}
  // For a rank that leaves its work by an error: calls it has not waited for may still access its buffers. Backends
  // whose ranks access each other's memory end the world with this message and return once no rank accesses them.
  virtual void abandon(const std::string& why, Exit code) {
    (void)why;
    (void)code;
  }

  virtual const CommCounters& counters() const { return counters_; }
  // From now on also records calls and waits in `spans`; nullptr: stops.
  virtual void set_spans(CommSpans* spans) { spans_ = spans; }
  // Used in stall and mismatch reports: "dp group of stage 1"; set by the mesh.
  virtual void set_label(std::string label) {
    label_ = std::move(label);
    trace_.set_label(label_);
  }
  virtual const std::string& label() const { return label_; }

 protected:
  friend class Work;
  virtual void wait(uint64_t ticket, Stream) = 0;
  // Records that the calling thread was in a call of `op`, or a wait for one, since `begin` (steady_ns).
  void record_blocked(CommOp op, int64_t bytes, int64_t begin, bool waits) {
    const int64_t end = steady_ns();
    counters_.of(op).blocked_ns += end - begin;
    if (spans_ != nullptr) spans_->add({begin, end, bytes, op, waits});
  }
  CommCounters counters_;
  GroupTrace trace_;  // set by backends whose ranks share a board

 private:
  int rank_, size_;
  CommSpans* spans_ = nullptr;
  std::string label_ = "group";
};

inline void Work::wait(Stream s) {
  if (group_ != nullptr) group_->wait(ticket_, s);
  group_ = nullptr;
}

// Makes groups of one backend for one rank of a world. Implementations: NCCL, MPI, threads, self, null
// (parallel/comm/*.h).
class GroupFactory {
 public:
  virtual ~GroupFactory() = default;
  virtual int world_rank() const = 0;
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks of this machine
  virtual int local_size() const = 0;
  virtual std::string_view backend() const = 0;
  // Collective: every rank of the world calls make() in the same order, with the list of the group it belongs to
  // (ascending world ranks, including its own). The lists of one call partition the world.
  virtual std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) = 0;
  // Activity that this rank reports; lives as long as the factory. nullptr: nothing reads it.
  virtual RankStatus* status() { return nullptr; }
};

}  // namespace gt
