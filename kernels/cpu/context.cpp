#include "kernels/cpu/context.h"

#include <new>

#include "kernels/cpu/gemm_cache.h"

namespace gt::cpu {

constexpr std::align_val_t kScratchAlign{64};

Scratch::~Scratch() { ::operator delete(data_, kScratchAlign); }

std::byte* Scratch::get(int64_t bytes) {
  if (bytes <= bytes_) return data_;
  ::operator delete(std::exchange(data_, nullptr), kScratchAlign);
  bytes_ = 0;
  data_ = static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kScratchAlign));
  bytes_ = bytes;
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
  thread_local CpuContext own(1);  // scratch and packed weights of callers that have no stream: tests, tools
  return own;
}

}  // namespace gt::cpu
