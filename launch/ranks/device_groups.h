// How the memory of GPUs moves between ranks: in the GPU itself where ranks are threads that share it, by NCCL, or
// through pinned host memory on the transport that the launcher gave.
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
  // Which and why, for the start of the run: "NCCL 2.30.4 (/usr/lib/libnccl.so.2)"; "": there is one rank.
  std::string transport;
};

// Collective over `given`, which outlives the result. `sharers`: ranks that use this rank's GPU. comm.backend=auto
// takes direct groups (SideChannel::direct) when there are some: they have the CPU's bits, and NCCL's kernels would
// wait for each other inside one process. Else NCCL when all ranks load one version, it serves as many ranks a GPU, and
// a trial passes. Throws kUsage on all ranks when one of the two was asked for and cannot be had.
DeviceGroups device_groups(const Config&, GroupFactory& given, const Backend&, int index, int sharers);

// Why collectives of this NCCL (ncclGetVersion) cannot be parts of graphs; empty: they can. They are wherever graphs
// are; the variable GPTTRAIN_NCCL_GRAPHS=0 on any rank leaves them beside. several_devices: ranks that are threads of
// one process use them.
std::string obstacle_to_graphs(int nccl_version, bool several_machines, bool several_devices);

// What a wait may take at most. The stall monitor ends a run that hangs (exit 124) before; should it fail itself, every
// wait has this deadline of its own.
std::chrono::milliseconds wait_deadline(const Config&);

}  // namespace gt
