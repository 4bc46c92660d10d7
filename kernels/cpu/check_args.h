// Argument checks of CPU kernels; errors name op, tensor and what was found. Shape mismatches are internal (kInternal);
// dtype mixes that no mixed-precision level produces are user errors (kUsage).
#pragma once
#include <initializer_list>

#include "kernels/core/tensor.h"

namespace gt::cpu {

struct Named {
  const char* name;
  const Tensor& tensor;
};

// Requires exactly this dtype. Here and below, absent tensors pass.
inline void require_dtype(const char* op, DType expected, std::initializer_list<Named> tensors) {
  for (const Named& n : tensors) {
    GT_REQUIRE(!n.tensor || n.tensor.dtype == expected, Exit::kUsage, op, " on the CPU: ", n.name, ' ',
               to_string(n.tensor.shape), " has to be ", name_of(expected), ", found ", name_of(n.tensor.dtype));
  }
}
inline void require_f32(const char* op, std::initializer_list<Named> tensors) {
  require_dtype(op, DType::kF32, tensors);
}

// Requires f32, bf16 or f16.
inline void require_float(const char* op, const Named& n) {
  const DType t = n.tensor.dtype;
  GT_REQUIRE(!n.tensor || t == DType::kF32 || t == DType::kBF16 || t == DType::kF16, Exit::kUsage, op,
             " on the CPU: ", n.name, ' ', to_string(n.tensor.shape), " is ", name_of(t),
             "; f32, bf16 or f16 is supported");
}

// Requires a parameter gradient's dtype: f32 or bf16, independent of the other tensors.
inline void require_gradient(const char* op, std::initializer_list<Named> tensors) {
  for (const Named& n : tensors) {
    const DType t = n.tensor.dtype;
    GT_REQUIRE(!n.tensor || t == DType::kF32 || t == DType::kBF16, Exit::kUsage, op, " on the CPU: ", n.name, ' ',
               to_string(n.tensor.shape), " is ", name_of(t), "; gradients of parameters are f32 or bf16");
  }
}

// Requires the floating dtype of `main`.
inline void require_same(const char* op, const Named& main, std::initializer_list<Named> tensors) {
  require_float(op, main);
  for (const Named& n : tensors) {
    GT_REQUIRE(!n.tensor || n.tensor.dtype == main.tensor.dtype, Exit::kUsage, op, " on the CPU: ", n.name, ' ',
               to_string(n.tensor.shape), " is ", name_of(n.tensor.dtype), " beside ", main.name, " of ",
               name_of(main.tensor.dtype), "; the same is supported");
  }
}

// Requires f32, or the floating dtype of `main`.
inline void require_same_or_f32(const char* op, const Named& main, std::initializer_list<Named> tensors) {
  require_float(op, main);
  for (const Named& n : tensors) {
    GT_REQUIRE(!n.tensor || n.tensor.dtype == main.tensor.dtype || n.tensor.dtype == DType::kF32, Exit::kUsage, op,
               " on the CPU: ", n.name, ' ', to_string(n.tensor.shape), " is ", name_of(n.tensor.dtype), " beside ",
               main.name, " of ", name_of(main.tensor.dtype), "; f32 or the same is supported");
  }
}

// Requires the floating dtype of `main`, or any floating dtype when `main` is f32.
inline void require_same_or_narrower(const char* op, const Named& main, std::initializer_list<Named> tensors) {
  require_float(op, main);
  for (const Named& n : tensors) {
    require_float(op, n);
    GT_REQUIRE(!n.tensor || main.tensor.dtype == DType::kF32 || n.tensor.dtype == main.tensor.dtype, Exit::kUsage, op,
               " on the CPU: ", n.name, ' ', to_string(n.tensor.shape), " is ", name_of(n.tensor.dtype), " beside ",
               main.name, " of ", name_of(main.tensor.dtype), "; only beside f32 may it be of another type");
  }
}

inline void require_numel(const char* op, int64_t expected, std::initializer_list<Named> tensors) {
  for (const Named& n : tensors) {
    GT_CHECK(n.tensor.numel() == expected, op, ": ", n.name, ' ', to_string(n.tensor.shape), " has to have ", expected,
             " elements");
  }
}

}  // namespace gt::cpu
