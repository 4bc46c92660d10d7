// Vector kernels under the CPU ops: plain pointers and counts, one function table per instruction set, written once
// (simd_*.h) and compiled four times. No tensors, threads or errors: the op files (elementwise.cpp, norm.cpp, ...)
// check arguments and partition the work. Pointers need no alignment; an output may alias an input of the same name or
// index unless stated otherwise.
#pragma once
#include <cstdint>

#include "kernels/core/dropout.h"

namespace gt::cpu {

constexpr int64_t kAttentionBlock = 64;               // queries and keys per block
constexpr int64_t kRowsPanel = 64, kRowsDepth = 256;  // block of a row-independent GEMM: columns, inner dimension

// Rows of a matrix, `stride` elements apart.
template <class T>
struct RowsOf {
  T* at;
  int64_t stride;
  T* row(int64_t r) const { return at + r * stride; }
};

// One query head (AttentionSpec, kernels/ops.h).
struct AttentionShape {
  float* lse;  // [queries]
  int64_t queries, keys, dim;
  int64_t first_query, first_key;  // positions of query 0 and of key 0
  float scale;
  const DropMask* drop;               // nullptr: no dropout; else of this sample and this head among all heads
  int64_t sample, head, drop_length;  // length: of the sequence whose positions are numbered
  int64_t window;                     // 0: unlimited
  float softcap;                      // 0: none
  bool full;                          // bidirectional: every query sees keys [0, attended)
  int64_t attended;
  const int32_t* documents;  // [queries] position of each in its document; nullptr: one document
  // Position of a query, counted from key 0.
  int64_t at(int64_t query) const { return first_query - first_key + query; }
};
// T: float, or uint16_t, the bits of bf16.
template <class T>
struct AttentionHead : AttentionShape {
  RowsOf<const T> q, k, v, dout;  // dout: backward
  RowsOf<T> out;                  // read in the backward
  RowsOf<T> dq, dk, dv;
};

// Memory that is used after a GEMM: `rows` rows of `width` floats, `stride` floats apart. Consumed in steps of
// kRowsPanel floats.
struct Upcoming {
  const float* at = nullptr;
  int64_t stride = 0, rows = 0, width = 0, column = 0;
};
// Prefetches the next kRowsPanel floats into the L2 cache.
static inline void prefetch_some(Upcoming& next) {
  constexpr int64_t kLine = 16;
  if (next.rows == 0) return;
  const float* from = next.at + next.column;
#pragma GCC unroll 4
  for (int64_t i = 0; i < kRowsPanel; i += kLine) __builtin_prefetch(from + i, 0, 2);
  next.column += kRowsPanel;
  if (next.column < next.width) return;
  next.column = 0, next.at += next.stride, --next.rows;
}

// c[m, n] (with `more`: +=) a b for bf16 with f32 sums. a: rows of bf16, lda apart, 2 * pairs of them used. b: panels
// of kPairColumns columns, `panel` apart, which are read from first to last: pair p of column j, elements 2p (low half)
// and 2p + 1, is b[pair_at(p, j, panel)]. n: a multiple of the lanes of the tables' vectors. Each element's sum depends
// on its row of a and column of b alone, not on m and n, and pairs of zeros at the end do not change it. Meanwhile
// prefetches next[0] to next[2]; nullptr: nothing.
using PairGemm = void (*)(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                          int64_t panel, float* c, int64_t ldc, bool more, Upcoming* next);
constexpr int64_t kPairColumns = 16, kPairDepth = 128;  // depth: pairs of rows of a that stay in the L1 cache
static constexpr int64_t pair_at(int64_t pair, int64_t column, int64_t panel) {
  return column / kPairColumns * panel + pair * kPairColumns + column % kPairColumns;
}
PairGemm native_pair_gemm();  // nullptr: the processor does not multiply bf16
// Takes the place of native_pair_gemm() for tests, on processors without one; nullptr: no longer.
void substitute_pair_gemm(PairGemm gemm);

// c[m, n] = a b for f32 by products of bf16. An operand is the sum of three parts x0, x1, x2 of bf16,
// each the rounding of what the ones before leave of it, exact unless it or a part is subnormal; of the nine products
// a2 b0 + a1 b0 + a1 b1 + a0 b1 + a0 b2 + a0 b0 are summed, in f32. The others are below 2^-24 of ab, on average far
// below: an error like that of rounding a product to f32. Results are NaN where an operand is infinite or rounds to
// infinity. Operands are tiles of 16 rows of a or columns of b, `tile` apart, of `steps` steps of the inner dimension
// each, of kSplitTile pairs (Simd::split_rows, split_columns). Each element's sum depends on its row and column alone.
using SplitGemm = void (*)(int64_t m, int64_t n, int64_t steps, const uint32_t* a, int64_t a_tile, const uint32_t* b,
                           int64_t b_tile, float* c, int64_t ldc, Upcoming* next);
// Elements of the inner dimension in a step, rows or columns in a tile, pairs in a step of a tile: 3 parts.
constexpr int64_t kSplitStep = 32, kSplitLines = 16, kSplitTile = 3 * kSplitLines * kSplitStep / 2;
SplitGemm native_split_gemm();               // nullptr: f32 arithmetic is faster
void substitute_split_gemm(SplitGemm gemm);  // as substitute_pair_gemm

// AMX tile registers of a thread. shape: what they are configured for, 0 if they are not.
struct TileUse {
  int holders = 0;
  int64_t shape = 0;
  void (*release)() = nullptr;
  void end();
};
TileUse& tile_use();
// Within its life, products of this thread leave tile registers configured: a configuration takes as long as ten
// products of tiles. Nothing else may use tiles meanwhile. No effect where products use none.
struct HeldTiles {
  HeldTiles();
  ~HeldTiles();
  HeldTiles(const HeldTiles&) = delete;
  HeldTiles& operator=(const HeldTiles&) = delete;
};

struct AdamWArgs {
  float lr, beta1, beta2, bias_correction1, bias_correction2, multiplier, eps, weight_decay;
  bool l2;
};
struct SgdArgs {
  float lr, momentum, share, multiplier, weight_decay;  // share: gradient coefficient of the momentum buffer
  bool nesterov;
};
struct LionArgs {
  float lr, beta1, beta2, multiplier, weight_decay;
};
struct AdagradArgs {
  float lr, eps, multiplier, weight_decay;
};
struct LambArgs {
  float beta1, share, beta2, multiplier, correction1, correction2;  // corrections: factors of m and v inside the update
  float eps, weight_decay;
  bool l2, eps_inside_sqrt;
  float step;  // second pass: lr * ratio, times any other scale of the update
};
constexpr int64_t kLambBlock = 4096;  // elements whose squares are summed together; affects the bits of the result

struct Simd {
  void (*add)(const float* a, const float* b, float* out, int64_t n);
  void (*axpy)(float alpha, const float* x, float* y, int64_t n);
  void (*exp)(const float* x, float* out, int64_t n);   // vec.h's, for tests
  void (*tanh)(const float* x, float* out, int64_t n);  // same
  void (*multiply)(const float* a, const float* b, float* out, int64_t n);
  void (*scale)(const float* x, float factor, float* out, int64_t n);
  void (*add_scalar)(const float* x, float addend, float* out, int64_t n);
  // out = cap tanh(x / cap). The gradient multiplies d by 1 - (capped / cap)^2, the derivative at x.
  void (*soft_cap)(const float* x, float cap, float* out, int64_t n);
  void (*soft_cap_grad)(const float* capped, float cap, float* d, int64_t n);
  // act(gate), multiplied by up unless it is nullptr; indexed by Activation (ops.h). The gradient is with respect to
  // both; dup is nullptr if up is. Outputs may alias any input.
  void (*activate[5])(const float* gate, const float* up, float* out, int64_t n);
  void (*activate_grad[5])(const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t n);
  // rounded = z, out = gelu(rounded); dz = dout gelu'(z). Arrays of uint16_t: bf16. rounded is written past the caches:
  // it is complete after complete_streams().
  void (*gelu_bf16)(const float* z, uint16_t* rounded, uint16_t* out, int64_t n);
  void (*gelu_grad_bf16)(const uint16_t* z, const float* dout, uint16_t* dz, int64_t n);
  // In place: (a, b) = (a cos - b sin, b cos + a sin); backward negates the angle.
  void (*rotate)(const float* cos, const float* sin, float* a, float* b, int64_t n, bool backward);
  // out[i] = the mask's scale if element first + i of this sample is kept, else 0.
  void (*dropout_factors)(const DropMask& mask, int64_t sample, int64_t first, int64_t n, float* out);
  // out[c] (+)= sum of x[r * stride + c] over r, four rows at a time.
  void (*column_sums)(const float* x, int64_t stride, int64_t rows, float* out, int64_t cols, bool accumulate);
  void (*column_sums_bf16)(const uint16_t* x, int64_t stride, int64_t rows, float* out, int64_t cols, bool accumulate);

