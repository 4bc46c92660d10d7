// Blocked causal attention with online softmax (Dao et al. 2022, FlashAttention) and its gradient; body of
// simd_{scalar,avx2,avx512}.cpp. Scores are kept transposed, [keys][queries]: a vector holds one key's scores of
// neighbouring queries, so the softmax needs no sum across lanes and no operand but the queries is ever transposed.
#pragma once
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec.h"

namespace gt::cpu {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
static_assert(kBlock % kLanes == 0);

// One register tile of c[m, n] (+)= sum over k of a[i * a_row + k * a_k] * b[k * ldb + j]: kRows rows, kVecs vectors of
// columns, the last one perhaps a Part. Every element is one chain of fma in ascending k, whatever the tiling.
template <int kRows, int kVecs, class Lanes>
inline void product_tile(int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t ldb,
                         float* c, int64_t ldc, bool accumulate, Lanes last) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      const float* at = c + i * ldc + j * kLanes;
      acc[i][j] = !accumulate ? Vec{} : j + 1 < kVecs ? load(at) : last.load(at);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const float *row = b + k * ldb, *left = a + k * a_k;
    Vec right[kVecs];
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) right[j] = j + 1 < kVecs ? load(row + j * kLanes) : last.load(row + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = splat(left[i * a_row]);
#pragma GCC unroll 16
      for (int j = 0; j < kVecs; ++j) acc[i][j] = fma(x, right[j], acc[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kVecs; ++j) {
      float* at = c + i * ldc + j * kLanes;
      if (j + 1 < kVecs) {
        store(at, acc[i][j]);
      } else {
        last.store(at, acc[i][j]);
      }
    }
  }
}

template <int kVecs, class Lanes>
inline void product_columns(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* b,
                            int64_t ldb, float* c, int64_t ldc, bool accumulate, Lanes last) {
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) {
    product_tile<6, kVecs>(depth, a + i * a_row, a_row, a_k, b, ldb, c + i * ldc, ldc, accumulate, last);
  }
  for (; i + 2 <= rows; i += 2) {
    product_tile<2, kVecs>(depth, a + i * a_row, a_row, a_k, b, ldb, c + i * ldc, ldc, accumulate, last);
  }
  if (i < rows) product_tile<1, kVecs>(depth, a + i * a_row, a_row, a_k, b, ldb, c + i * ldc, ldc, accumulate, last);
}

