// What stands behind a CPU stream: the rank's thread pool, scratch memory that only grows, and the packed weights of
// GEMM. Stream::native of a CPU stream is a CpuContext*. It knows no op.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/cpu/pool.h"

namespace gt::cpu {

// A grow-only block of host memory, 64-byte aligned. Contents are undefined after every get().
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch();
  // The same block every time; a larger request than ever before replaces it. Allocates nothing otherwise.
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

  // Memory of one kernel call: `scratch` is shared by its threads and asked for before the split; `thread_scratch`
  // belongs to one thread and is asked for inside the body. Each is one block: asking again gives the same bytes. GEMM
  // uses neither, so a kernel may call it while it holds both.
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

// The stream's context; a stream without one (native == nullptr) gets the calling thread's own single-threaded context.
CpuContext& cpu_context(Stream stream);

// body(begin, end, thread) over [0, n), see ThreadPool::parallel_for. Choose a `grain` (indices) worth at least some
// 10 us of work: a loop of no more than one grain runs on the caller without waking anybody.
template <class Body>
void parallel_for(Stream stream, int64_t n, int64_t grain, Body&& body) {
  cpu_context(stream).pool.parallel_for(n, grain, RangeBody(body));
}

}  // namespace gt::cpu
