// Host memory marked as GPU memory, for groups that move device tensors: the suite's host tensors pass as device
// tensors.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Plain memory, nothing asynchronous: streams and events are always complete. alloc_host is counted.
const DeviceApi& plain_device();
int64_t host_blocks_made();  // so far
int64_t host_blocks_held();  // now

// plain_device() that logs recorded and awaited events: "record a on compute". Events are named in the order of their
// first use since the log was cleared; streams it opened are "own", others "compute". One instance at a time.
DeviceApi logging_device(std::vector<std::string>& log);

class MarkedFactory : public GroupFactory {
 public:
  explicit MarkedFactory(std::unique_ptr<GroupFactory> of_device) : device_(std::move(of_device)) {}
  int world_rank() const override { return device_->world_rank(); }
  int world_size() const override { return device_->world_size(); }
  int local_rank() const override { return device_->local_rank(); }
  int local_size() const override { return device_->local_size(); }
  std::string_view backend() const override { return device_->backend(); }
  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override;

 private:
  std::unique_ptr<GroupFactory> device_;
};

}  // namespace gt