// c[rows, cols] (+)= a * b, see product_tile.
void product(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row, int64_t a_k, const float* b,
             int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  int64_t j = 0;
  for (; j + kWide * kLanes <= cols; j += kWide * kLanes) {
    product_columns<kWide>(rows, depth, a, a_row, a_k, b + j, ldb, c + j, ldc, accumulate, Whole{});
  }
  for (; j + kLanes <= cols; j += kLanes) {
    product_columns<1>(rows, depth, a, a_row, a_k, b + j, ldb, c + j, ldc, accumulate, Whole{});
  }
  if (j < cols) {
    product_columns<1>(rows, depth, a, a_row, a_k, b + j, ldb, c + j, ldc, accumulate,
                       Part{static_cast<int>(cols - j)});
  }
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// to[d * kBlock + i] = factor * from[i * stride + d]; columns i >= rows up to a whole vector become 0. By squares of
// kLanes: both sides work on cache lines that are there already.
inline void transpose(const float* from, int64_t stride, int64_t rows, int64_t dim, float factor, float* to) {
  const Vec f = splat(factor);
  for (int64_t i = 0; i < rows; i += kLanes) {
    const int64_t live = least(kLanes, rows - i);
    sweep(dim, [=](int64_t d, auto lanes) {
      float square[kLanes][kLanes] = {};
      for (int64_t r = 0; r < live; ++r) store(square[r], f * lanes.load(from + (i + r) * stride + d));
      for (int64_t c = 0; c < least(kLanes, dim - d); ++c) {
        float* column = to + (d + c) * kBlock + i;
        for (int r = 0; r < kLanes; ++r) column[r] = square[r][c];
      }
    });
  }
}

// 0, 1, 2, ... as numbers of queries in one vector.
inline VecInt lane_numbers() {
  VecInt v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// In the block on the diagonal: lanes whose query comes before the key.
inline VecInt is_later(int64_t key, int64_t query) { return lane_numbers() < static_cast<int32_t>(key - query); }

int64_t attention_scratch_floats(int64_t dim) { return 2 * dim * kBlock + kBlock * kBlock + 3 * kBlock; }

// One block of keys enters the running softmax of the queries: scores become weights, top and total move on, and fade
// is what earlier output has to be multiplied with.
inline void soften(float* scores, int64_t keys, int64_t queries, bool diagonal, float* top, float* total, float* fade) {
  const Vec none = splat(-__builtin_inff());
  for (int64_t q = 0; q < queries; q += kLanes) {
    float* column = scores + q;
    const Vec before = load(top + q);
    Vec now = before;
    for (int64_t k = 0; k < keys; ++k) {
      Vec s = load(column + k * kBlock);
      if (diagonal) store(column + k * kBlock, s = is_later(k, q) ? none : s);
      now = max(now, s);
    }
    Vec sum{};
    for (int64_t k = 0; k < keys; ++k) {
      const Vec p = exp(load(column + k * kBlock) - now);
      store(column + k * kBlock, p);
      sum += p;
    }
    const Vec f = exp(before - now);
    store(top + q, now);
    store(total + q, fma(load(total + q), f, sum));
    store(fade + q, f);
  }
}

void attention_block(const AttentionHead& h, int64_t first, float* scratch) {
  float *turned = scratch, *acc = turned + h.dim * kBlock, *scores = acc + h.dim * kBlock;
  float *top = scores + kBlock * kBlock, *total = top + kBlock, *fade = total + kBlock;
  const int64_t queries = least(kBlock, h.seq - first);
  transpose(h.q + first * h.qkv_stride, h.qkv_stride, queries, h.dim, h.scale, turned);
  for (int64_t q = 0; q < kBlock; ++q) top[q] = -__builtin_inff(), total[q] = 0;

  for (int64_t key = 0; key <= first; key += kBlock) {
    const int64_t keys = least(kBlock, first + queries - key);
    const int64_t padded = (queries + kLanes - 1) / kLanes * kLanes;
    product(keys, padded, h.dim, h.k + key * h.qkv_stride, h.qkv_stride, 1, turned, kBlock, scores, kBlock, false);
    soften(scores, keys, queries, key == first, top, total, fade);
    if (key > 0) {
      for (int64_t q = 0; q < queries; ++q) {
        float* row = acc + q * h.dim;
        const Vec f = splat(fade[q]);
        sweep(h.dim, [=](int64_t i, auto lanes) { lanes.store(row + i, lanes.load(row + i) * f); });
      }
    }
    product(queries, h.dim, keys, scores, 1, kBlock, h.v + key * h.qkv_stride, h.qkv_stride, acc, h.dim, key > 0);
  }

  for (int64_t q = 0; q < queries; ++q) {
    const float* row = acc + q * h.dim;
    float* out = h.out + (first + q) * h.out_stride;
    const Vec f = splat(1.0f / total[q]);
    sweep(h.dim, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(row + i) * f); });
    h.lse[first + q] = top[q] + __builtin_logf(total[q]);
  }
}

inline int64_t blocks_of(int64_t seq) { return (seq + kBlock - 1) / kBlock; }

// Two score blocks; then for every head and block of queries: q and dout transposed, lse, dot products of out and dout.
int64_t attention_grad_scratch_floats(int64_t seq, int64_t dim, int64_t heads) {
  return 2 * kBlock * kBlock + heads * blocks_of(seq) * kBlock * (2 * dim + 2);
}

