#include "tests/cuda/emulation/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "tests/cuda/emulation/emulate.h"
#include "tests/cuda/emulation/watch.h"

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

// Fills whole pages with NaN (all bits set). A large block maps a file of such bytes, whose pages are copied when they
// are written: most of a workspace never is.
void fill(std::byte* at, size_t bytes) {
  constexpr size_t kWindow = size_t{2} << 20, kLarge = 2 * kWindow;
  static const int file = [] {
    const int fd = memfd_create("ones", MFD_CLOEXEC);
    const std::vector<std::byte> ones(kWindow, std::byte{0xFF});
    return fd >= 0 && write(fd, ones.data(), kWindow) == static_cast<ssize_t>(kWindow) ? fd : -1;
  }();
  size_t done = 0;
  for (; file >= 0 && bytes >= kLarge && done < bytes; done += kWindow)
    if (mmap(at + done, std::min(kWindow, bytes - done), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
      break;
  if (done < bytes) std::memset(at + done, 0xFF, bytes - done);
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
  const size_t mapped = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const size_t need = mapped + (m.fenced ? kPage : 0);  // the page after it stays protected
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
  if (m.fenced && mprotect(m.base + at, mapped, PROT_READ | PROT_WRITE) != 0) return nullptr;
  watch::fresh(m.base + at, mapped);
  const OnDevice now;
  fill(m.base + at, mapped);
  return m.base + at + (m.fenced ? mapped - std::max<size_t>(16, (bytes + 15) / 16 * 16) : 0);
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
