// Choices of a device that a user makes, by name.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/core/enum_names.h"

namespace gt {

// Instruction set of the CPU kernels, ascending: each level includes all before it. kAvx512: f, bw, dq, vl. kAmx:
// tiles, bf16.
enum class CpuIsa : uint8_t { kAuto, kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };
// Which of a library's algorithms for a GEMM (CUDA: cuBLASLt): its first heuristic, or the fastest of those timed.
enum class GemmTune : uint8_t { kHeuristic, kAuto };
// Attention implementation, where a backend has a library (CUDA: cuDNN) beside its own kernels. kAuto: the library
// where it supports the shape; kCudnn: only the library; kOwn: never.
enum class AttentionBy : uint8_t { kAuto, kCudnn, kOwn };
constexpr std::array<const char*, 6> names_of(CpuIsa) {
  return {"auto", "scalar", "avx2", "avx512", "avx512_bf16", "amx"};
}
constexpr std::array<const char*, 2> names_of(GemmTune) { return {"heuristic", "auto"}; }
constexpr std::array<const char*, 3> names_of(AttentionBy) { return {"auto", "cudnn", "own"}; }

}  // namespace gt
