// Helpers for kernels over a segment table (kernels/core/segments.h): one block per tile or part of a tile.
#pragma once
#include "kernels/core/segments.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"

namespace gt::cuda {

constexpr int kPartsOfTile = 4;  // blocks per tile in update kernels: a shard of a few million elements fills a device
constexpr int64_t kPart = kSegmentTile / kPartsOfTile;

// Elements [begin, end) of a segment; empty past the segment's end.
struct PartOfSegment {
  int64_t begin, end;
  __device__ PartOfSegment(const Segment& s, int64_t block)
      : begin((block - int64_t{s.first_tile} * kPartsOfTile) * kPart), end(min(s.count, begin + kPart)) {}
};

// Marks a pointer loaded from a table as global memory, so that the compiler emits ld.global/st.global rather than
// generic accesses. Requires: not nullptr.
template <class T>
__device__ inline T* on_device(T* p) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// Returns whether all pointers are 16-byte aligned; nullptr counts as aligned.
template <class... T>
__device__ inline bool aligned16(const T*... p) {
  return ((reinterpret_cast<uintptr_t>(p) | ...) % 16) == 0;
}

// Calls f(master, value) with the table's types. 16-bit masters have no separate value.
template <class F>
void by_master(const SegmentTable& t, F&& f) {
  if (t.master == DType::kBF16) return f(__nv_bfloat16{}, float{});
  if (t.master == DType::kF16) return f(__half{}, float{});
  by_dtype("an optimizer", "value", t.value, [&](auto u) { f(float{}, u); });
}

// out[kSums * group + k] = sum, in order, over the group's counted segments of their per-tile partial sums (kSums per
// tile). One block per segment; the block of a group's first segment does the work.
template <int kSums>
__global__ void __launch_bounds__(256)
    sum_groups_kernel(const Segment* table, int segments, const double* partial, double* out) {
  __shared__ double shared[256 / 32];
  const int first = static_cast<int>(blockIdx.x), group = table[first].group;
  if (first > 0 && table[first - 1].group == group) return;
  double total[kSums] = {};
  for (int k = first; k < segments && table[k].group == group; ++k) {
    if (table[k].counted == 0) continue;
    const double* of = partial + int64_t{kSums} * table[k].first_tile;
    const int64_t tiles = (table[k].count + kSegmentTile - 1) / kSegmentTile;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      double s = 0;
#pragma unroll 4
      for (int64_t i = threadIdx.x; i < tiles; i += 256) s += of[kSums * i + j];
      total[j] += group_sum<256 / 32>(s, shared);
    }
  }
  if (threadIdx.x == 0)
    for (int j = 0; j < kSums; ++j) out[kSums * int64_t{group} + j] = total[j];
}

}  // namespace gt::cuda
