// Race detector: reports two accesses to a byte of shared or device memory, at least one of them a write, that nothing
// orders. __syncthreads orders the threads of a block, __syncwarp those of a warp. Nothing orders the blocks of a
// launch. Streams and events order launches and copies (order.h). Only the executed schedule is checked: data-dependent
// addresses need suitable inputs. GPTTRAIN_EMULATED_RACES=all: continues after the first race and reports each pair of
// code locations once.
//
// The compiler inserts __tsan_readN and __tsan_writeN calls at every load and store of a kernel (-fsanitize=thread,
// without its runtime library); this file implements them.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/device_memory.h"
#include "tests/cuda/emulation/emulate.h"
#include "tests/cuda/emulation/order.h"
#include "tests/cuda/emulation/watch.h"

namespace gt::emulated {
namespace {

// Threads that have read since the last ordering point.
enum class Who : uint8_t { kThread, kWarp, kBlock, kBlocks };
enum class How : uint8_t { kPlain, kAtomic, kLibrary };

// One access to a byte; volatile counts as atomic. Epochs count block barriers and are never reset.
struct Access {
  uint32_t epoch = 0, warp_epoch = 0;
  When when = 0;             // 0: no access
  uint32_t code_offset = 0;  // code offset in this library; for How::kLibrary the offset of the function's name
  uint16_t thread = 0;
  Who who = Who::kThread;
  How how = How::kPlain;
};

struct Cell {
  Access write, read;
  When elsewhere = 0;  // a read by another stream, unordered with `read`
};

// One cell per 4-byte word, until a part of a word is accessed: then one per byte.
constexpr uintptr_t kPage = 4096, kWord = 4;
struct Page {
  std::vector<Cell> cells{kPage / kWord};
  uintptr_t granule = kWord;
  void split() {
    std::vector<Cell> bytes(kPage);
    for (uintptr_t i = 0; i < kPage; ++i) bytes[i] = cells[i / kWord];
    cells = std::move(bytes);
    granule = 1;
  }
};

struct Range {
  uintptr_t begin = 0, bytes = 0;
  bool holds(uintptr_t p) const { return p - begin < bytes; }
};

// State of the running kernel; one kernel at a time (OnDevice).
struct Running {
  Range stack, dynamic_shared;
  bool kernel = false;
  When when = 0;
  uint32_t epoch = 1, block_begin = 1;
  std::array<uint32_t, 32> warp_epoch{};
  uint16_t thread = 0;
};
Running running;

class Shadow {
 public:
  Page& page(uintptr_t number) {
    Recent& r = recent_[number % recent_.size()];
    if (r.page == nullptr || r.number != number) {
      auto& p = pages_[number];
      if (!p) p = std::make_unique<Page>();
      r = {number, p.get()};
    }
    return *r.page;
  }
  void erase(uintptr_t first, uintptr_t end) {
    recent_.fill({});
    for (uintptr_t n = first; n < end; ++n) pages_.erase(n);
  }

 private:
  struct Recent {
    uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Recent, 256> recent_{};
};
Shadow& shadow = *new Shadow;  // never destroyed: streams may outlive static objects

// Load address and data segment of this library; static shared memory lies in the data segment.
struct Module {
  uintptr_t base = 0;
  Range data;
  std::string file;
  Module() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          auto& m = *static_cast<Module*>(self);
          const auto here = reinterpret_cast<uintptr_t>(&running);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& p = info->dlpi_phdr[i];
            const Range r{info->dlpi_addr + p.p_vaddr, p.p_memsz};
            if (p.p_type != PT_LOAD || (p.p_flags & PF_W) == 0 || !r.holds(here)) continue;
            m.base = info->dlpi_addr;
            m.data = r;
            m.file = info->dlpi_name;
          }
          return 0;
        },
        this);
  }
  uint32_t offset(const void* p) const { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) - base); }
};
const Module& module = *new Module;

std::string source_line(const Access& a) {
  if (a.how == How::kLibrary) return reinterpret_cast<const char*>(module.base + a.code_offset);
  char line[512];
  // Address of the call instruction: just before the return address.
  std::snprintf(line, sizeof line, "addr2line -Cie '%s' 0x%x 2>/dev/null", module.file.c_str(), a.code_offset - 1);
  std::string out;
  if (FILE* p = popen(line, "r")) {
    while (std::fgets(line, sizeof line, p) != nullptr) {
      const char* folder = std::strstr(line, "kernels/cuda/");  // drop the path of the source tree
      const char* name = folder != nullptr ? folder : line;
      out += (out.empty() ? "" : ", in ") + std::string(name, std::strcspn(name, " \n"));
    }
    pclose(p);
  }
  char at[32];
  std::snprintf(at, sizeof at, "+0x%x", a.code_offset);
  return out.empty() ? at : out;
}

