// Groups of GPU ranks over NCCL: calls run on streams of their own beside the computation and no host copies anything.
// Communicators are non-blocking and made where they are first needed: one for the collectives of a group, one for each
// (source, destination, tag) of messages, so that tags never block each other; their ids travel over the host's groups
// and notes. A thread watches what runs on the device: errors that NCCL reports late, ranks that end, waits that pass
// the deadline; it then aborts the communicators, so that kernels that wait for a peer end, and the next call or wait
// says why.
// What NCCL has not goes to the host's transport: host tensors, barriers, errors that end the world.
// Collectives may be captured into graphs (kernels/replay.h) where NcclOptions::captures says so; messages never are.
// Sums: in the order of NCCL's ring, repeatable with NCCL_ALGO=Ring (nccl::set_environment), but not the rank order of
// the CPU backends; bf16 and f16 are rounded wherever NCCL's algorithm stores a partial sum.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "parallel/comm/nccl_api.h"
#include "parallel/comm/process_group.h"

namespace gt {

class NcclEngine;

struct NcclOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(660);  // of every wait, also of one on the device
  bool captures = false;  // collectives take part in recordings; the same on all ranks
  int p2p_ctas = 4;  // the most thread blocks that a communicator for messages may take from the computation
};

class NcclFactory final : public GroupFactory {
 public:
  // Tensors are on device `index` of `device`; `raw` gives the cudaStream_t of one of its streams. `inner` must be a
  // factory of threads or of MPI; all outlive this object. Collective.
  NcclFactory(GroupFactory& inner, std::shared_ptr<const nccl::Api>, const DeviceApi& device, int index,
              void* (*raw)(Stream), NcclOptions);
  ~NcclFactory() override;
  int world_rank() const override { return inner_.world_rank(); }
  int world_size() const override { return inner_.world_size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::string_view backend() const override { return "nccl"; }
  std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) override;
  RankStatus* status() override { return inner_.status(); }

  // Whether this world can sum four bytes over all its ranks within `limit`: "" or what went wrong, which other ranks
  // may see otherwise. Collective. After a failure this factory is of no more use.
  std::string probe(std::chrono::milliseconds limit);

 private:
  GroupFactory& inner_;
  const DeviceApi& device_;
  int index_;
  std::unique_ptr<NcclEngine> engine_;
  uint64_t made_ = 0;
};

}  // namespace gt
