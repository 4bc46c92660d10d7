#include "launch/tools/bench/device_bench.h"

#include <chrono>

#include "kernels/core/rng.h"

namespace gt {

Tensor DeviceBench::normal(Shape shape, DType t, std::vector<Buffer>& held) const {
  const Tensor out = empty(shape, t, held);
  fill_normal(out);
  return out;
}

void DeviceBench::fill_normal(const Tensor& out) const {
  if (size_of(out.dtype) == 1) return fill_codes(out);
  constexpr int64_t kChunk = 1 << 20;  // elements generated, then repeated
  const int64_t n = out.numel(), chunk = std::min(n, kChunk);
  if (static_cast<int64_t>(numbers_.size()) < chunk) {
    numbers_.resize(static_cast<size_t>(chunk));
    philox_normals(stream_key(1, "bench/ceilings"), 0, chunk, 1, numbers_.data());
  }
  std::vector<Buffer> local;
  const Tensor values = empty({chunk}, DType::kF32, local);
  const DeviceApi& api = *backend_.device;
  api.copy(values.data, numbers_.data(), values.bytes(), stream_);
  for (int64_t at = 0; at < n; at += chunk) {
    const int64_t now = std::min(chunk, n - at);
    const Tensor to{out.data + at * size_of(out.dtype), {now}, out.dtype, out.device};
    if (out.dtype == DType::kF32)
      api.copy(to.data, values.data, to.bytes(), stream_);
    else
      ops().cast({.src = values.slice(0, now), .dst = to}, stream_);
  }
  api.synchronize(stream_);
}

void DeviceBench::fill_codes(const Tensor& out) const {
  std::vector<Buffer> local;
  ops().quantize_fp8(
      {.x = normal(out.shape, DType::kBF16, local),
       .fp8 = {.amax = constant(5, {1}, local), .rowwise = out, .scale_inv = empty({1}, DType::kF32, local)}},
      stream_);
  backend_.device->synchronize(stream_);
}

Tensor DeviceBench::empty(Shape shape, DType t, std::vector<Buffer>& held) const {
  Tensor out{nullptr, shape, t, stream_.device()};
  held.emplace_back(out.bytes(), stream_.device(), *backend_.device);
  out.data = held.back().data();
  return out;
}

Tensor DeviceBench::constant(float value, Shape shape, std::vector<Buffer>& held) const {
  const Tensor out = empty(shape, DType::kF32, held);
  const std::vector<float> host(static_cast<size_t>(out.numel()), value);
  backend_.device->copy(out.data, host.data(), out.bytes(), stream_);
  backend_.device->synchronize(stream_);
  return out;
}

double DeviceBench::seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gt
