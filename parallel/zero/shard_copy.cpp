#include "parallel/zero/shard_copy.h"

#include "kernels/core/memory.h"

namespace gt {

void fetch_view(const ShardView& v, float* out, const Backend& backend, Stream stream) {
  const DeviceApi& api = *backend.device;
  const int64_t bytes = v.data.numel() * size_of(DType::kF32);
  if (v.data.dtype == DType::kF32) {
    api.copy(out, v.data.data, bytes, stream);
    return api.synchronize(stream);
  }
  const Buffer room(bytes, v.data.device, api);
  backend.ops->cast({.src = v.data, .dst = room.tensor(v.data.shape, DType::kF32)}, stream);
  api.copy(out, room.data(), bytes, stream);
  api.synchronize(stream);
}

void store_view(const ShardView& v, const float* from, const Backend& backend, Stream stream) {
  const DeviceApi& api = *backend.device;
  const int64_t bytes = v.data.numel() * size_of(DType::kF32);
  if (v.data.dtype == DType::kF32) {
    api.copy(v.data.data, from, bytes, stream);
    return api.synchronize(stream);
  }
  const Buffer room(bytes, v.data.device, api);
  api.copy(room.data(), from, bytes, stream);
  backend.ops->cast({.src = room.tensor(v.data.shape, DType::kF32), .dst = v.data}, stream);
  api.synchronize(stream);
}

}  // namespace gt