const char* name_of(How h, bool write) {
  if (h == How::kAtomic) return "an atomic operation";
  return write ? "a write" : "a read";
}

std::string describe_threads(const Access& old, const Access& now) {
  char text[160];
  if (old.when != now.when)
    std::snprintf(text, sizeof text, "work items %u of stream %u and %u of stream %u", number_of(old.when),
                  stream_of(old.when), number_of(now.when), stream_of(now.when));
  else if (old.epoch < running.block_begin || old.who == Who::kBlocks)
    std::snprintf(text, sizeof text, "two blocks of a launch, the second is %u,%u,%u", blockIdx.x, blockIdx.y,
                  blockIdx.z);
  else
    std::snprintf(text, sizeof text, "threads %u and %u of a block of %u", old.thread, now.thread,
                  blockDim.x * blockDim.y * blockDim.z);
  return text;
}

void report(const Access& old, bool old_writes, const Access& now, bool now_writes, uintptr_t at) {
  static std::mutex& mutex = *new std::mutex;
  static auto& offsets = *new std::set<std::pair<uint32_t, uint32_t>>;
  static auto& reported = *new std::set<std::pair<std::string, std::string>>;
  const std::lock_guard lock(mutex);
  if (!offsets.emplace(old.code_offset, now.code_offset).second) return;
  const std::string first = source_line(old), second = source_line(now);
  if (!reported.emplace(first, second).second) return;  // the same lines in another template instance
  std::fprintf(stderr, "emulated kernel: a race at %p: %s and then %s, %s\n  first:  %s\n  second: %s\n",
               reinterpret_cast<void*>(at), name_of(old.how, old_writes), name_of(now.how, now_writes),
               describe_threads(old, now).c_str(), first.c_str(), second.c_str());
  const char* setting = std::getenv("GPTTRAIN_EMULATED_RACES");
  if (setting == nullptr || std::strcmp(setting, "all") != 0) std::abort();
}

// Whether `old` happens before `now`; shared memory starts afresh with each block.
bool over(const Access& old, const Access& now, bool shared) {
  if (old.when == 0) return true;
  if (old.when != now.when) return shared || current_work_item().after(old.when);
  if (old.how == How::kLibrary) return true;
  if (old.epoch < running.block_begin) return shared;
  if (old.who == Who::kBlocks) return false;
  if (old.epoch < running.epoch) return true;
  if (old.who == Who::kThread && old.thread == now.thread) return true;
  return old.who <= Who::kWarp && old.thread / 32 == now.thread / 32 && old.warp_epoch < now.warp_epoch;
}

// Merges `now` into the recorded access of its kind: the newest represents all that it is ordered after.
void note(Access& kept, const Access& now, bool shared) {
  const Access old = std::exchange(kept, now);
  if (over(old, now, shared) || old.when != now.when) return;
  if (old.how != How::kAtomic) kept.how = old.how;
  if (old.who == Who::kBlocks || old.epoch < running.block_begin)
    kept.who = Who::kBlocks;
  else if (old.who <= Who::kWarp && old.thread / 32 == now.thread / 32)
    kept.who = Who::kWarp;
  else
    kept.who = Who::kBlock;
}

bool both_atomic(const Access& a, const Access& b) { return a.how == How::kAtomic && b.how == How::kAtomic; }

void reading(Cell& c, const Access& now, bool shared, uintptr_t at) {
  if (!both_atomic(c.write, now) && !over(c.write, now, shared)) report(c.write, true, now, false, at);
  if (!shared && c.read.when != 0 && c.read.when != now.when && !current_work_item().after(c.read.when))
    c.elsewhere = c.read.when;
  note(c.read, now, shared);
}

void writing(Cell& c, const Access& now, bool shared, uintptr_t at) {
  if (!both_atomic(c.write, now) && !over(c.write, now, shared)) report(c.write, true, now, true, at);
  if (!both_atomic(c.read, now) && !over(c.read, now, shared)) report(c.read, false, now, true, at);
  if (!shared && c.elsewhere != 0 && !current_work_item().after(c.elsewhere)) {
    Access other = c.read;
    other.when = c.elsewhere;
    report(other, false, now, true, at);
  }
  c.elsewhere = 0;
  note(c.write, now, shared);
}

enum class Touch { kRead, kWrite };