  // Elements first .. first + n - 1 of step `step` (ops.h, StochasticRound).
  void (*stochastic_bf16)(uint64_t key, uint64_t step, int64_t first, const float* x, uint16_t* out, int64_t n);

  // Elements of one row (ops.h, FakeQuant); limit > 0. fake_quant_grad: out[i] = |x[i]| <= limit ? dout[i] : 0.
  void (*fake_quant)(const float* x, float limit, float* out, int64_t n);
  void (*fake_quant_grad)(const float* x, float limit, const float* dout, float* out, int64_t n);
  float (*max_abs)(const float* x, int64_t n);
  // Elements of one row (ops.h, QuantizeInt8, DequantizeInt8); quantize: scale > 0.
  void (*quantize_int8)(const float* x, float scale, int8_t* out, int64_t n);
  void (*dequantize_int8)(const int8_t* x, float scale, float* out, int64_t n);

  void (*f32_to_bf16)(const float* x, uint16_t* out, int64_t n);
  void (*stream_bf16)(const float* x, uint16_t* out, int64_t n);  // the same, past the caches
  void (*bf16_to_f32)(const uint16_t* x, float* out, int64_t n);
  void (*f32_to_f16)(const float* x, uint16_t* out, int64_t n);
  void (*f16_to_f32)(const uint16_t* x, float* out, int64_t n);

