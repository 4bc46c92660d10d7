#include "parallel/zero/shard_copy.h"

#include <algorithm>
#include <vector>

#include "kernels/core/memory.h"

namespace gt {
namespace {

void fetch_codes(const Tensor& codes, float* out, const DeviceApi& api, Stream stream) {
  std::vector<int8_t> host(static_cast<size_t>(codes.numel()));
  api.copy(host.data(), codes.data, codes.bytes(), stream);
  api.synchronize(stream);
  std::copy(host.begin(), host.end(), out);
}

void store_codes(const Tensor& codes, const float* from, const DeviceApi& api, Stream stream) {
  std::vector<int8_t> host(static_cast<size_t>(codes.numel()));
  for (size_t k = 0; k < host.size(); ++k) host[k] = static_cast<int8_t>(from[k]);
  api.copy(codes.data, host.data(), codes.bytes(), stream);
  api.synchronize(stream);
}

}  // namespace

void fetch_view(const ShardView& v, float* out, const Backend& backend, Stream stream) {
  const DeviceApi& api = *backend.device;
  const int64_t bytes = v.data.numel() * size_of(DType::kF32);
  if (v.data.dtype == DType::kF32) {
    api.copy(out, v.data.data, bytes, stream);
    return api.synchronize(stream);
  }
  if (v.data.dtype == DType::kI8) return fetch_codes(v.data, out, api, stream);
  const Buffer scratch(bytes, v.data.device, api);
  backend.ops->cast({.src = v.data, .dst = scratch.tensor(v.data.shape, DType::kF32)}, stream);
  api.copy(out, scratch.data(), bytes, stream);
  api.synchronize(stream);
}

void store_view(const ShardView& v, const float* from, const Backend& backend, Stream stream) {
  const DeviceApi& api = *backend.device;
  const int64_t bytes = v.data.numel() * size_of(DType::kF32);
  if (v.data.dtype == DType::kF32) {
    api.copy(v.data.data, from, bytes, stream);
    return api.synchronize(stream);
  }
  if (v.data.dtype == DType::kI8) return store_codes(v.data, from, api, stream);
  const Buffer scratch(bytes, v.data.device, api);
  api.copy(scratch.data(), from, bytes, stream);
  backend.ops->cast({.src = scratch.tensor(v.data.shape, DType::kF32), .dst = v.data}, stream);
  api.synchronize(stream);
}

}  // namespace gt
