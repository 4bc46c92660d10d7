// Reductions among ranks that share the GPU, in rank order and bitwise identical to the host's
// (kernels/core/combine.h). Each thread processes 16 bytes of every operand.
#include <utility>

#include "kernels/core/combine.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

struct CombineBuffers {  // all of one element type, a kernel template parameter
  const void* from[Combine::kMost];
  void* to[Combine::kMost];
  int parts, targets;
};

template <class T>
constexpr bool kIsFloat = std::is_same_v<T, float> || std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;

// f32 and 16-bit floats are reduced in f32, other types as they are.
template <ReduceOp kOp, int V, class T>
__device__ void combine_at(const CombineBuffers& p, int64_t i) {
  if constexpr (kIsFloat<T>) {
    float sum[V], x[V];
    load<V>(static_cast<const T*>(p.from[0]) + i, sum);
    for (int r = 1; r < p.parts; ++r) {
      load<V>(static_cast<const T*>(p.from[r]) + i, x);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] = combined<kOp>(sum[j], x[j]);
    }
    for (int k = 0; k < p.targets; ++k) store_at_once<V>(static_cast<T*>(p.to[k]) + i, sum);
  } else {
    static_assert(V == 1);
    T sum = static_cast<const T*>(p.from[0])[i];
    for (int r = 1; r < p.parts; ++r) sum = combined<kOp>(sum, static_cast<const T*>(p.from[r])[i]);
    for (int k = 0; k < p.targets; ++k) static_cast<T*>(p.to[k])[i] = sum;
  }
}

template <ReduceOp kOp, int V, class T>
__global__ void __launch_bounds__(kThreads) combine_ranks_kernel(const __grid_constant__ CombineBuffers p, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  const int64_t packs = n / V;
  for (int64_t i = first; i < packs; i += step) combine_at<kOp, V, T>(p, i * V);
  if (packs * V + first < n) combine_at<kOp, 1, T>(p, packs * V + first);
}

// Copies one source to all targets, bytewise.
template <class Word>
__global__ void __launch_bounds__(kThreads) broadcast_kernel(const __grid_constant__ CombineBuffers p, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  const auto* from = static_cast<const std::byte*>(p.from[0]);
  const int64_t words = n / static_cast<int64_t>(sizeof(Word)), rest = words * static_cast<int64_t>(sizeof(Word));
  for (int64_t i = first; i < words; i += step) {
    const Word word = reinterpret_cast<const Word*>(from)[i];
    for (int k = 0; k < p.targets; ++k) static_cast<Word*>(p.to[k])[i] = word;
  }
  if (rest + first < n)
    for (int k = 0; k < p.targets; ++k) static_cast<std::byte*>(p.to[k])[rest + first] = from[rest + first];
}

template <int V, class T>
void combine_by_op(const Context& c, const CombineBuffers& p, int64_t n, ReduceOp op) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(ceil_div(n, V), kThreads), 1 << 20));
  switch (op) {
    case ReduceOp::kSum: combine_ranks_kernel<ReduceOp::kSum, V, T><<<blocks, kThreads, 0, c.stream>>>(p, n); break;
    case ReduceOp::kMax: combine_ranks_kernel<ReduceOp::kMax, V, T><<<blocks, kThreads, 0, c.stream>>>(p, n); break;
    case ReduceOp::kMin: combine_ranks_kernel<ReduceOp::kMin, V, T><<<blocks, kThreads, 0, c.stream>>>(p, n); break;
  }
}

void combine_by_type(const Context& c, const CombineBuffers& p, const Combine& a, bool aligned) {
  switch (a.dtype) {
    case DType::kF64: return combine_by_op<1, double>(c, p, a.count, a.op);
    case DType::kI32: return combine_by_op<1, int32_t>(c, p, a.count, a.op);
    case DType::kI64: return combine_by_op<1, int64_t>(c, p, a.count, a.op);
    case DType::kByte: return combine_by_op<1, uint8_t>(c, p, a.count, a.op);
    default: break;
  }
  by_dtype("combine", "a part", a.dtype, [&](auto t) {
    using T = decltype(t);
    aligned ? combine_by_op<kPack<T>, T>(c, p, a.count, a.op) : combine_by_op<1, T>(c, p, a.count, a.op);
  });
}

void spread(const Context& c, const CombineBuffers& p, int64_t bytes, bool aligned) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(ceil_div(aligned ? ceil_div(bytes, 16) : bytes, kThreads), 1 << 20));
  if (aligned)
    broadcast_kernel<uint4><<<blocks, kThreads, 0, c.stream>>>(p, bytes);
  else
    broadcast_kernel<uint8_t><<<blocks, kThreads, 0, c.stream>>>(p, bytes);
}

}  // namespace

void combine(const Combine& a, Stream s) {
  GT_CHECK(a.parts >= 1 && a.parts <= Combine::kMost && a.targets >= 0 && a.targets <= Combine::kMost, a.parts,
           " parts to ", a.targets, " targets; at most ", Combine::kMost);
  if (a.count == 0 || a.targets == 0) return;
  Context& c = enter(s, "combine");
  CombineBuffers p{};
  p.parts = a.parts, p.targets = a.targets;
  bool aligned = true;
  for (int r = 0; r < a.parts; ++r) p.from[r] = a.from[r], aligned = aligned && aligned16({a.from[r]});
  for (int k = 0; k < a.targets; ++k) p.to[k] = a.to[k], aligned = aligned && aligned16({a.to[k]});
  if (a.parts == 1)
    spread(c, p, a.count * size_of(a.dtype), aligned);
  else
    combine_by_type(c, p, a, aligned);
  leave(c, "combine");
}

}  // namespace gt::cuda
