// Scheduler of emulated blocks. GPTTRAIN_EMULATED_ORDER: 0 threads in order (default), 1 in reverse, 2 reshuffled at
// every barrier. Results must not depend on it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "tests/cuda/emulation/device_memory.h"
#include "tests/cuda/emulation/emulate.h"
#include "tests/cuda/emulation/health.h"
#include "tests/cuda/emulation/watch.h"

#ifndef __x86_64__
#error "the emulation switches fibers in x86-64 assembly"
#endif

// void gt_emulated_switch(void** save_stack, void* load_stack): switches stacks, saving callee-saved registers (System
// V ABI).
asm(R"(
.text
.globl gt_emulated_switch
.hidden gt_emulated_switch
gt_emulated_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
extern "C" void gt_emulated_switch(void** save_stack, void* load_stack);

namespace gt::emulated {

std::byte* dynamic_shared = nullptr;

namespace {

constexpr size_t kStack = 128 * 1024;
// Stacks begin at different offsets in their pages; otherwise the frames of all fibers would compete for the same few
// sets of the L1 cache.
constexpr size_t kColors = 61, kColorBytes = 320;
enum class State { kReady, kAtBlock, kAtWarp, kAtLanes, kDone };

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Fiber {
  void* stack_pointer = nullptr;
  State state = State::kDone;
  std::unique_ptr<char[]> stack;  // not initialized: few of its pages are ever touched
  uint3 index{};
  std::vector<Copy> copies;  // issued, not yet performed
  int commits = 0;
  unsigned exchanges = 0;
};

// Values that the lanes of a warp exchange, in two buffers: no lane can be two exchanges ahead of another.
struct Lanes {
  std::array<uint64_t, 32> values[2];
};

std::vector<Fiber> fibers;
std::vector<Lanes> lanes;
size_t current = 0;
void* scheduler = nullptr;
const std::function<void()>* body = nullptr;

void leave(State s) {
  fibers[current].state = s;
  gt_emulated_switch(&fibers[current].stack_pointer, scheduler);
}

void entry() {
  (*body)();
  leave(State::kDone);
  std::abort();
}

void start(Fiber& f, size_t i, dim3 block) {
  if (!f.stack) f.stack = std::make_unique_for_overwrite<char[]>(kStack);
  f.state = State::kReady;
  f.copies.clear();
  f.commits = 0;
  f.exchanges = 0;
  f.index = {static_cast<unsigned>(i % block.x), static_cast<unsigned>(i / block.x % block.y),
             static_cast<unsigned>(i / block.x / block.y)};
  const uintptr_t end = reinterpret_cast<uintptr_t>(f.stack.get()) + kStack - i % kColors * kColorBytes;
  auto** top = reinterpret_cast<void**>(end & ~uintptr_t{15});
  *--top = nullptr;  // return address of entry: never used, keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(&entry);
  for (int r = 0; r < 6; ++r) *--top = nullptr;
  f.stack_pointer = top;
}

// Releases threads begin..end-1 when all that have not exited wait at `at`.
bool open_barrier(size_t begin, size_t end, State at) {
  const auto waits = [&](const Fiber& f) { return f.state == at; };
  const auto first = fibers.begin() + static_cast<ptrdiff_t>(begin),
             last = fibers.begin() + static_cast<ptrdiff_t>(end);
  if (!std::all_of(first, last, [&](const Fiber& f) { return waits(f) || f.state == State::kDone; })) return false;
  if (std::none_of(first, last, waits)) return false;
  for (auto f = first; f != last; ++f)
    if (waits(*f)) f->state = State::kReady;
  return true;
}

// Runs the ready threads of `order`; returns the number of those that ended, -1 if none was ready.
int run_ready(std::span<const size_t> order) {
  int ended = -1;
  for (const size_t i : order) {
    Fiber& f = fibers[i];
    if (f.state != State::kReady) continue;
    current = i;
    threadIdx = f.index;
    watch::thread_runs(i, f.stack.get(), kStack);
    gt_emulated_switch(&scheduler, f.stack_pointer);
    ended = std::max(ended, 0) + (f.state == State::kDone);
  }
  return ended;
}

bool open_warp(size_t w, size_t n) {
  const size_t begin = 32 * w, end = std::min(n, begin + 32);
  const bool exchanged = open_barrier(begin, end, State::kAtLanes), met = open_barrier(begin, end, State::kAtWarp);
  if (met) watch::warp_meets(w);
  return exchanged || met;
}

// In order, a warp runs until its threads wait for the block: the stacks of 32 fibers stay in the cache.
void run_block(size_t n, std::vector<size_t>& order, int mode, std::mt19937& random) {
  const size_t warps = (n + 31) / 32;
  for (int done = 0; done < static_cast<int>(n);) {
    bool moved = false;
    const auto run_part = [&](std::span<const size_t> part) {
      const int ended = run_ready(part);
      moved |= ended >= 0;
      done += std::max(ended, 0);
    };
    if (mode == 2) {
      std::shuffle(order.begin(), order.end(), random);
      run_part(order);
      for (size_t w = 0; w < warps; ++w) moved |= open_warp(w, n);
    } else {
      for (size_t k = 0; k < warps; ++k) {
        const size_t w = mode == 1 ? warps - 1 - k : k, at = mode == 1 ? n - std::min(n, 32 * w + 32) : 32 * w;
        const auto part = std::span<const size_t>(order).subspan(at, std::min<size_t>(32, n - 32 * w));
        do run_part(part);
        while (open_warp(w, n));
      }
    }
    if (open_barrier(0, n, State::kAtBlock)) {
      watch::block_meets();
      moved = true;
    }
    if (!moved && done < static_cast<int>(n)) die("deadlock: threads of a block wait at different barriers");
  }
}

}  // namespace

void die(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s\n", what);
  std::abort();
}

void wait_block() { leave(State::kAtBlock); }
void wait_warp() { leave(State::kAtWarp); }
void wait_lanes() { leave(State::kAtLanes); }

void copy_later(void* to, const void* from) {
  watch::copies(to, from, 16);
  std::memset(to, 0xFF, 16);
  fibers[current].copies.push_back({to, from, fibers[current].commits});
}

void commit_copies() { ++fibers[current].commits; }

void wait_copies(int newest) {
  Fiber& f = fibers[current];
  std::erase_if(f.copies, [&](const Copy& c) {
    const bool over = c.group < f.commits - newest;
    if (!over) return false;
    watch::copies(c.to, c.from, 16);
    std::memcpy(c.to, c.from, 16);
    return true;
  });
}

const uint64_t* exchange(uint64_t mine) {
  const size_t i = current;
  auto& values = lanes[i / 32].values[fibers[i].exchanges++ % 2];
  values[i % 32] = mine;
  wait_lanes();
  return values.data();
}

void run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& thread) {
  const OnDevice now;  // ranks running as threads launch one at a time: the state above belongs to one kernel
  if (!kernel_runs()) return;
  const size_t n = size_t{block.x} * block.y * block.z, blocks = size_t{grid.x} * grid.y * grid.z;
  if (n == 0 || n > 1024 || blocks == 0 || grid.y > 65535 || grid.z > 65535 || shared > 232448) die("invalid launch");
  const char* setting = std::getenv("GPTTRAIN_EMULATED_ORDER");
  const int mode = setting != nullptr ? std::atoi(setting) : 0;
  std::mt19937 random(7);
  if (fibers.size() < n) fibers.resize(n);
  lanes.assign((n + 31) / 32, {});
  body = &thread;
  blockDim = block, gridDim = grid;
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  if (mode == 1) std::reverse(order.begin(), order.end());
  static std::vector<float4>& memory = *new std::vector<float4>;
  memory.resize(std::max(memory.size(), shared / 16 + 1));
  dynamic_shared = reinterpret_cast<std::byte*>(memory.data());
  watch::kernel_begins(dynamic_shared, shared);
  for (size_t k = 0; k < blocks; ++k) {
    const size_t b = mode == 1 ? blocks - 1 - k : k;
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    std::memset(static_cast<void*>(memory.data()), 0xFF, shared + 16);
    watch::block_begins();
    for (size_t i = 0; i < n; ++i) start(fibers[i], i, block);
    run_block(n, order, mode, random);
  }
  watch::kernel_ends();
}

}  // namespace gt::emulated
