// Device of a rank, and process groups for tensors on it (device_groups.h). Ranks of a machine are assigned to its GPUs
// round-robin.
#pragma once
#include <memory>

#include "kernels/backend.h"
#include "launch/config/config.h"
#include "launch/ranks/device_groups.h"
#include "parallel/comm/process_group.h"

namespace gt {

class RankDevice {
 public:
  // Collective over `given`, which must outlive this object. Throws on all ranks if one of them lacks the device of
  // device.kind.
  RankDevice(const Config&, GroupFactory& given);
  const Backend& backend() const { return *backend_; }
  int index() const { return index_; }  // of the device, on this machine
  GroupFactory& groups() { return own_.factory ? *own_.factory : given_; }
  const std::string& transport() const { return own_.transport; }  // between GPUs; "" if not applicable
  int sharers() const { return sharers_; }  // ranks of this machine on the same device, including this one

 private:
  GroupFactory& given_;
  const Backend* backend_ = nullptr;
  DeviceGroups own_;
  int index_ = 0, sharers_ = 1;
};

}  // namespace gt
