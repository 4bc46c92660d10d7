#include "kernels/cuda/emulation/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace gt::emulated {

double clock_us = 0;

namespace {

constexpr size_t kRange = size_t{1} << 34, kPage = 4096;  // addresses; pages come when they are touched

struct Memory {
  const bool guarded = std::getenv("GPTTRAIN_EMULATED_GUARD") != nullptr;
  std::byte* base = static_cast<std::byte*>(mmap(nullptr, kRange, guarded ? PROT_NONE : PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t used = 0;                 // bytes from the base that were ever given out
  std::map<size_t, size_t> taken;  // offset -> bytes, whole pages
  std::mutex mutex;
};

Memory& memory() {
  static Memory& m = *new Memory;  // streams may end after static objects
  return m;
}

}  // namespace

OnDevice::OnDevice() {
  Memory& m = memory();
  m.mutex.lock();
  if (m.guarded && m.used > 0) mprotect(m.base, m.used, PROT_READ | PROT_WRITE);
}

OnDevice::~OnDevice() {
  Memory& m = memory();
  if (m.guarded && m.used > 0) mprotect(m.base, m.used, PROT_NONE);
  m.mutex.unlock();
}

void* device_alloc(size_t bytes) {
  const size_t need = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  Memory& m = memory();
  size_t at = 0;
  {
    const std::lock_guard lock(m.mutex);
    for (const auto& [begin, size] : m.taken) {
      if (begin - at >= need) break;
      at = begin + size;
    }
    if (m.base == MAP_FAILED || at + need > kRange) return nullptr;
    m.taken[at] = need;
    m.used = std::max(m.used, at + need);
  }
  const OnDevice now;
  return std::memset(m.base + at, 0xFF, need);
}

void device_free(void* p) {
  if (p == nullptr) return;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.taken.erase(static_cast<size_t>(static_cast<std::byte*>(p) - m.base));
}

}  // namespace gt::emulated
