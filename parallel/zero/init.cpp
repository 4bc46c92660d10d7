#include "parallel/zero/init.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "kernels/core/rng.h"

namespace gt {

void init_parameter(const Parameter& p, Tensor into, uint64_t key, int tp_rank, int tp_size, int threads,
                    const DeviceApi& api, Stream stream) {
  if (stream.device.kind == DeviceKind::kNull) return;
  const int64_t n = p.local_shape.numel();
  std::vector<float> host(static_cast<size_t>(n), p.init.kind == Init::Kind::kOne ? 1.f : 0.f);
  if (p.init.kind == Init::Kind::kNormal) {
    // Split along dim 0: rows are remapped, columns are complete (a vector is rows of one column). Split along dim 1:
    // every row has this rank's columns.
    const bool split = p.shard.kind == ShardSpec::Kind::kSplit;
    const int64_t rows = p.local_shape.rank > 1 ? p.local_shape[0] : n, cols = n / rows;
    const int64_t full_rows = p.pad_rows ? p.pad_rows : p.full_shape[0],
                  full_cols = p.full_shape.numel() / p.full_shape[0];
    const auto row = [&](int64_t r) {
      float* out = host.data() + r * cols;
      if (!split || p.shard.dim == 0) {
        const int64_t at = split ? logical_index(p.shard, full_rows, r, tp_rank, tp_size) : r;
        if (at < p.full_shape[0])
          philox_normals(key, static_cast<uint64_t>(at * full_cols), cols, p.init.stddev, out);  // padding stays 0
      } else {
        for (int64_t c = 0; c < cols;) {
          const BlockSlice b =
              block_slice(p.shard, full_cols, c, tp_rank, tp_size);  // consecutive columns of one block
          philox_normals(key, static_cast<uint64_t>(r * full_cols + b.at), b.count, p.init.stddev, out + c);
          c += b.count;
        }
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
