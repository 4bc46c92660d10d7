// Times work queued on a stream: warm-up runs, then timed runs with a cold L2 cache. Results go to memory of its own,
// so that an accumulating GEMM can run repeatedly. Synchronizes the device; only for first uses. A device fault while
// timing is fatal: the time of work that failed is meaningless.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/cuda/context.h"

namespace gt::cuda {

class GemmTimer {
 public:
  GemmTimer(const Context& c, int64_t out_bytes) : stream_(c.stream), cold_bytes_(2 * l2_bytes(c.index)) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    ready_ = cudaStreamIsCapturing(stream_, &capturing) == cudaSuccess && capturing == cudaStreamCaptureStatusNone &&
             cudaMalloc(&out_, static_cast<size_t>(out_bytes)) == cudaSuccess &&
             cudaMalloc(&cold_, cold_bytes_) == cudaSuccess && cudaEventCreate(&begin_) == cudaSuccess &&
             cudaEventCreate(&end_) == cudaSuccess;
    if (!ready_) cudaGetLastError();  // out of memory: keep the next launch from reporting it
  }
  GemmTimer(const GemmTimer&) = delete;
  GemmTimer& operator=(const GemmTimer&) = delete;
  ~GemmTimer() {
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    cudaFree(cold_);
    cudaFree(out_);
  }

  bool ready() const { return ready_; }  // false: out of memory, or the stream is being captured
  std::byte* out() const { return static_cast<std::byte*>(out_); }

  // Returns the median time of work() -> bool, in microseconds; nullopt when work() returns false (it cannot be
  // queued).
  template <class Work>
  std::optional<double> median_us(const Work& work) const {
    constexpr const char* kWhat = "timing a GEMM";
    for (int i = 0; i < kWarm; ++i)
      if (!work()) return {};
    std::array<double, kRuns> us{};
    for (double& t : us) {
      check(cudaMemsetAsync(cold_, 0, cold_bytes_, stream_), kWhat);
      check(cudaEventRecord(begin_, stream_), kWhat);
      if (!work()) return {};
      check(cudaEventRecord(end_, stream_), kWhat);
      check(cudaEventSynchronize(end_), kWhat);
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_), kWhat);
      t = 1e3 * static_cast<double>(ms);
    }
    std::nth_element(us.begin(), us.begin() + kRuns / 2, us.end());
    return us[kRuns / 2];
  }

 private:
  static size_t l2_bytes(int device) {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device), "reading the size of the L2 cache");
    return static_cast<size_t>(bytes);
  }

  static constexpr int kWarm = 3, kRuns = 10;
  cudaStream_t stream_;
  size_t cold_bytes_;  // written before each timed run: twice the L2 cache
  void *out_ = nullptr, *cold_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool ready_ = false;
};

}  // namespace gt::cuda
