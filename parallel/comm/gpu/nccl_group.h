// Groups of GPU ranks over NCCL. Calls run on their own streams beside the computation; the host copies nothing.
// Communicators are non-blocking and created on first use. Each group has one for collectives and one for every
// (source, destination, tag) of messages, so that tags never block each other. Their ids are sent over the host's
// groups and notes. A thread watches the work on the device: late NCCL errors, ended ranks, waits past the deadline. It
// then aborts the communicators, so that kernels waiting for a peer end, and the next call or wait throws the reason.
// Host tensors, barriers and errors that end the world, which NCCL lacks, use the host's transport. Collectives may be
// captured into graphs (kernels/replay.h) if NcclOptions::captures is set; messages never are. Sums are taken in the
// order of NCCL's ring, repeatable with NCCL_ALGO=Ring (nccl::set_environment), but not in the rank order of the CPU
// backends. bf16 and f16 are rounded wherever NCCL's algorithm stores a partial sum.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "parallel/comm/gpu/nccl_api.h"
#include "parallel/comm/process_group.h"

namespace gt {

class NcclEngine;

struct NcclOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(660);  // of every wait, including those on the device
  bool captures = false;  // collectives are captured in recordings; the same on all ranks
  int p2p_ctas = 4;       // maximum thread blocks that a message communicator may take from the computation
};

class NcclFactory final : public GroupFactory {
 public:
  // Tensors are on device `index` of `device`; `raw` returns the cudaStream_t of one of its streams. `inner` must be a
  // thread or MPI factory; all must outlive this object. Collective.
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

  // Returns "" if this world can sum four bytes over all its ranks within `limit`, else the error, which may differ
  // between ranks. Collective. After a failure this factory must not be used.
  std::string probe(std::chrono::milliseconds limit);

 private:
  GroupFactory& inner_;
  const DeviceApi& device_;
  int index_;
  std::unique_ptr<NcclEngine> engine_;
  uint64_t made_ = 0;
};

}  // namespace gt
