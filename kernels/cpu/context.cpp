#include "kernels/cpu/context.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "kernels/cpu/gemm/gemm_cache.h"

namespace gt::cpu {

constexpr std::align_val_t kScratchAlign{64};
constexpr int64_t kHuge = 4 << 20, kPage = 4096;

Scratch::~Scratch() { ::operator delete(data_, kScratchAlign); }

std::byte* Scratch::get(int64_t bytes) {
  if (bytes <= bytes_) return data_;
  ::operator delete(std::exchange(data_, nullptr), kScratchAlign);
  bytes_ = 0;
  data_ = static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kScratchAlign));
  bytes_ = bytes;
  if (bytes >= kHuge) {  // mostly packed weights; a hint, so failure is ignored
    const auto skip = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(data_) % kPage);
    (void)madvise(data_ + skip, static_cast<size_t>((bytes - skip) / kPage * kPage), MADV_HUGEPAGE);
  }
  return data_;
}

CpuContext::CpuContext(int threads, bool may_spin)
    : pool(threads, may_spin),
      per_thread_(static_cast<size_t>(pool.threads())),
      gemm_(std::make_unique<GemmCache>(pool.threads())) {}

CpuContext::~CpuContext() = default;

CpuContext& cpu_context(Stream stream) {
  GT_DCHECK(stream.device.kind == DeviceKind::kCpu);
  if (stream.native != nullptr) return *static_cast<CpuContext*>(stream.native);
  thread_local CpuContext own(1);  // for callers without a stream: tests, tools
  return own;
}

}  // namespace gt::cpu