struct TurnedBlock {
  float *q, *dout, *lse, *dot;
};
inline TurnedBlock turned_block(float* scratch, int64_t index, int64_t dim) {
  float* at = scratch + 2 * kBlock * kBlock + index * kBlock * (2 * dim + 2);
  return {at, at + kBlock * dim, at + 2 * kBlock * dim, at + 2 * kBlock * dim + kBlock};
}

inline void turn_block(const AttentionHead& h, int64_t first, const TurnedBlock& to) {
  const int64_t queries = least(kBlock, h.seq - first);
  transpose(h.q + first * h.qkv_stride, h.qkv_stride, queries, h.dim, h.scale, to.q);
  transpose(h.dout + first * h.out_stride, h.out_stride, queries, h.dim, 1.0f, to.dout);
  for (int64_t q = 0; q < kBlock; ++q) to.lse[q] = to.dot[q] = 0;
  for (int64_t q = 0; q < queries; ++q) {
    const float *o = h.out + (first + q) * h.out_stride, *g = h.dout + (first + q) * h.out_stride;
    to.lse[q] = h.lse[first + q];
    to.dot[q] = sum_lanes(fold(
        h.dim, Vec{}, [=](Vec acc, int64_t i, auto lanes) { return fma(lanes.load(o + i), lanes.load(g + i), acc); },
        [](Vec a, Vec b) { return a + b; }));
  }
}

// scores -> weights p, dp -> ds = p (dp - dot) scale.
inline void soften_grad(float* scores, float* dp, int64_t keys, int64_t queries, bool diagonal, const TurnedBlock& b,
                        float scale) {
  const Vec factor = splat(scale);
  for (int64_t q = 0; q < queries; q += kLanes) {
    const Vec lse = load(b.lse + q), dot = load(b.dot + q);
    for (int64_t k = 0; k < keys; ++k) {
      float *s = scores + k * kBlock + q, *d = dp + k * kBlock + q;
      Vec p = exp(load(s) - lse);
      if (diagonal) p = is_later(k, q) ? Vec{} : p;
      store(s, p);
      store(d, p * (load(d) - dot) * factor);
    }
  }
}

// One pass over pairs of blocks, keys outside: the weights are computed once for all three gradients. dq of a query is
// summed over blocks of keys in ascending order, dk and dv over heads and blocks of queries in ascending order.
void attention_grad_heads(const AttentionHead* heads, int64_t count, float* scratch) {
  const AttentionHead& any = heads[0];
  const int64_t dim = any.dim, seq = any.seq, in = any.qkv_stride, out = any.out_stride, blocks = blocks_of(seq);
  float *scores = scratch, *dp = scratch + kBlock * kBlock;
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t b = 0; b < blocks; ++b) turn_block(heads[n], b * kBlock, turned_block(scratch, n * blocks + b, dim));
  }
  for (int64_t key = 0; key < seq; key += kBlock) {
    const int64_t keys = least(kBlock, seq - key);
    const float *k = any.k + key * in, *v = any.v + key * in;
    for (int64_t n = 0; n < count; ++n) {
      const AttentionHead& h = heads[n];
      for (int64_t first = key; first < seq; first += kBlock) {
        const int64_t queries = least(kBlock, seq - first), padded = (queries + kLanes - 1) / kLanes * kLanes;
        const TurnedBlock b = turned_block(scratch, n * blocks + first / kBlock, dim);
        const bool more = n > 0 || first > key;  // dk and dv hold a sum already
        product(keys, padded, dim, k, in, 1, b.q, kBlock, scores, kBlock, false);
        product(keys, padded, dim, v, in, 1, b.dout, kBlock, dp, kBlock, false);
        soften_grad(scores, dp, keys, queries, first == key, b, h.scale);
        product(keys, dim, queries, scores, kBlock, 1, h.dout + first * out, out, h.dv + key * in, in, more);
        product(keys, dim, queries, dp, kBlock, 1, h.q + first * in, in, h.dk + key * in, in, more);
        product(queries, dim, keys, dp, 1, kBlock, k, in, h.dq + first * in, in, key > 0);
      }
    }
  }
}

}  // namespace
}  // namespace gt::cpu
