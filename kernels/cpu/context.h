// State behind a CPU stream: the rank's thread pool, grow-only scratch memory, and packed GEMM weights. Stream::native
// of a CPU stream is a CpuContext*. Independent of ops.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/cpu/pool.h"

namespace gt::cpu {

// Grow-only block of host memory, 64-byte aligned. Contents are undefined after every get().
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch();
  // Returns the same block every time; reallocates only for a request larger than any before.
  std::byte* get(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class GemmCache;  // oneDNN primitives and packed weights, defined in gemm_cache.h

class CpuContext {
 public:
  explicit CpuContext(int threads, bool may_spin = true);
  ~CpuContext();
  CpuContext(const CpuContext&) = delete;
  CpuContext& operator=(const CpuContext&) = delete;

  ThreadPool pool;

  // Memory of one kernel call. `scratch` is shared by its threads and requested before the parallel region;
  // `thread_scratch` belongs to one thread and is requested inside it. Each is a single block: repeated requests return
  // the same bytes. GEMM uses neither, so a kernel may call it while holding both.
  template <class T = std::byte>
  T* scratch(int64_t count) {
    return reinterpret_cast<T*>(shared_.get(count * static_cast<int64_t>(sizeof(T))));
  }
  template <class T = std::byte>
  T* thread_scratch(int thread, int64_t count) {
    return reinterpret_cast<T*>(per_thread_[static_cast<size_t>(thread)].get(count * static_cast<int64_t>(sizeof(T))));
  }

  GemmCache& gemm() { return *gemm_; }

 private:
  Scratch shared_;
  std::vector<Scratch> per_thread_;
  std::unique_ptr<GemmCache> gemm_;
};

// Returns the stream's context; with native == nullptr, a single-threaded context of the calling thread.
CpuContext& cpu_context(Stream stream);

// Calls body(begin, end, thread) over [0, n); see ThreadPool::parallel_for. Choose a `grain` (indices) worth at least
// 10 us: a loop of at most one grain runs on the caller without waking workers.
template <class Body>
void parallel_for(Stream stream, int64_t n, int64_t grain, Body&& body) {
  cpu_context(stream).pool.parallel_for(n, grain, RangeBody(body));
}

}  // namespace gt::cpu
