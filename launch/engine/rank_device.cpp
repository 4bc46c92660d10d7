#include "launch/engine/rank_device.h"

#include <numeric>
#include <vector>

#include "launch/engine/engine_options.h"
#include "launch/ranks/agree.h"

namespace gt {

RankDevice::RankDevice(const Config& c, GroupFactory& given) : given_(given) {
  std::vector<int> everyone(static_cast<size_t>(given.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  agree(*given.make(everyone), [&] {
    backend_ = &choose_backend(c);
    const bool of_gpus = c.comm.backend == CommBackend::kNccl || c.comm.backend == CommBackend::kDirect;
    GT_REQUIRE(!of_gpus || backend_->kind != DeviceKind::kCpu, Exit::kUsage, "comm.backend: ", name_of(c.comm.backend),
               " transfers GPU memory, but the ranks run on the CPU. Use comm.backend auto, or device.kind cuda");
  });
  sharers_ = given.local_size();
  if (backend_->kind == DeviceKind::kCpu) return;
  const int devices = std::max(1, backend_->device->count());
  index_ = given.local_rank() % devices;
  sharers_ = (given.local_size() - index_ + devices - 1) / devices;
  own_ = device_groups(c, given, *backend_, index_, sharers_);
}

}  // namespace gt