template <Touch T>
void touch(uintptr_t p, size_t bytes, const Access& now, bool shared) {
  for (uintptr_t at = p, end = p + bytes; at < end;) {
    Page& page = shadow.page(at / kPage);
    const uintptr_t stop = std::min(end, (at / kPage + 1) * kPage);
    if (page.granule == kWord && (at % kWord != 0 || stop % kWord != 0)) page.split();
    for (; at < stop; at += page.granule) {
      Cell& c = page.cells[at % kPage / page.granule];
      if constexpr (T == Touch::kRead)
        reading(c, now, shared, at);
      else
        writing(c, now, shared, at);
    }
  }
}

// A load or store of instrumented code. Host code is instrumented too: kernel threads are identified by their stack.
template <Touch T>
void accessed(const void* p, size_t bytes, const void* code_offset, How how = How::kPlain) {
  if (!running.kernel || !running.stack.holds(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)))) return;
  const auto at = reinterpret_cast<uintptr_t>(p);
  const bool shared = running.dynamic_shared.holds(at) || module.data.holds(at);
  if (running.stack.holds(at) || (!shared && !is_device_memory(p))) return;
  const Access now{running.epoch,
                   running.warp_epoch[running.thread / 32],
                   running.when,
                   module.offset(code_offset),
                   running.thread,
                   Who::kThread,
                   how};
  touch<T>(at, bytes, now, shared);
}

template <Touch T>
void by_library(const void* p, size_t bytes, const char* what) {
  if (p == nullptr || !is_device_memory(p)) return;
  const Access now{running.epoch, 0, current_work_item().when, module.offset(what), 0, Who::kThread, How::kLibrary};
  touch<T>(reinterpret_cast<uintptr_t>(p), bytes, now, false);
}

}  // namespace

namespace watch {

void reads(const void* p, size_t bytes, const char* what) { by_library<Touch::kRead>(p, bytes, what); }
void writes(const void* p, size_t bytes, const char* what) { by_library<Touch::kWrite>(p, bytes, what); }

void kernel_begins(const void* dynamic_shared, size_t bytes) {
  running.dynamic_shared = {reinterpret_cast<uintptr_t>(dynamic_shared), bytes};
  running.when = current_work_item().when;
  running.kernel = true;
}
void kernel_ends() { running.kernel = false; }
void block_begins() {
  running.block_begin = ++running.epoch;
  running.warp_epoch.fill(0);
}
void thread_runs(size_t index, const void* stack, size_t stack_bytes) {
  running.thread = static_cast<uint16_t>(index);
  running.stack = {reinterpret_cast<uintptr_t>(stack), stack_bytes};
}
void block_meets() { running.epoch += ignores("blocks") ? 0 : 1; }
void warp_meets(size_t warp) { running.warp_epoch[warp] += ignores("warps") ? 0 : 1; }

void atomic(const void* p, size_t bytes, const void* caller) {
  accessed<Touch::kWrite>(p, bytes, caller, How::kAtomic);
}
void copies(const void* to, const void* from, size_t bytes) {
  accessed<Touch::kRead>(from, bytes, __builtin_return_address(0));
  accessed<Touch::kWrite>(to, bytes, __builtin_return_address(0));
}

void fresh(const void* p, size_t bytes) {
  const OnDevice now;
  const auto at = reinterpret_cast<uintptr_t>(p);
  shadow.erase(at / kPage, (at + bytes + kPage - 1) / kPage);
}

}  // namespace watch
}  // namespace gt::emulated

extern "C" {

using gt::emulated::accessed;
using gt::emulated::How;
using gt::emulated::Touch;

#define GT_HOOKS(N)                                                                                                  \
  void __tsan_read##N(void* p) { accessed<Touch::kRead>(p, N, __builtin_return_address(0)); }                        \
  void __tsan_write##N(void* p) { accessed<Touch::kWrite>(p, N, __builtin_return_address(0)); }                      \
  void __tsan_unaligned_read##N(void* p) { accessed<Touch::kRead>(p, N, __builtin_return_address(0)); }              \
  void __tsan_unaligned_write##N(void* p) { accessed<Touch::kWrite>(p, N, __builtin_return_address(0)); }            \
  void __tsan_volatile_read##N(void* p) { accessed<Touch::kRead>(p, N, __builtin_return_address(0), How::kAtomic); } \
  void __tsan_volatile_write##N(void* p) { accessed<Touch::kWrite>(p, N, __builtin_return_address(0), How::kAtomic); }
GT_HOOKS(1)
GT_HOOKS(2)
GT_HOOKS(4)
GT_HOOKS(8)
GT_HOOKS(16)
#undef GT_HOOKS
void __tsan_read_range(void* p, size_t n) { accessed<Touch::kRead>(p, n, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { accessed<Touch::kWrite>(p, n, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

}  // extern "C"
