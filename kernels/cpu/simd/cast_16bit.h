// 16-bit storage, f32 arithmetic: row accessors for tensors of any floating dtype. An f32 row is used in place; a
// 16-bit row is widened into scratch and rounded back (nearest even; overflow of f16 gives infinity). So a kernel's
// result is bitwise that of its f32 form on the widened operands, rounded once.
#pragma once
#include "kernels/core/tensor.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace gt::cpu {

inline bool is_16bit(DType t) { return t == DType::kBF16 || t == DType::kF16; }
inline bool is_float(DType t) { return t == DType::kF32 || is_16bit(t); }

// The processor's product of bf16 for attention with heads of `dim` elements of this type; nullptr: it has none, or
// they are no pairs of bf16.
inline PairGemm attention_pair_gemm(DType type, int64_t dim) {
  return type == DType::kBF16 && dim % 2 == 0 ? native_pair_gemm() : nullptr;
}

inline void widen(const Simd& f, DType type, const uint16_t* from, float* to, int64_t n) {
  (type == DType::kBF16 ? f.bf16_to_f32 : f.f16_to_f32)(from, to, n);
}
inline void narrow(const Simd& f, DType type, const float* from, uint16_t* to, int64_t n) {
  (type == DType::kBF16 ? f.f32_to_bf16 : f.f32_to_f16)(from, to, n);
}

// Returns elements [at, at + n) of t: in place, or widened into `scratch`.
inline const float* read(const Simd& f, const Tensor& t, int64_t at, int64_t n, float* scratch) {
  if (t.dtype == DType::kF32) return t.as<float>() + at;
  widen(f, t.dtype, t.as<uint16_t>() + at, scratch, n);
  return scratch;
}

// Returns where to write elements [at, ...) of t: in place, or `scratch`, which write() then rounds into t.
inline float* target(const Tensor& t, int64_t at, float* scratch) {
  return t.dtype == DType::kF32 ? t.as<float>() + at : scratch;
}
inline void write(const Simd& f, const Tensor& t, int64_t at, int64_t n, const float* scratch) {
  if (t.dtype != DType::kF32) narrow(f, t.dtype, scratch, t.as<uint16_t>() + at, n);
}

// Calls body(floats, c, n) for elements [at + c, at + c + n) of t, `count` in total: in place, or in chunks of scratch
// rounded back afterwards. keep: loads existing values first, so the body may accumulate.
template <class Body>
void edit(const Simd& f, const Tensor& t, int64_t at, int64_t count, bool keep, Body body) {
  if (t.dtype == DType::kF32) return body(t.as<float>() + at, int64_t{0}, count);
  constexpr int64_t kChunk = 1024;
  float scratch[kChunk];
  for (int64_t c = 0; c < count; c += kChunk) {
    const int64_t n = count - c < kChunk ? count - c : kChunk;
    if (keep) read(f, t, at + c, n, scratch);
    body(scratch, c, n);
    write(f, t, at + c, n, scratch);
  }
}

// GELU, tanh form, and inout *= gelu'(z), on rows of f32; absolute error <= 1e-6 (relative above 1). `activate` and
// GEMM epilogues call these, so their results are bitwise equal.
inline void gelu(const Simd& f, const float* z, float* out, int64_t n) {
  f.activate[static_cast<size_t>(Activation::kGelu)](z, nullptr, out, n);
}
inline void gelu_grad(const Simd& f, const float* z, float* inout, int64_t n) {
  f.activate_grad[static_cast<size_t>(Activation::kGelu)](z, nullptr, inout, inout, nullptr, n);
}

// Column sums out[c] (+)= sum over r of element at + r * stride + c of x. Bitwise identical to Simd::column_sums.
inline void column_sums(const Simd& f, const Tensor& x, int64_t at, int64_t stride, int64_t rows, float* out,
                        int64_t cols, bool accumulate) {
  if (x.dtype == DType::kF32) return f.column_sums(x.as<float>() + at, stride, rows, out, cols, accumulate);
  if (x.dtype == DType::kBF16) return f.column_sums_bf16(x.as<uint16_t>() + at, stride, rows, out, cols, accumulate);
  constexpr int64_t kRows = 16, kCols = 256;  // kRows: a multiple of the rows that Simd::column_sums adds at a time
  float scratch[kRows * kCols];
  for (int64_t c = 0; c < cols; c += kCols) {
    const int64_t width = cols - c < kCols ? cols - c : kCols;
    for (int64_t r = 0; r < rows || r == 0; r += kRows) {
      const int64_t count = rows - r < kRows ? rows - r : kRows;
      for (int64_t i = 0; i < count; ++i) read(f, x, at + (r + i) * stride + c, width, scratch + i * kCols);
      f.column_sums(scratch, kCols, count, out + c, width, accumulate || r > 0);
    }
  }
}

// The same into elements [to, to + cols) of `out`, of any floating dtype.
inline void column_sums(const Simd& f, const Tensor& x, int64_t at, int64_t stride, int64_t rows, const Tensor& out,
                        int64_t to, int64_t cols, bool accumulate) {
  edit(f, out, to, cols, accumulate,
       [&](float* sums, int64_t c, int64_t n) { column_sums(f, x, at + c, stride, rows, sums, n, accumulate); });
}

// Rows per block of bias gradients, which are summed within blocks first, then over blocks. So a kernel that produces
// rows may sum them on the way, bitwise identical to a separate pass.
constexpr int64_t kSumBlock = 32;

inline void sum_row_blocks(const Simd& f, const Tensor& x, int64_t at, int64_t stride, int64_t rows, const Tensor& out,
                           int64_t to, int64_t cols, bool accumulate) {
  constexpr int64_t kBlocks = 4, kCols = 256;  // kBlocks: the rows that Simd::column_sums adds at a time
  edit(f, out, to, cols, accumulate, [&](float* sums, int64_t first, int64_t n) {
    float of_block[kBlocks * kCols];
    for (int64_t c = 0; c < n; c += kCols) {
      const int64_t width = n - c < kCols ? n - c : kCols;
      bool more = accumulate;
      for (int64_t r = 0; r < rows || r == 0;) {
        int64_t blocks = 0;
        for (; blocks < kBlocks && r < rows; ++blocks, r += kSumBlock)
          column_sums(f, x, at + r * stride + first + c, stride, rows - r < kSumBlock ? rows - r : kSumBlock,
                      of_block + blocks * kCols, width, false);
        f.column_sums(of_block, kCols, blocks, sums + c, width, more);
        more = true;
        if (rows == 0) break;
      }
    }
  });
}

}  // namespace gt::cpu
