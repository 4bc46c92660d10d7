// ZeRO options (Rajbhandari et al. 2020) and the reduction mode derived from them. Plain values.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/core/tensor.h"

namespace gt {

// When gradients are reduced over the data-parallel group. kEach: after every microbatch; unsharded gradients exist
// only from their first write to the end of their reduction. kEnd: once a step; unsharded gradients stay allocated and
// are sent once.
enum class GradReduce : uint8_t { kAuto, kEach, kEnd };
constexpr std::array<const char*, 3> names_of(GradReduce) { return {"auto", "each", "end"}; }

// Section `zero` of a run's options, described in fields(), and the values that the run derives.
struct ZeroOptions {
  int stage = 1;
  int64_t bucket_bytes = 25 << 20;  // units are merged until a bucket holds this many bytes of gradients
  bool overlap = true;
  GradReduce grad_reduce = GradReduce::kAuto;  // stages 0 and 1 always use kEnd
  int prefetch = 1;
  int64_t persist_numel = 100000;  // of elements on this rank
  bool allow_unused = false;       // with kEach, data-parallel ranks must agree on which parameters have no gradient
  DType grad = DType::kF32;        // f32 or bf16: dtype in which gradients are stored and accumulated over microbatches
  DType reduce = DType::kF32;      // f32, bf16 or fp16: dtype of the data-parallel reduction
  // Gradients are multiplied by this before the data-parallel reduction and the sums divided by it. Keeps sums over
  // many ranks within the range of a 16-bit `reduce`: DeepSpeed's prescale and predivide. No effect on one rank.
  double scale_before = 1;
  bool one_microbatch = false;  // every step has one
  bool masters = true;          // 16-bit values have f32 master weights, which the optimizer updates
  bool gradients = true;        // false: inference; values alone, no step, no ranges to update
  template <class V>
  void fields(V& v) {
    v("stage", stage, "0..3", "ZeRO stage: 1 shards optimizer state, 2 also gradients, 3 also parameters");
    v("bucket_bytes", bucket_bytes, "1.. bytes", "size of a gradient reduction bucket");
    v("overlap", overlap, "", "reduce gradients during the backward pass");
    v("grad_reduce", grad_reduce, "",
      "stages 2 and 3: reduce gradients after each microbatch (less memory) or at the end of the step (less traffic); "
      "auto: end at stage 2 with a pipeline and several microbatches, else each");
    v("prefetch", prefetch, "0..64 units", "stage 3: FSDP units gathered ahead of the one in use");
    v("persist_numel", persist_numel, "0.. elements", "stage 3: FSDP units with fewer parameters are not sharded");
    v("allow_unused", allow_unused, "",
      "treat a missing gradient as 0; otherwise a parameter without a gradient ends the run");
  }
};

// Resolves kAuto. It is kEnd below stage 2; kEach at stage 3, without a pipeline, and with one microbatch a step, where
// both send the same volume. Otherwise it is kEnd, which sends 2a instead of (m + 1)a elements (a, m: README.md).
// microbatches = 0: unknown.
constexpr GradReduce grad_reduce_of(const ZeroOptions& o, int pp, int microbatches = 0) {
  if (o.stage < 2) return GradReduce::kEnd;
  if (o.grad_reduce != GradReduce::kAuto) return o.grad_reduce;
  return o.stage == 3 || pp == 1 || microbatches == 1 ? GradReduce::kEach : GradReduce::kEnd;
}

}  // namespace gt
