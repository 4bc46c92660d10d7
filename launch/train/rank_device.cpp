#include "launch/train/rank_device.h"

#include <numeric>
#include <vector>

#include "launch/ranks/agree.h"
#include "launch/train/engine_options.h"

namespace gt {

RankDevice::RankDevice(const Config& c, GroupFactory& given) : given_(given) {
  std::vector<int> everyone(static_cast<size_t>(given.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  agree(*given.make(everyone), [&] { backend_ = &choose_backend(c); });
  sharers_ = given.local_size();
  if (backend_->kind == DeviceKind::kCpu) return;
  const int devices = std::max(1, backend_->device->count());
  index_ = given.local_rank() % devices;
  sharers_ = (given.local_size() - index_ + devices - 1) / devices;
  own_ = device_groups(c, given, *backend_, index_, sharers_);
}

}  // namespace gt
