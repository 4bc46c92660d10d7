// Checks that the two copies of a tied table on different stages are still equal.
#include <vector>

#include "kernels/core/rng.h"
#include "parallel/comm/host_values.h"
#include "parallel/zero/param_store.h"
#include "parallel/zero/unit_state.h"

namespace gt {
namespace {

int64_t hash_of(std::span<const uint8_t> bytes) {
  uint64_t h = bytes.size();
  for (size_t i = 0; i < bytes.size(); ++i) h = (h ^ bytes[i]) * 0x100000001b3;
  return static_cast<int64_t>(splitmix64(h) >> 1);
}

}  // namespace

// The max all-reduce returns the larger of two hashes and of their negatives: equal hashes cancel out.
void ParamStore::require_equal_copies() {
  ProcessGroup& ends = mesh_.embedding_group();
  if (ends.size() != 2 || compute_.device.kind == DeviceKind::kNull) return;
  for (auto& s : units_) {
    const Parameter& p = *s->spec.params.front();
    if ((p.tied_to.empty() && !p.tied_owner) || s->owner != nullptr || s->copy != nullptr) continue;
    const Tensor held = s->held_values();
    std::vector<uint8_t> host(static_cast<size_t>(held.bytes()));
    backend_.device->copy(host.data(), held.data, held.bytes(), compute_);
    backend_.device->synchronize(compute_);
    const int64_t mine = hash_of(host);
    const auto [most, least] = max_over(ends, std::array{mine, -mine});
    GT_CHECK(most == -least, "the copies of ", p.tied_to.empty() ? p.name : p.tied_to,
             " on the first and the last stage differ (here, on ", mesh_.coordinates(), ", hash ", mine, ")");
  }
}

}  // namespace gt
