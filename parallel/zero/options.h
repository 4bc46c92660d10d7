// What a user chooses about ZeRO (Rajbhandari et al. 2020) and what follows from it. Values only.
#pragma once
#include <cstdint>

#include "kernels/core/tensor.h"

namespace gt {

// When the ranks of the data-parallel group add up their gradients: after every microbatch, so that whole gradients
// exist only while they are written and travel, or once a step, so that they exist all the time and travel once.
enum class GradReduce : uint8_t { kAuto, kEach, kEnd };

struct ZeroOptions {
  int stage = 1;                    // 0: nothing is shared out; 1: optimizer state; 2: gradients too; 3: parameters too
  int64_t bucket_bytes = 25 << 20;  // scopes are merged until a bucket holds this much gradient
  bool overlap = true;              // reduce while the backward goes on; off: wait for each reduction
  GradReduce grad_reduce = GradReduce::kAuto;  // stages 2 and 3; below, gradients stay whole and kEnd is all there is
  int prefetch = 1;                            // stage 3: scopes gathered ahead of the one in use
  int64_t persist_numel = 100000;              // stage 3: scopes of fewer elements on this rank stay whole
  // A parameter that no gradient was written for in a step has one of 0 there; else that is an error. Ranks of the
  // data-parallel group must agree about it where gradients are reduced after each microbatch.
  bool allow_unused = false;
  DType grad = DType::kF32;    // f32 or bf16: gradients as they are kept, and added up over the microbatches
  DType reduce = DType::kF32;  // f32 or half: what gradients become before data-parallel ranks add them up
  // Gradients are multiplied by this before data-parallel ranks add them up, and the sums divided by it: what half
  // types (`reduce`) can hold of a sum of many. Nothing to one rank.
  double scale_before = 1;
  bool masters = true;         // half values have f32 masters, which are what is trained
  bool gradients = true;       // false: values alone, for inference; no step, no ranges to update
};

// kEach or kEnd. kAuto: kEnd below stage 2; kEach at stage 3, without a pipeline, and when a step is one microbatch
// (then both send the same); else kEnd, which sends 2a instead of (m + 1)a elements. 0 microbatches: not known.
constexpr GradReduce grad_reduce_of(const ZeroOptions& o, int pp, int microbatches = 0) {
  if (o.stage < 2) return GradReduce::kEnd;
  if (o.grad_reduce != GradReduce::kAuto) return o.grad_reduce;
  return o.stage == 3 || pp == 1 || microbatches == 1 ? GradReduce::kEach : GradReduce::kEnd;
}

}  // namespace gt
