// Transport between the GPUs of ranks: within a shared GPU if ranks are threads, NCCL, or pinned host memory over the
// launcher's transport.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "launch/config/config.h"
#include "parallel/comm/process_group.h"

namespace gt {

struct DeviceGroups {
  std::unique_ptr<GroupFactory> factory;
  // Name and reason, for the start banner: "NCCL 2.30.4 (/usr/lib/libnccl.so.2)"; "" with one rank.
  std::string transport;
};

// Selects the transport. `sharers`: ranks that use this rank's GPU.
// comm.backend=auto selects direct groups (SideChannel::direct) if available: they are bitwise identical to the CPU,
// and NCCL's kernels would deadlock inside one process. Otherwise NCCL, if all ranks load one version, it supports as
// many ranks per GPU, and a trial passes. Otherwise staged.
// Throws kUsage on all ranks if comm.backend requests an unavailable transport. Requires: `given` outlives the result.
// Collective over `given`.
DeviceGroups device_groups(const Config&, GroupFactory& given, const Backend&, int index, int sharers);

// Returns why collectives of this NCCL (ncclGetVersion) cannot be captured into CUDA graphs; empty if they can. They
// are captured wherever graphs are used, unless GPTTRAIN_NCCL_GRAPHS=0 is set on any rank. several_devices: ranks are
// threads of one process on several GPUs.
std::string obstacle_to_graphs(int nccl_version, bool several_machines, bool several_devices);

// Returns the deadline of each wait, a fallback in case the stall monitor fails, which ends hung runs earlier (exit
// 124).
std::chrono::milliseconds wait_deadline(const Config&);

}  // namespace gt
