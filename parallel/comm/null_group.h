// Groups of any rank and size that only count bytes, and record their calls where spans are set. For memory plans,
// schedules and dry runs on the null device, for one rank of a hypothetical world. Results of collectives are
// undefined.
#pragma once
#include "parallel/comm/process_group.h"

namespace gt {

class NullGroup final : public ProcessGroup {
 public:
  NullGroup(int rank, int size) : ProcessGroup(rank, size) {}
  std::string_view backend() const override { return "null"; }
  Work all_reduce(Tensor inout, ReduceOp, Stream) override;
  Work all_gather(Tensor shard, Tensor full, Stream) override;
  Work reduce_scatter(Tensor full, Tensor shard, Stream) override;
  Work broadcast(Tensor inout, int root, Stream) override;
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts&, Stream) override;
  Work send(Tensor, int to, int tag, Stream) override;
  Work recv(Tensor, int from, int tag, Stream) override;
  void barrier() override;

 protected:
  void wait(uint64_t, Stream) override {}

 private:
  void record(CommOp op, const Tensor& full) { record_blocked(op, full.bytes(), steady_ns(), false); }
};

class NullFactory final : public GroupFactory {
 public:
  // Rank `rank` of a world of `size`; `local_size` ranks share a machine (0: all of them).
  NullFactory(int rank, int size, int local_size = 0);
  int world_rank() const override { return rank_; }
  int world_size() const override { return size_; }
  int local_rank() const override { return rank_ % local_size_; }
  int local_size() const override { return local_size_; }
  std::string_view backend() const override { return "null"; }
  std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) override;

 private:
  int rank_, size_, local_size_;
};

}  // namespace gt
