// Where a rank computes, and groups for tensors that are there (device_groups.h). Ranks of a machine share its GPUs in
// turn.
#pragma once
#include <memory>

#include "kernels/backend.h"
#include "launch/config/config.h"
#include "launch/ranks/device_groups.h"
#include "parallel/comm/process_group.h"

namespace gt {

class RankDevice {
 public:
  // Collective over `given`, which outlives this object. Throws on all ranks when one of them has not what device.kind
  // asks for.
  RankDevice(const Config&, GroupFactory& given);
  const Backend& backend() const { return *backend_; }
  int index() const { return index_; }  // of the device, on this machine
  GroupFactory& groups() { return own_.factory ? *own_.factory : given_; }
  const std::string& transport() const { return own_.transport; }  // between GPUs; "": there is nothing to say
  int sharers() const { return sharers_; }  // ranks of this machine that use the same device, this one among them

 private:
  GroupFactory& given_;
  const Backend* backend_ = nullptr;
  DeviceGroups own_;
  int index_ = 0, sharers_ = 1;
};

}  // namespace gt
