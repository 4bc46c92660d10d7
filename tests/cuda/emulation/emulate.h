// Runs the kernels of this folder on the CPU: blocks one after the other, one fiber per thread, switched at barriers.
// Only barriers order threads, and asynchronous copies complete when their thread waits for them. So indexing,
// reductions, missing waits, missing and divergent barriers are tested without a device. Not modelled: speed,
// occupancy, real cuBLASLt, memory spaces. Races are detected only in build/cpu/races (races.cpp).
// Force-included before every source.
// CMakeLists.txt rewrites `kernel<<<a>>>(b)` to `kernel % gt::emulated::Launch(a)(b)`.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "tests/cuda/emulation/watch.h"

#define GT_EMULATED 1
#undef __shared__
#define __shared__ static  // blocks run one at a time
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace gt::emulated {

extern std::byte* dynamic_shared;  // of the running block; filled with NaN when the block starts

// Runs `thread` for every thread of the grid. Aborts when threads wait at different barriers (deadlock).
void run(dim3 grid, dim3 block, size_t shared, const std::function<void()>& thread);
[[noreturn]] void die(const char* what);
// Dynamic shared memory limit of a kernel, bytes. Unless cudaFuncSetAttribute raised it: 48 KB less 1 KB for static
// shared memory, which counts too and is unknown here.
size_t shared_memory_limit(const void* kernel);
void wait_block();
void wait_warp();   // the warp's earlier writes are visible after it
void wait_lanes();  // exchanges values only: does not order memory
// Asynchronous 16-byte copies of the running thread. The destination is NaN until the thread waits for all but the
// newest commits.
void copy_later(void* to, const void* from);
void commit_copies();
void wait_copies(int newest);
// Whether a stream is being captured; records work for the graph.
bool capturing(cudaStream_t);
void keep(cudaStream_t, std::function<void()> work);
void count_single();
// Exchanges a value among the lanes of a warp; the result is valid until the next exchange.
const uint64_t* exchange(uint64_t mine);

// Aborts when a pointer argument of a kernel is a host address. Pointers inside structs are not checked.
void require_device_address(const void*);
template <class T>
void require_device_memory(const T& argument) {
  if constexpr (std::is_pointer_v<T>) require_device_address(argument);
}

template <class... A>
struct Bound {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  std::tuple<A...> args;
};

struct Launch {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  Launch(dim3 g, dim3 b, size_t s, cudaStream_t q) : grid(g), block(b), shared(s), stream(q) {}
  template <class... A>
  Bound<A...> operator()(A... a) const {
    return {grid, block, shared, stream, {a...}};
  }
};

template <class... P, class... A>
void operator%(void (*kernel)(P...), const Bound<A...>& b) {
  const std::tuple<P...> args = b.args;
  std::apply([](const auto&... a) { (require_device_memory(a), ...); }, args);
  if (b.shared > shared_memory_limit(reinterpret_cast<const void*>(kernel)))
    die("more shared memory than it was allowed");
  const auto launch = [kernel, args, grid = b.grid, block = b.block, shared = b.shared] {
    run(grid, block, shared, [&] { std::apply(kernel, args); });
  };
  if (capturing(b.stream)) return keep(b.stream, launch);
  count_single();
  watch::begin_work(b.stream);
  launch();
}

}  // namespace gt::emulated

inline void __syncthreads() { gt::emulated::wait_block(); }
inline void __syncwarp() { gt::emulated::wait_warp(); }

template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  const uint64_t* all = gt::emulated::exchange(bits);
  const int lane = static_cast<int>((threadIdx.x + threadIdx.y * blockDim.x) % 32);
  T out;
  std::memcpy(&out, &all[lane ^ mask], sizeof out);
  return out;
}

template <class T>
unsigned __match_any_sync(unsigned, T x) {
  const auto mine = static_cast<uint64_t>(x);
  const uint64_t* all = gt::emulated::exchange(mine);
  unsigned mask = 0;
  for (int i = 0; i < 32; ++i) mask |= (all[i] == mine ? 1u : 0u) << i;
  return mask;
}

template <class T>
T __ldg(const T* p) {
  return *p;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
#define GT_ATOMIC __attribute__((noinline, no_sanitize("thread"))) inline  // reported as one access of their caller
GT_ATOMIC int atomicAdd(int* p, int v) {
  gt::emulated::watch::atomic(p, sizeof *p, __builtin_return_address(0));
  const int old = *p;
  *p += v;
  return old;
}
GT_ATOMIC int atomicMax(int* p, int v) {
  gt::emulated::watch::atomic(p, sizeof *p, __builtin_return_address(0));
  const int old = *p;
  *p = v > old ? v : old;
  return old;
}
#undef GT_ATOMIC
inline int __float_as_int(float x) {
  int bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
using std::isfinite;

#include "tests/cuda/emulation/tensor_cores.h"
