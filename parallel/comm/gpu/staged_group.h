// Device tensors over a backend that moves host memory (threads, MPI): each call copies to pinned memory, the backend
// moves that, and the wait copies back. The host synchronizes with the device before every call, so nothing overlaps.
// In return any number of ranks share a GPU, on any transport, bitwise identical to the CPU's rank-ordered sums. Host
// tensors are passed through. Pinned blocks are reused: a warm step allocates none.
#pragma once
#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "parallel/comm/process_group.h"

namespace gt {

class StagedFactory final : public GroupFactory {
 public:
  // Tensors are on device `index` of `api`. `inner` and `api` must outlive the factory and its groups.
  StagedFactory(GroupFactory& inner, const DeviceApi& api, int index);
  int world_rank() const override { return inner_.world_rank(); }
  int world_size() const override { return inner_.world_size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::string_view backend() const override { return name_; }  // "thread through pinned memory"
  std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) override;
  RankStatus* status() override { return inner_.status(); }

 private:
  GroupFactory& inner_;
  const DeviceApi& api_;
  int index_;
  std::string name_;
};

}  // namespace gt
