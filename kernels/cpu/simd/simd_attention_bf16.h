// Attention in bf16 for processors that multiply it: the blocks, masks and softmax of simd_attention.h, with every
// product by a PairGemm. Its operands hold bf16 in pairs along the inner dimension, so weights and their gradients are
// rounded to bf16; sums and statistics are f32. Outputs and gradients of queries are kept transposed, [dim][queries]:
// then the weights, [key][query], become pairs of keys lane by lane, and only values and keys are transposed, once.
#pragma once
#include "kernels/cpu/simd/simd_attention.h"
#include "kernels/cpu/simd/simd_elementwise.h"
#include "kernels/cpu/simd/simd_pairs.h"

namespace gt::cpu {
namespace {

constexpr int64_t kPairs = kBlock / 2;                  // of the keys or queries of a block
constexpr int64_t kBlockPanel = kPairs * kPairColumns;  // distance between panels of pairs of keys or queries
inline int64_t dim_panel(int64_t dim) { return dim / 2 * kPairColumns; }  // of pairs of elements of a row
inline int64_t whole_panels(int64_t n) { return (n + kPairColumns - 1) / kPairColumns * kPairColumns; }

void pair_gemm_n(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b, int64_t panel,
                 float* c, int64_t ldc, bool more, Upcoming* next) {
  gemm_of_pairs(m, n, pairs, a, lda, b, panel, c, ldc, more, next);
}

inline uint32_t* as_pairs(float* p) { return reinterpret_cast<uint32_t*>(p); }
inline const uint16_t* as_bf16(const float* p) { return reinterpret_cast<const uint16_t*>(p); }
inline const uint16_t* as_bf16(const uint32_t* p) { return reinterpret_cast<const uint16_t*>(p); }
inline void store_bf16(uint16_t* p, Vec v, int64_t count) {
  const VecU16 bits = to_bf16(v);
  if (count >= kLanes) {
    __builtin_memcpy(p, &bits, sizeof bits);
  } else {
    __builtin_memcpy(p, &bits, static_cast<uint64_t>(count) * sizeof(uint16_t));
  }
}
void store_row_bf16(uint16_t* to, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store_bf16(to + i, load(from + i), n - i);
}

// Element d of row q of `rows` = from[d * kBlock + q], multiplied by factors[q].
inline void turn_back(const float* from, const float* factors, int64_t queries, int64_t dim, uint16_t* rows,
                      int64_t stride) {
  transpose_squares(
      dim, queries, [=](int64_t d, int64_t q, auto) { return load(from + d * kBlock + q) * load(factors + q); },
      [=](int64_t q, int64_t d, Vec v) { store_bf16(rows + q * stride + d, v, dim - d); });
}

int64_t values_floats(int64_t end, int64_t dim) { return blocks_of(end) * dim * kPairs; }

void turn_values(const AttentionHead<uint16_t>& h, int64_t begin, int64_t end, float* values) {
  for (int64_t key = begin / kBlock * kBlock; key < end; key += kBlock)
    turn_pairs({h.v.row(key), h.v.stride, begin - key, least(kBlock, end - key)}, h.dim, kPairs,
               as_pairs(values + key / kBlock * h.dim * kPairs));
}

// scores[key][query] = rows of keys times turned queries, where needed.
inline void score_bf16(PairGemm multiply, const uint16_t* rows, int64_t stride, int64_t keys, const uint32_t* turned,
                       int64_t queries, int64_t dim, bool diagonal, float* scores) {
  strips(diagonal, keys, [=](int64_t r, int64_t count) {
    const int64_t from = diagonal ? r : 0;
    multiply(count, whole_vectors(queries) - from, dim / 2, rows + r * stride, stride,
             turned + pair_at(0, from, dim_panel(dim)), dim_panel(dim), scores + r * kBlock + from, kBlock, false,
             nullptr);
  });
}

// to[d][query] (+)= sum over keys of rows[key][d] * weights[key][query], for turn_pairs of the rows.
inline void to_queries_bf16(PairGemm multiply, const uint32_t* rows, const uint32_t* weights, int64_t keys,
                            int64_t queries, int64_t dim, bool diagonal, float* to, bool more) {
  strips(diagonal, queries, [=](int64_t r, int64_t count) {
    multiply(dim, whole_vectors(count), (attended_keys(diagonal, keys, r) + 1) / 2, as_bf16(rows), kBlock,
             weights + pair_at(0, r, kBlockPanel), kBlockPanel, to + r, kBlock, more, nullptr);
  });
}

// to[key] (+)= sum over queries of weights[key][query] * rows[query], for pair_rows of the rows.
inline void to_keys_bf16(PairGemm multiply, const uint16_t* weights, const uint32_t* rows, int64_t keys,
                         int64_t queries, int64_t columns, bool diagonal, float* to, bool more) {
  strips(diagonal, keys, [=](int64_t r, int64_t count) {
    const int64_t from = diagonal ? r : 0;
    multiply(count, columns, (queries - from + 1) / 2, weights + r * kBlock + from, kBlock,
             rows + pair_at(from / 2, 0, kBlockPanel), kBlockPanel, to + r * columns, columns, more, nullptr);
  });
}

// Scores are of unscaled queries. With a soft cap they are scaled and capped here; else the softmax scales them.
inline void cap_raw_scores(float* scores, const BlockPair& b, float scale, float cap) {
  const Vec factor = splat(scale / cap), limit = splat(cap);
  for (int64_t q = 0; q < b.queries; q += kLanes)
    for (int64_t k = 0; k < attended_keys(b.diagonal, b.keys, q); ++k) {
      float* at = scores + k * kBlock + q;
      store(at, limit * tanh(load(at) * factor));
    }
}
inline float unit_of(const AttentionShape& h) { return h.softcap > 0 ? 1 : h.scale; }  // of the softmax's scores

// 2^x for x up to 127, relative error below 3e-6, less than a hundredth of what rounding to bf16 adds: 2^n, for an
// integer n, times a polynomial in the rest. 0 from -127 down, or subnormal; NaN propagates.
inline Vec exp2(Vec x) {
#if defined(__AVX512DQ__)
  const Vec r = _mm512_maskz_reduce_ps(0xFFFF, x, 9);  // x - floor(x)
  Vec p = fma(splat(1.3426684273e-2f), r, splat(5.2242474221e-2f));
  p = fma(p, r, splat(2.4128020475e-1f));
  p = fma(p, r, splat(6.930448449e-1f));
  p = fma(p, r, splat(1.0f));
  return _mm512_maskz_scalef_ps(0xFFFF, p, x);  // p 2^floor(x)
#else
  const Vec c = max(splat(-127.0f), x), magic = splat(12582912.0f);  // 1.5 * 2^23, as in exp()
  const Vec shifted = c + magic, r = c - (shifted - magic);
  Vec p = fma(splat(9.582852945e-3f), r, splat(5.5906426162e-2f));
  p = fma(p, r, splat(2.4024099112e-1f));
  p = fma(p, r, splat(6.9312417507e-1f));
  p = fma(p, r, splat(1.0f));
  return (Vec)((VecInt)p + ((VecInt)shifted << 23));
#endif
}

// Vectors rounded to bf16, and the pairs of two. Subnormal numbers may become 0.
#if defined(__AVX512BF16__)
typedef VecU16 Rounded;
inline Rounded rounded(Vec x) { return (VecU16)_mm512_cvtneps_pbh(x); }
template <int... kLane>
inline VecBits alternate_lanes(VecU16 low, VecU16 high, std::integer_sequence<int, kLane...>) {
  return (VecBits)__builtin_shufflevector(low, high, (kLane / 2 + kLane % 2 * kLanes)...);
}
inline VecBits pair_of(Rounded low, Rounded high) {
  return alternate_lanes(low, high, std::make_integer_sequence<int, 2 * kLanes>{});
}
inline void store_rounded(uint16_t* p, Rounded v) { __builtin_memcpy(p, &v, sizeof v); }
#else
// In the upper halves of lanes; the lower ones are not cleared. A NaN stays one: those of sums of bf16 products have
// payloads that rounding does not carry beyond.
typedef VecBits Rounded;
inline Rounded rounded(Vec x) {
  const VecBits u = (VecBits)x;
  return u + 0x7FFFu + (u >> 16 & 1u);
}
inline VecBits pair_of(Rounded low, Rounded high) { return low >> 16 | (high & 0xFFFF0000u); }
inline void store_rounded(uint16_t* p, Rounded v) {
  const VecU16 bits = __builtin_convertvector(v >> 16, VecU16);
  __builtin_memcpy(p, &bits, sizeof bits);
}
#endif

// soften() of simd_attention.h for weights e^(unit (score - top)), which become pairs of keys, rounded. `hidden`: keys
// of the block before the first, whose weights are 0.
inline void soften_pairs(float* scores, int64_t hidden, const BlockPair& b, const float* drop, float unit, float* top,
                         float* total, float* fade, uint32_t* weights) {
  const Vec c = splat(unit * kLog2E);
  for (int64_t q = 0; q < b.queries; q += kLanes) {
    float* column = scores + q;
    uint32_t* to = weights + pair_at(0, q, kBlockPanel);
    const int64_t attended = attended_keys(b.diagonal, b.keys, q);
    const Vec before = load(top + q), now = greatest_score(column, b, q, before);
    // A query without a key so far: -inf - -inf would be NaN.
    const Vec less = (b.cut() ? max(now, splat(-1e30f)) : now) * -c;
    Vec sum{};
    const auto weight = [&](int64_t k) {
      const Vec p = exp2(fma(load(column + k * kBlock), c, less));
      sum += p;
      return rounded(drop == nullptr ? p : p * load(drop + k * kBlock + q));
    };
    for (int64_t k = 0; k + 1 < hidden; k += 2) store_bits(to + k / 2 * kPairColumns, VecBits{});
    int64_t k = 0;
    if (hidden % 2 != 0) store_bits(to + hidden / 2 * kPairColumns, pair_of(Rounded{}, weight(k++)));
    for (; k + 1 < attended; k += 2) {
      const Rounded low = weight(k), high = weight(k + 1);
      store_bits(to + (hidden + k) / 2 * kPairColumns, pair_of(low, high));
    }
    if (k < attended) store_bits(to + (hidden + k) / 2 * kPairColumns, pair_of(weight(k), Rounded{}));
    const Vec f = exp2(fma(before, c, less));
    store(top + q, now);
    store(total + q, fma(load(total + q), f, sum));
    store(fade + q, f);
  }
}

// attend() of simd_attention.h. `values`: turn_values of at least keys [begin, end).
inline void attend_bf16(const AttentionHead<uint16_t>& h, int64_t queries, int64_t first, KeyRange range, bool masked,
                        const float* values, PairGemm multiply, float* lse, float* scratch) {
  const auto [begin, end] = range;
  uint32_t *turned = as_pairs(scratch), *weights = turned + h.dim * kPairs;
  float *acc = scratch + h.dim * kPairs + kPairs * kBlock, *scores = acc + h.dim * kBlock;
  float *drop = scores + kBlock * kBlock, *top = drop + kBlock * kBlock;
  float *total = top + kBlock, *fade = total + kBlock;
  turn_rows(h.q.row(first), h.q.stride, queries, h.dim, dim_panel(h.dim), turned);
  for (int64_t q = 0; q < kBlock; ++q) top[q] = -__builtin_inff(), total[q] = 0;
  if (begin >= end) __builtin_memset(acc, 0, static_cast<uint64_t>(kBlock * h.dim) * sizeof(float));

  BlockPair pair;
  for (int64_t key = begin, keys = 0; key < end; key += keys) {
    // Pairs of keys begin where those of whole blocks do: keys before the first have the weight 0.
    const int64_t hidden = key % kBlock;
    keys = least(kBlock - hidden, end - key);
    float* from = scores + hidden * kBlock;
    make_pair(h, key, keys, first, queries, masked, pair);
    const bool diagonal = pair.diagonal;
    score_bf16(multiply, h.k.row(key), h.k.stride, keys, turned, queries, h.dim, diagonal, from);
    if (h.softcap > 0) cap_raw_scores(from, pair, h.scale, h.softcap);
    soften_pairs(from, hidden, pair, factors_of_block(h, first, queries, key, keys, diagonal, drop), unit_of(h), top,
                 total, fade, weights);
    for (int64_t q = 0; key > begin && q < queries; q += kLanes) {
      const Vec f = load(fade + q);
      for (int64_t d = 0; d < h.dim; ++d) store(acc + d * kBlock + q, load(acc + d * kBlock + q) * f);
    }
    const auto* rows = reinterpret_cast<const uint32_t*>(values + key / kBlock * h.dim * kPairs);
    to_queries_bf16(multiply, rows, weights, hidden + keys, queries, h.dim, diagonal, acc, key > begin);
  }

  for (int64_t q = 0; q < queries; q += kLanes) {
    const Vec sum = load(total + q);
    store(fade + q, sum > Vec{} ? splat(1.0f) / sum : Vec{});  // 0 of a query that saw no key
  }
  turn_back(acc, fade, queries, h.dim, h.out.row(first), h.out.stride);
  for (int64_t q = 0; lse != nullptr && q < queries; ++q) lse[q] = top[q] * unit_of(h) + __builtin_logf(total[q]);
}

int64_t attention_scratch_bf16(int64_t dim) {
  return dim * (kPairs + kBlock) + kPairs * kBlock + 2 * kBlock * kBlock + 3 * kBlock;
}

void attention_block_bf16(const AttentionHead<uint16_t>& h, int64_t first, const float* values, PairGemm multiply,
                          float* scratch) {
  attend_bf16(h, least(kBlock, h.queries - first), first, keys_of(h, first), true, values, multiply, h.lse + first,
              scratch);
}

void attention_query_bf16(const AttentionHead<uint16_t>& h, int64_t begin, int64_t end, const float* values,
                          PairGemm multiply, float* scratch) {
  attend_bf16(h, 1, 0, {begin, end}, false, values, multiply, nullptr, scratch);
}

// A block of queries, right operands: pairs along dim, and along queries.
struct TurnedPairs {
  RowSums sums;
  uint32_t *q, *dout, *q_rows, *dout_rows;
  float* dq;  // [dim][kBlock]
};
inline int64_t turned_pairs_floats(int64_t dim) {
  return 2 * kBlock + dim * kBlock + 2 * kPairs * (dim + whole_panels(dim));
}

// Memory of a call: blocks of queries, then of scores and a block of keys.
struct GradScratch {
  int64_t dim;
  float *scores, *dp, *drop, *dk, *dv, *blocks;
  uint32_t *p_rows, *ds_rows, *ds, *k;
  GradScratch(int64_t dim, float* at) : dim(dim) {
    scores = at, dp = scores + kBlock * kBlock, drop = dp + kBlock * kBlock;
    dk = drop + kBlock * kBlock, dv = dk + kBlock * whole_vectors(dim);
    p_rows = as_pairs(dv + kBlock * whole_vectors(dim));
    ds_rows = p_rows + kBlock * kPairs, ds = ds_rows + kBlock * kPairs, k = ds + kBlock * kPairs;
    blocks = reinterpret_cast<float*>(k + dim * kPairs);
  }
  static int64_t floats(int64_t dim) {
    return 3 * kBlock * kBlock + 2 * kBlock * whole_vectors(dim) + 3 * kBlock * kPairs + dim * kPairs;
  }
  TurnedPairs block(int64_t index) const {
    TurnedPairs t;
    t.sums.lse = blocks + index * turned_pairs_floats(dim), t.sums.dot = t.sums.lse + kBlock;
    t.dq = t.sums.dot + kBlock;
    t.q = as_pairs(t.dq + dim * kBlock), t.dout = t.q + kPairs * dim;
    t.q_rows = t.dout + kPairs * dim, t.dout_rows = t.q_rows + kPairs * whole_panels(dim);
    return t;
  }
};

int64_t attention_grad_scratch_bf16(int64_t queries, int64_t dim, int64_t heads) {
  return GradScratch::floats(dim) + heads * blocks_of(queries) * turned_pairs_floats(dim);
}

inline void turn_block_bf16(const AttentionHead<uint16_t>& h, int64_t first, const TurnedPairs& to) {
  const int64_t queries = least(kBlock, h.queries - first);
  const uint16_t *q = h.q.row(first), *dout = h.dout.row(first);
  turn_rows(q, h.q.stride, queries, h.dim, dim_panel(h.dim), to.q);
  turn_rows(dout, h.dout.stride, queries, h.dim, dim_panel(h.dim), to.dout);
  pair_rows({q, h.q.stride, 0, queries}, h.dim, kBlockPanel, to.q_rows);
  pair_rows({dout, h.dout.stride, 0, queries}, h.dim, kBlockPanel, to.dout_rows);
  for (int64_t i = 0; i < kBlock; ++i) to.sums.lse[i] = to.sums.dot[i] = 0;
  for (int64_t i = 0; i < queries; ++i) {
    const uint16_t *o = h.out.row(first + i), *g = h.dout.row(first + i);
    to.sums.lse[i] = h.lse[first + i];
    to.sums.dot[i] = sum_lanes(fold(
        h.dim, Vec{},
        [=](Vec acc, int64_t d, auto lanes) {
          return fma((Vec)(load_bf16(o + d, lanes) << 16), (Vec)(load_bf16(g + d, lanes) << 16), acc);
        },
        [](Vec a, Vec b) { return a + b; }));
  }
}

// soften_grad() of simd_attention.h with rounded results: rows of keys, and those of ds also as pairs of keys.
inline void soften_grad_pairs(const AttentionShape& h, const GradScratch& s, const BlockPair& b, const float* drop,
                              const RowSums& sums) {
  const Vec c = splat(unit_of(h) * kLog2E), factor = splat(h.scale);
  const Vec inverse = splat(h.softcap > 0 ? 1 / h.softcap : 0);
  const bool cut = b.cut();
  auto *p_rows = reinterpret_cast<uint16_t*>(s.p_rows), *ds_rows = reinterpret_cast<uint16_t*>(s.ds_rows);
  for (int64_t q = 0; q < b.queries; q += kLanes) {
    const Vec less = load(sums.lse + q) * splat(-kLog2E), dot = load(sums.dot + q) * -factor;
    const auto gradient = [&](int64_t k) {
      const int64_t at = k * kBlock + q;
      const Vec score = load(s.scores + at), part = score * inverse;
      Vec p = exp2(fma(score, c, less)), dp = load(s.dp + at);
      if (b.later) p = is_later(b, k, q) ? Vec{} : p;
      if (cut) p = is_behind(b, k, q) ? Vec{} : p;
      if (drop != nullptr) dp *= load(drop + at);
      Vec ds = p * fma(dp, factor, dot);
      if (h.softcap > 0) ds *= splat(1.0f) - part * part;
      store_rounded(p_rows + at, rounded(drop == nullptr ? p : p * load(drop + at)));
      const Rounded bits = rounded(ds);
      store_rounded(ds_rows + at, bits);
      return bits;
    };
    const int64_t attended = attended_keys(b.diagonal, b.keys, q);
    for (int64_t k = 0; k < attended; k += 2) {
      const Rounded low = gradient(k), high = k + 1 < attended ? gradient(k + 1) : Rounded{};
      store_bits(s.ds + pair_at(k / 2, q, kBlockPanel), pair_of(low, high));
    }
  }
}

inline void zero_rows_bf16(const RowsOf<uint16_t>& rows, int64_t first, int64_t end, int64_t dim) {
  for (int64_t r = first; r < end; ++r) __builtin_memset(rows.row(r), 0, static_cast<uint64_t>(dim) * sizeof(uint16_t));
}

// attention_grad_heads() of simd_attention.h: the same order of blocks and of sums.
void attention_grad_heads_bf16(const AttentionHead<uint16_t>* heads, int64_t count, PairGemm multiply, float* scratch) {
  const AttentionHead<uint16_t>& any = heads[0];
  const int64_t dim = any.dim, blocks = blocks_of(any.queries), attended = attended_rows(any);
  const int64_t columns = whole_vectors(dim);
  const GradScratch s(dim, scratch);
  BlockPair pair;
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t b = 0; b < blocks; ++b) turn_block_bf16(heads[n], b * kBlock, s.block(n * blocks + b));
  }
  for (int64_t key = 0; key < attended; key += kBlock) {
    const int64_t keys = least(kBlock, attended - key);
    const uint16_t *k = any.k.row(key), *v = any.v.row(key);
    turn_pairs({k, any.k.stride, 0, keys}, dim, kPairs, s.k);
    bool more = false;
    for_readers(heads, count, key, [&](int64_t n, int64_t first, KeyRange range) {
      const AttentionHead<uint16_t>& h = heads[n];
      const int64_t queries = least(kBlock, h.queries - first);
      const TurnedPairs b = s.block(n * blocks + first / kBlock);
      make_pair(h, key, keys, first, queries, true, pair);
      const bool diagonal = pair.diagonal;
      score_bf16(multiply, k, h.k.stride, keys, b.q, queries, dim, diagonal, s.scores);
      score_bf16(multiply, v, h.v.stride, keys, b.dout, queries, dim, diagonal, s.dp);
      if (h.softcap > 0) cap_raw_scores(s.scores, pair, h.scale, h.softcap);
      soften_grad_pairs(h, s, pair, factors_of_block(h, first, queries, key, keys, diagonal, s.drop), b.sums);
      to_keys_bf16(multiply, as_bf16(s.p_rows), b.dout_rows, keys, queries, columns, diagonal, s.dv, more);
      to_keys_bf16(multiply, as_bf16(s.ds_rows), b.q_rows, keys, queries, columns, diagonal, s.dk, more);
      to_queries_bf16(multiply, s.k, s.ds, keys, queries, dim, diagonal, b.dq, key > range.begin);
      more = true;
    });
    for (int64_t r = 0; more && r < keys; ++r) {
      store_row_bf16(any.dk.row(key + r), s.dk + r * columns, dim);
      store_row_bf16(any.dv.row(key + r), s.dv + r * columns, dim);
    }
    if (!more) zero_rows_bf16(any.dk, key, key + keys, dim), zero_rows_bf16(any.dv, key, key + keys, dim);
  }
  zero_rows_bf16(any.dk, attended, any.keys, dim);
  zero_rows_bf16(any.dv, attended, any.keys, dim);
  for (int64_t i = 0; i < kBlock; ++i) s.drop[i] = 1;
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t b = 0; b < blocks; ++b)
      turn_back(s.block(n * blocks + b).dq, s.drop, least(kBlock, any.queries - b * kBlock), dim,
                heads[n].dq.row(b * kBlock), heads[n].dq.stride);
    zero_blind_queries(heads[n], [&](int64_t first, int64_t end) { zero_rows_bf16(heads[n].dq, first, end, dim); });
  }
}

}  // namespace
}  // namespace gt::cpu