  // One row; delta may be null, then sum is not written. Population variance.
  void (*layer_norm)(const float* x, const float* delta, const float* gamma, const float* beta, float* sum, float* out,
                     float* mean, float* rstd, int64_t n, float eps);
  // One row; dsum may be null. dgamma, dbeta: accumulates this row (overwrites with `first`); null: not computed.
  void (*layer_norm_grad)(const float* x, const float* gamma, float mean, float rstd, const float* dout,
                          const float* dsum, float* dx, float* dgamma, float* dbeta, int64_t n, bool accumulate,
                          bool first);
  // RMSNorm; beta, mean and dbeta are ignored.
  decltype(layer_norm) rms_norm;
  decltype(layer_norm_grad) rms_norm_grad;

  int64_t (*attention_scratch)(int64_t dim);  // floats
  // Queries [first, first + kAttentionBlock) of one head: out and lse.
  void (*attention)(const AttentionHead<float>& head, int64_t first, float* scratch);
  // Computes query head.q, one row, over the keys [begin, end) inside its window. Bitwise identical to row end - 1 of
  // `attention`, also if both counts begin at a later multiple of kAttentionBlock. No dropout, no lse.
  void (*attention_query)(const AttentionHead<float>& head, int64_t begin, int64_t end, float* scratch);
  int64_t (*attention_grad_scratch)(int64_t queries, int64_t dim, int64_t heads);  // floats
  // Computes the query heads that share one KV head: dq of all, dk and dv summed in the order of heads.
  void (*attention_grad)(const AttentionHead<float>* heads, int64_t count, float* scratch);

  // The same for bf16, with products of bf16: weights and their gradients are rounded for them. dim is even. `values`:
  // rows [begin, end) of head.v by turn_values, which `begin` and `end` of attention_query must match.
  int64_t (*attention_scratch_bf16)(int64_t dim);
  int64_t (*values_floats)(int64_t end, int64_t dim);  // memory of `values`
  void (*turn_values)(const AttentionHead<uint16_t>& head, int64_t begin, int64_t end, float* values);
  void (*attention_bf16)(const AttentionHead<uint16_t>& head, int64_t first, const float* values, PairGemm multiply,
                         float* scratch);
  void (*attention_query_bf16)(const AttentionHead<uint16_t>& head, int64_t begin, int64_t end, const float* values,
                               PairGemm multiply, float* scratch);
  int64_t (*attention_grad_scratch_bf16)(int64_t queries, int64_t dim, int64_t heads);
  void (*attention_grad_bf16)(const AttentionHead<uint16_t>* heads, int64_t count, PairGemm multiply, float* scratch);
  PairGemm pair_gemm;  // without tiles: the native instruction, or f32 operations in its order

