// Common base of op measurements: a device and its stream, tensors of normally distributed values (constant ones let a
// GPU clock higher), medians of timed runs.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"

namespace gt {

class DeviceBench {
 public:
  DeviceBench(const Backend& backend, int index, int threads)
      : backend_(backend), stream_(*backend.device, index, threads), small_(backend.kind == DeviceKind::kCpu) {}

  bool small() const { return small_; }  // CPU: use sizes that take seconds there
  const OpTable& ops() const { return *backend_.ops; }
  const Backend& backend() const { return backend_; }
  Stream stream() const { return stream_; }

  // Allocates tensors whose memory is appended to `held`. normal(): f32, bf16, f16, or FP8, quantized from normal
  // values.
  Tensor normal(Shape, DType, std::vector<Buffer>& held) const;
  Tensor empty(Shape, DType, std::vector<Buffer>& held) const;
  Tensor constant(float, Shape, std::vector<Buffer>& held) const;  // f32
  void fill_normal(const Tensor&) const;                           // f32, bf16, f16

  // Returns the median seconds of a call over `runs` runs after three warm-up calls, with the device otherwise idle. A
  // run is one call, or as many back-to-back calls as fill kRunSeconds, so that launch and synchronization overhead
  // (tens of microseconds) is negligible.
  template <class Work>
  double median(Work work, int runs = 30) const {
    timed(work);
    timed(work);
    const int calls = static_cast<int>(std::clamp(std::ceil(kRunSeconds / std::max(timed(work), 1e-7)), 1., 200.));
    std::vector<double> seconds;
    for (int k = 0; k < runs; ++k)
      seconds.push_back(timed([&] {
                          for (int call = 0; call < calls; ++call) work();
                        }) /
                        calls);
    std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
    return seconds[static_cast<size_t>(runs) / 2];
  }
  // Seconds from the call of `work` to the completion of what it enqueued.
  template <class Work>
  double timed(Work work) const {
    const double begin = seconds_now();
    work();
    backend_.device->synchronize(stream_);
    return seconds_now() - begin;
  }

 private:
  static constexpr double kRunSeconds = 5e-3;
  void fill_codes(const Tensor&) const;
  static double seconds_now();
  const Backend& backend_;
  OpenStream stream_;
  bool small_;
  mutable std::vector<float> numbers_;  // cache of normal values
};

}  // namespace gt
