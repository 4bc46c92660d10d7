// How CPU kernels refuse arguments: which op, which tensor, what was found. Shapes are our own invariants (kInternal);
// a number format that the CPU does not compute in is the user's choice of precision (kUsage).
#pragma once
#include <initializer_list>

#include "kernels/core/tensor.h"

namespace gt::cpu {

struct Named {
  const char* name;
  const Tensor& tensor;
};

inline void require_dtype(const char* op, DType want, std::initializer_list<Named> tensors) {
  for (const Named& n : tensors) {
    GT_REQUIRE(!n.tensor || n.tensor.dtype == want, Exit::kUsage, op, " on the CPU: ", n.name, ' ',
               to_string(n.tensor.shape), " has to be ", name_of(want), ", found ", name_of(n.tensor.dtype),
               want == DType::kF32 ? ". The CPU computes in f32: choose f32 as the precision" : "");
  }
}
inline void require_f32(const char* op, std::initializer_list<Named> tensors) {
  require_dtype(op, DType::kF32, tensors);
}

inline void require_numel(const char* op, int64_t want, std::initializer_list<Named> tensors) {
  for (const Named& n : tensors) {
    GT_CHECK(n.tensor.numel() == want, op, ": ", n.name, ' ', to_string(n.tensor.shape), " has to have ", want,
             " elements");
  }
}

}  // namespace gt::cpu
