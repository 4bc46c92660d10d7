// The CPU as a device: aligned host memory, synchronous copies, streams that own a thread pool.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/table.h"

namespace gt::cpu {
namespace {

std::atomic<bool> may_spin{true};  // for pools opened from now on; set once by the launcher

constexpr int64_t kHuge = 2 << 20;  // a huge page of x86-64

// "MemAvailable" and "MemTotal" of /proc/meminfo, in bytes.
void memory(int, int64_t* free_bytes, int64_t* total_bytes) {
  int64_t available = 0, total = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kib) == 1) available = kib * 1024;
    if (std::sscanf(line.c_str(), "MemTotal: %lld kB", &kib) == 1) total = kib * 1024;
  }
  if (total == 0) {  // no /proc
    const int64_t page = sysconf(_SC_PAGESIZE);
    available = sysconf(_SC_AVPHYS_PAGES) * page;
    total = sysconf(_SC_PHYS_PAGES) * page;
  }
  if (free_bytes != nullptr) *free_bytes = available;
  if (total_bytes != nullptr) *total_bytes = total;
}

void* alloc(int, int64_t bytes) {
  GT_CHECK(bytes >= 0, "requested ", bytes, " bytes");
  const int64_t align = bytes >= kHuge ? kHuge : kAlign, size = std::max(align_up(bytes, align), align);
  void* p = std::aligned_alloc(static_cast<size_t>(align), static_cast<size_t>(size));
  if (p == nullptr) {
    int64_t available = 0, total = 0;
    memory(0, &available, &total);
    fail(Exit::kUsage, "CPU memory: requested ", bytes, " bytes; ", available, " of ", total,
         " bytes are available. Use a smaller micro-batch, more ranks or a higher ZeRO stage");
  }
  if (bytes >= kHuge) (void)madvise(p, static_cast<size_t>(size), MADV_HUGEPAGE);  // hint: fewer page faults
  return p;
}

void release(int, void* p, int64_t) { std::free(p); }
void* alloc_host(int64_t bytes) { return alloc(0, bytes); }
void free_host(void* p, int64_t) { std::free(p); }

constexpr int64_t kCopyGrain = 1 << 18;  // minimum bytes per thread

void copy(void* dst, const void* src, int64_t bytes, Stream stream) {
  parallel_for(stream, bytes, kCopyGrain, [=](int64_t begin, int64_t end, int) {
    std::memmove(static_cast<std::byte*>(dst) + begin, static_cast<const std::byte*>(src) + begin,
                 static_cast<size_t>(end - begin));
  });
}

void zero(void* dst, int64_t bytes, Stream stream) {
  parallel_for(stream, bytes, kCopyGrain, [=](int64_t begin, int64_t end, int) {
    std::memset(static_cast<std::byte*>(dst) + begin, 0, static_cast<size_t>(end - begin));
  });
}

Stream open_stream(int index, int threads) {
  GT_CHECK(index == 0, "there is one CPU device, requested index ", index);
  return {{DeviceKind::kCpu, 0}, new CpuContext(threads > 0 ? threads : usable_cores(), may_spin)};
}
void close_stream(Stream s) { delete static_cast<CpuContext*>(s.native); }

// Calls are synchronous: events are empty.
void synchronize(Stream) {}
Event create_event(int) { return nullptr; }
void destroy_event(Event) {}
void record(Event, Stream) {}
void wait(Event, Stream) {}
void await(Event) {}
bool done(Event) { return true; }
int count() { return 1; }

std::string describe(int) {
  std::string model = "CPU";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  }
  const int cores = usable_cores();
  return cat(model, ", ", name_of(current_isa()), ", ", cores, cores == 1 ? " core" : " cores");
}

}  // namespace

const DeviceApi kDevice{.name = "cpu",
                        .alloc = alloc,
                        .free = release,
                        .alloc_host = alloc_host,
                        .free_host = free_host,
                        .copy = copy,
                        .zero = zero,
                        .open_stream = open_stream,
                        .close_stream = close_stream,
                        .synchronize = synchronize,
                        .create_event = create_event,
                        .destroy_event = destroy_event,
                        .record = record,
                        .wait = wait,
                        .await = await,
                        .done = done,
                        .count = count,
                        .describe = describe,
                        .memory = memory};

}  // namespace gt::cpu

namespace gt {
void set_cpu_may_spin(bool may) { cpu::may_spin = may; }
}  // namespace gt
