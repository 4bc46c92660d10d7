// Tensor cores: 16 x 8 x 16 products of bf16 or f16 with sums in f32, and loads of their operands from shared memory.
// Lane 4 g + t of a warp holds of a [16, 16]: rows g and g + 8, columns 2t, 2t + 1 and 8 more; of b [16, 8]: rows 2t,
// 2t + 1 and 8 more of column g; of c [16, 8]: rows g (c[0], c[1]) and g + 8, columns 2t, 2t + 1.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace gt::cuda {

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, 16-byte aligned. Each
// lane gets elements (g, 2t) and (g, 2t + 1) of each, or with kTurned (2t, g) and (2t + 1, g).
template <bool kTurned>
__device__ inline void load_matrices(uint32_t (&out)[4], const void* row) {
#ifdef __CUDA_ARCH__
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTurned)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
#elif defined(GT_EMULATED)
  gt::emulated::load_matrices(out, row, kTurned);
#endif
}

// c += a b.
template <class T>
__device__ inline void multiply_add(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(GT_EMULATED)
  gt::emulated::multiply_add<T>(c, a, b0, b1);
#endif
}

}  // namespace gt::cuda