  // Operands of a PairGemm from `count` rows of `dim` bf16. Whole vectors are written; what does not exist is 0.
  // Right ones. turn_rows: pair p of column i = elements 2p and 2p + 1 of row i; dim is even. pair_rows: pair i of
  // column d = elements d of rows 2i and 2i + 1.
  void (*turn_rows)(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t panel, uint32_t* to);
  void (*pair_rows)(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t panel, uint32_t* to);
  // The left one of pair_rows: to[d * columns + i] = the same pair.
  void (*turn_pairs)(const uint16_t* rows, int64_t stride, int64_t count, int64_t dim, int64_t columns, uint32_t* to);

  // Operands of a SplitGemm, left or right, of `count` rows (or columns) and `depth` elements of the inner dimension:
  // split_rows: x holds them as rows, `stride` apart; split_columns: as columns. What does not exist is 0. In a tile,
  // element i of a step is pair i % 16, low half if i < 16: of a left operand, pairs of a row follow each other; of a
  // right one, pairs of all its columns.
  void (*split_rows)(const float* x, int64_t stride, int64_t count, int64_t depth, bool left, int64_t tile,
                     uint32_t* to);
  void (*split_columns)(const float* x, int64_t stride, int64_t count, int64_t depth, bool left, int64_t tile,
                        uint32_t* to);

  // max and sum of e^(x - max); (-inf, 0) for n == 0.
  void (*softmax_stats)(const float* x, int64_t n, float* max, float* sum);
  // The same, also out = e^(x - max).
  void (*softmax_exps)(const float* x, float* out, int64_t n, float* max, float* sum);
  // c[m, n] = (with `more`: +=) a b. Element (i, p) of a is a[i * a_row + p * a_col]; rows of b and c are ldb and ldc
  // apart. Each element is one fma chain in ascending p. Meanwhile prefetches c, next[0] and next[1].
  void (*gemm_block)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b,
                     int64_t ldb, float* c, int64_t ldc, bool more, Upcoming* next);
  // to[p * kRowsPanel + j] = w[j * ldw + p] for j < n <= kRowsPanel and p < k: columns of w^T for gemm_block. Columns
  // from n on are 0 up to a whole vector.
  void (*transpose_rows)(const float* w, int64_t ldw, int64_t n, int64_t k, float* to);
  // c[m, n] = (with `more`: +=) a[m, k] w[n, k]^T, n <= kRowsPanel; rows of c are kRowsPanel apart. Each element is one
  // fma chain in ascending k, so a row of c depends on no other row. k <= kRowsDepth; scratch: kRowsDepth * kRowsPanel
  // floats.
  void (*gemm_rows)(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* w, int64_t ldw, float* c,
                    bool more, float* scratch);
  // The same for one row and any k, bitwise identical.
  void (*gemv_rows)(int64_t n, int64_t k, const float* a, const float* w, int64_t ldw, float* c, bool more);
  void (*softmax_scaled)(const float* x, float* out, int64_t n, float max, float factor);  // e^(x - max) * factor

  double (*sum)(const float* x, int64_t n);  // in f64, 4 vectors of partial sums
  double (*sum_squares)(const float* x, int64_t n);
  double (*square_block)(const float* x, int64_t stride, int64_t rows, int64_t cols);  // rows `stride` apart
  // The same, and copies the rows past the caches, which complete_streams() completes. Requires: cols and out_stride
  // multiples of 16, out at 64 bytes.
  double (*stream_block)(const float* x, int64_t stride, int64_t rows, int64_t cols, float* out, int64_t out_stride);
  void (*complete_streams)();

  void (*adamw)(float* master, const float* grad, float* m, float* v, int64_t n, const AdamWArgs& args);
  void (*sgd)(float* master, const float* grad, float* m, int64_t n, const SgdArgs& args);  // m may be null
  void (*lion)(float* master, const float* grad, float* m, int64_t n, const LionArgs& args);
  void (*adagrad)(float* master, const float* grad, float* squares, int64_t n, const AdagradArgs& args);
  // n <= kLambBlock; sums[0], sums[1] = sums of squares of master and of the update.
  void (*lamb_moments)(const float* master, const float* grad, float* m, float* v, int64_t n, const LambArgs& args,
                       double* sums);
  void (*lamb_apply)(float* master, const float* m, const float* v, int64_t n, const LambArgs& args);
};

extern const Simd kSimdScalar, kSimdAvx2, kSimdAvx512, kSimdAvx512Bf16;
const Simd& simd();  // of the current instruction set

}  // namespace gt::cpu
