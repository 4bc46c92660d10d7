#include "parallel/zero/init.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "kernels/core/rng.h"
#include "parallel/zero/shard_view.h"

namespace gt {

void init_parameter(const Parameter& p, Tensor into, uint64_t key, const RankCoordinates& at, int threads,
                    const DeviceApi& api, Stream stream) {
  if (stream.device.kind == DeviceKind::kNull) return;
  const int64_t n = p.local_shape.numel();
  std::vector<float> host(static_cast<size_t>(n), p.init.kind == Init::Kind::kOne ? 1.f : 0.f);
  if (p.init.kind == Init::Kind::kNormal) {
    // Consecutive logical elements are drawn together; padding stays 0.
    const ShardView v = view_of(p, at);
    const int64_t cols = p.local_shape[-1], rows = n / cols;
    const int last = p.local_shape.rank - 1;
    const auto row = [&](int64_t r) {
      for (int64_t c = 0; c < cols;) {
        const BlockSlice b = block_slice(v, last, c);
        const int64_t begin = logical_offset(v, r * cols + c);
        const int64_t count = last == 0 ? std::min(b.count, p.full_shape[0] - b.at) : b.count;
        if (begin >= 0)
          philox_normals(key, static_cast<uint64_t>(begin), count, p.init.stddev, host.data() + r * cols + c);
        c += b.count;
      }
    };
    std::vector<std::thread> team;
    const int64_t per = (rows + threads - 1) / threads;
    for (int t = 1; t < threads; ++t)
      team.emplace_back([&, t] {
        for (int64_t r = per * t; r < std::min(rows, per * (t + 1)); ++r) row(r);
      });
    for (int64_t r = 0; r < std::min(rows, per); ++r) row(r);
    for (std::thread& t : team) t.join();
  }
  api.copy(into.data, host.data(), n * size_of(DType::kF32), stream);
  api.synchronize(stream);
}

}  // namespace gt
