#include "kernels/cuda/emulation/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/emulation/emulate.h"
#include "kernels/cuda/emulation/watch.h"

namespace gt::emulated {

double clock_us = 0;

namespace {

constexpr size_t kRange = size_t{1} << 34, kPage = 4096;  // address space; pages are committed on first touch

struct Memory {
  const bool guarded = std::getenv("GPTTRAIN_EMULATED_GUARD") != nullptr;
  const bool fenced = !guarded && std::getenv("GPTTRAIN_EMULATED_FENCE") != nullptr;
  std::byte* base =
      static_cast<std::byte*>(mmap(nullptr, kRange, guarded || fenced ? PROT_NONE : PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t used = 0;                 // high-water mark, bytes from the base
  std::map<size_t, size_t> taken;  // offset -> bytes, whole pages
  std::mutex mutex;
};

Memory& memory() {
  static Memory& m = *new Memory;  // never destroyed: streams may outlive static objects
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

bool is_device_memory(const void* p) {
  const auto* at = static_cast<const std::byte*>(p);
  return at >= memory().base && at <= memory().base + kRange;
}

void require_device_address(const void* p) {
  if (p != nullptr && !is_device_memory(p)) die("an address of the host is an argument");
}

void* device_alloc(size_t bytes) {
  Memory& m = memory();
  const size_t room = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const size_t need = room + (m.fenced ? kPage : 0);  // the page after it stays protected
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
  if (m.fenced && mprotect(m.base + at, room, PROT_READ | PROT_WRITE) != 0) return nullptr;
  watch::fresh(m.base + at, room);
  const OnDevice now;
  std::memset(m.base + at, 0xFF, room);
  return m.base + at + (m.fenced ? room - std::max<size_t>(16, (bytes + 15) / 16 * 16) : 0);
}

void device_free(void* p) {
  if (p == nullptr) return;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto it = std::prev(m.taken.upper_bound(static_cast<size_t>(static_cast<std::byte*>(p) - m.base)));
  if (m.fenced) mprotect(m.base + it->first, it->second, PROT_NONE);
  m.taken.erase(it);
}

}  // namespace gt::emulated
