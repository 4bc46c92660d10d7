// Groups of one rank: collectives are no-ops, so that no caller tests the size of an axis. Also the factory of a
// program that runs alone; it never initializes MPI.
#pragma once
#include "kernels/core/device.h"
#include "parallel/comm/process_group.h"
#include "parallel/comm/watch/rank_status.h"

namespace gt {

class SelfGroup final : public ProcessGroup {
 public:
  // `api` copies between different buffers of its device, ordered on the call's stream; without it tensors must be on
  // the host. Tensors on the null device are never copied.
  explicit SelfGroup(const DeviceApi* api = nullptr) : ProcessGroup(0, 1), api_(api) { set_label("self group"); }

  std::string_view backend() const override { return "self"; }
  bool capturable() const override { return true; }
  Work all_reduce(Tensor inout, ReduceOp, Stream) override;
  Work all_gather(Tensor shard, Tensor full, Stream) override;
  Work reduce_scatter(Tensor full, Tensor shard, Stream) override;
  Work broadcast(Tensor inout, int root, Stream) override;
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts&, Stream) override;
  Work send(Tensor, int to, int tag, Stream) override;  // throws: there is no peer
  Work recv(Tensor, int from, int tag, Stream) override;
  void barrier() override;

 protected:
  void wait(uint64_t, Stream) override {}

 private:
  void copy(const Tensor& from, const Tensor& to, Stream);
  const DeviceApi* api_;
};

class SelfFactory final : public GroupFactory {
 public:
  explicit SelfFactory(const DeviceApi* api = nullptr) : api_(api) { pages_->rank.world_rank.store(0); }
  int world_rank() const override { return 0; }
  int world_size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::string_view backend() const override { return "self"; }
  std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) override;
  RankStatus* status() override { return &status_; }
  CommBoard board() { return {&head_, pages_.get(), 1}; }

 private:
  const DeviceApi* api_;
  BoardHead head_;
  const std::unique_ptr<RankPages> pages_ = std::make_unique<RankPages>();
  RankStatus status_{pages_->rank};
};

}  // namespace gt
