// Dispatch from run-time dtypes to C++ types and from alignment to vector width, with errors for unsupported dtypes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/context.h"

namespace gt::cuda {

// Calls f(T{}) with T = float, __nv_bfloat16 or __half. Throws for any other dtype, naming op, tensor and dtype.
template <class F>
void by_dtype(const char* op, const char* tensor, DType t, F&& f) {
  switch (t) {
    case DType::kF32: return f(float{});
    case DType::kBF16: return f(__nv_bfloat16{});
    case DType::kF16: return f(__half{});
    default: fail(Exit::kUsage, "cuda ", op, ": ", tensor, " is ", name_of(t), "; f32, bf16 and f16 are supported");
  }
}

// The same for a tensor that is f32 or has the storage type T of its op's main input.
template <class T, class F>
void by_f32_or(const char* op, const char* tensor, DType t, DType main, F&& f) {
  if (t == DType::kF32) return f(float{});
  if (t == main) return f(T{});
  fail(Exit::kUsage, "cuda ", op, ": ", tensor, " is ", name_of(t), " beside ", name_of(main),
       "; f32 or the same is supported");
}

// The same for a parameter gradient: f32 or bf16, independent of the op's other tensors.
template <class F>
void by_gradient(const char* op, const char* tensor, DType t, F&& f) {
  if (t == DType::kF32) return f(float{});
  if (t == DType::kBF16) return f(__nv_bfloat16{});
  fail(Exit::kUsage, "cuda ", op, ": ", tensor, " is ", name_of(t), "; gradients of parameters are f32 or bf16");
}

// Throws unless tensor t has this dtype.
inline void require_dtype(const char* op, const char* tensor, const Tensor& t, DType dtype) {
  GT_REQUIRE(t.dtype == dtype, Exit::kUsage, "cuda ", op, ": ", tensor, " is ", name_of(t.dtype), "; ", name_of(dtype),
             " is supported");
}

// Returns whether all pointers are 16-byte aligned (nullptr counts as aligned).
inline bool aligned16(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return bits % 16 == 0;
}

// Elements per 16 bytes.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace gt::cuda
