// Blocked attention, causal or bidirectional, with online softmax (Dao et al. 2022, FlashAttention) and its gradient;
// part of every simd_table.h. Scores are kept transposed, [keys][queries]: a vector holds one key's scores
// of neighbouring queries, so the softmax needs no sum across lanes and no operand but the queries is ever transposed.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/simd_dropout.h"
#include "kernels/cpu/simd/simd_gemm.h"
#include "kernels/cpu/simd/simd_transpose.h"
#include "kernels/cpu/simd/vec.h"

namespace gt::cpu {
namespace {

// The diagonal block is computed in strips of this many keys or queries, each up to the causal boundary. Elements
// beyond it are neither written nor read.
constexpr int64_t kStrip = 16;
static_assert(kStrip % kLanes == 0 && kBlock % kStrip == 0 && kBlock == kRowsPanel);

// Calls f(first, count) over [0, n): once, or per strip.
template <class F>
inline void strips(bool diagonal, int64_t n, F f) {
  const int64_t step = diagonal ? kStrip : n;
  for (int64_t i = 0; i < n; i += step) f(i, least(step, n - i));
}

// Number of keys that the queries of the vector (or strip) at q attend to.
inline int64_t attended_keys(bool diagonal, int64_t keys, int64_t q) {
  return diagonal ? least(keys, q / kStrip * kStrip + kStrip) : keys;
}

inline int64_t whole_vectors(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// scores[key][query] = rows of keys times transposed queries, where needed.
inline void score(const float* rows, int64_t stride, int64_t keys, const float* turned, int64_t queries, int64_t dim,
                  bool diagonal, float* scores) {
  strips(diagonal, keys, [=](int64_t r, int64_t count) {
    const int64_t from = diagonal ? r : 0;
    gemm_block(count, whole_vectors(queries) - from, dim, rows + r * stride, stride, 1, turned + from, kBlock,
               scores + r * kBlock + from, kBlock, false);
  });
}

// to[query] (+)= sum over keys of weights[key][query] * rows[key].
inline void to_queries(const float* weights, int64_t keys, int64_t queries, const float* rows, int64_t stride,
                       int64_t dim, bool diagonal, float* to, int64_t to_stride, bool more) {
  strips(diagonal, queries, [=](int64_t r, int64_t count) {
    gemm_block(count, dim, attended_keys(diagonal, keys, r), weights + r, 1, kBlock, rows, stride, to + r * to_stride,
               to_stride, more);
  });
}

// to[key] (+)= sum over queries of weights[key][query] * rows[query].
inline void to_keys(const float* weights, int64_t keys, int64_t queries, const float* rows, int64_t stride, int64_t dim,
                    bool diagonal, float* to, int64_t to_stride, bool more) {
  strips(diagonal, keys, [=](int64_t r, int64_t count) {
    const int64_t from = diagonal ? r : 0;
    gemm_block(count, dim, queries - from, weights + r * kBlock + from, kBlock, 1, rows + from * stride, stride,
               to + r * to_stride, to_stride, more);
  });
}

// 0, 1, 2, ...: query indices within one vector.
inline VecInt lane_numbers() {
  VecInt v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// A pair of blocks, `keys` x `queries`. ahead: position of the first query after that of the first key; diagonal: it is
// 0, and keys after their query are hidden. later: some are. reach: key k is behind the window of query q where
// q - k >= reach, both counted within their blocks; kEverywhere where that happens nowhere in the pair. starts: of each
// query the first key of its document, counted from the block's first key; unused where all documents begin before the
// pair (inside).
constexpr int64_t kEverywhere = 2 * kBlock;
struct BlockPair {
  int64_t keys, queries, ahead;
  bool diagonal, later;
  int64_t reach;
  bool inside = true;
  int32_t starts[kBlock];
  // Keys are hidden otherwise than on the diagonal: a query may see none of this block.
  bool cut() const { return reach != kEverywhere || !inside || (later && !diagonal); }
};
// Fills `b` for the rows of a head from `query` on, or (masked false) for one row that attends to all keys.
inline void make_pair(const AttentionShape& h, int64_t key, int64_t keys, int64_t query, int64_t queries, bool masked,
                      BlockPair& b) {
  const bool causal = masked && !h.full;
  b.keys = keys, b.queries = queries, b.ahead = h.at(query) - key;
  b.diagonal = causal && b.ahead == 0, b.later = causal && (b.diagonal || b.ahead < keys - 1);
  const int64_t reach = causal && h.window > 0 ? h.window - b.ahead : kEverywhere;
  b.reach = queries - 1 >= reach ? reach : kEverywhere;
  b.inside = true;
  if (!causal || h.documents == nullptr) return;
  const int64_t last = query + queries - 1;  // its document begins last
  b.inside = h.at(last) - h.documents[last] <= key;
  if (b.inside) return;
  for (int64_t q = 0; q < kBlock; ++q)
    b.starts[q] = q < queries ? static_cast<int32_t>(h.at(query + q) - h.documents[query + q] - key) : 0;
}
// Lanes of queries from q on that precede key k.
inline VecInt is_later(const BlockPair& b, int64_t k, int64_t q) {
  return lane_numbers() < static_cast<int32_t>(k - q - b.ahead);
}
// Lanes of queries from q on that do not see key k, because it is behind their window or in an earlier document.
inline VecInt is_behind(const BlockPair& b, int64_t k, int64_t q) {
  const VecInt behind = lane_numbers() >= static_cast<int32_t>(k - q + b.reach);
  return b.inside ? behind : behind | (load_as<VecInt>(b.starts + q) > static_cast<int32_t>(k));
}
// Keys that the block of queries at `query` reads: from the beginning of a block on. None: begin >= end.
struct KeyRange {
  int64_t begin, end;
};
inline KeyRange keys_of(const AttentionShape& h, int64_t query) {
  if (h.full) return {0, h.attended};
  const int64_t at = h.at(query), queries = least(kBlock, h.queries - query);
  const int64_t visible = h.window > 0 && h.window <= at ? at - h.window + 1 : 0;
  const int64_t start = h.documents != nullptr ? at - h.documents[query] : 0;
  return {(visible > start ? visible : start) / kBlock * kBlock, least(h.keys, at + queries)};
}
// The first block of queries that reads the block of keys at `key`.
inline int64_t first_query_of(const AttentionShape& h, int64_t key) {
  const int64_t query = h.full ? 0 : key - h.at(0);
  return query > 0 ? query / kBlock * kBlock : 0;
}

// Applies the soft cap: cap tanh(score / cap).
inline void cap_scores(float* scores, const BlockPair& b, float cap) {
  const Vec c = splat(cap), inverse = splat(1 / cap);
  for (int64_t q = 0; q < b.queries; q += kLanes)
    for (int64_t k = 0; k < attended_keys(b.diagonal, b.keys, q); ++k) {
      float* at = scores + k * kBlock + q;
      store(at, c * tanh(load(at) * inverse));
    }
}

int64_t attention_scratch_floats(int64_t dim) { return 2 * dim * kBlock + 2 * kBlock * kBlock + 3 * kBlock; }

// Writes the dropout factors of a pair of blocks, [key][query], to `to` and returns it; nullptr without dropout.
inline const float* factors_of_block(const AttentionShape& h, int64_t query, int64_t queries, int64_t key, int64_t keys,
                                     bool diagonal, float* to) {
  if (h.drop == nullptr) return nullptr;
  attention_factors(
      h, query, queries, key, [=](int64_t q) { return attended_keys(diagonal, keys, q); }, to);
  return to;
}

// The greatest of `before` and the scores of the vector of queries at q, of which hidden ones become -inf.
inline Vec greatest_score(float* column, const BlockPair& b, int64_t q, Vec before) {
  const Vec none = splat(-__builtin_inff());
  const bool cut = b.cut();
  Vec now = before;
  if (!cut && !b.diagonal) {  // four maxima side by side: one chain is bound by latency
    Vec most[4] = {before, before, before, before};
    int64_t k = 0;
    for (; k + 4 <= b.keys; k += 4)
      for (int64_t i = 0; i < 4; ++i) most[i] = max(most[i], load(column + (k + i) * kBlock));
    for (; k < b.keys; ++k) most[0] = max(most[0], load(column + k * kBlock));
    return max(max(most[0], most[1]), max(most[2], most[3]));
  }
  for (int64_t k = 0; k < attended_keys(b.diagonal, b.keys, q); ++k) {
    Vec s = load(column + k * kBlock);
    if (cut) store(column + k * kBlock, s = is_behind(b, k, q) ? none : s);
    if (b.later) store(column + k * kBlock, s = is_later(b, k, q) ? none : s);
    now = max(now, s);
  }
  return now;
}

// Adds one block of keys to the running softmax of the queries: scores become weights, and top and total are updated.
// fade: factor by which earlier output must be multiplied. `drop`: factors of the weights, laid out like scores, or
// nullptr; the total counts every weight.
inline void soften(float* scores, const BlockPair& b, const float* drop, float* top, float* total, float* fade) {
  for (int64_t q = 0; q < b.queries; q += kLanes) {
    float* column = scores + q;
    const Vec before = load(top + q), now = greatest_score(column, b, q, before);
    // A query without a key so far: -inf - -inf would be NaN.
    const Vec base = b.cut() ? max(now, splat(-__FLT_MAX__)) : now;
    Vec sum{};
    for (int64_t k = 0; k < attended_keys(b.diagonal, b.keys, q); ++k) {
      const Vec p = exp(load(column + k * kBlock) - base);
      store(column + k * kBlock, drop == nullptr ? p : p * load(drop + k * kBlock + q));
      sum += p;
    }
    const Vec f = exp(before - base);
    store(top + q, now);
    store(total + q, fma(load(total + q), f, sum));
    store(fade + q, f);
  }
}

// 1 / total, or 0 of a query that saw no key.
inline float inverse_of(float total) { return total > 0 ? 1.0f / total : 0.0f; }

// Computes softmax(q k^T) v of `queries` rows from `first` on, with `range` of keys, in blocks of keys that end at
// multiples of kBlock. masked: by position, window and document; else every query attends to all of them. lse may be
// nullptr.
inline void attend(const AttentionHead<float>& h, int64_t queries, int64_t first, KeyRange range, bool masked,
                   float* lse, float* scratch) {
  const auto [begin, end] = range;
  float *turned = scratch, *acc = turned + h.dim * kBlock, *scores = acc + h.dim * kBlock;
  float *drop = scores + kBlock * kBlock, *top = drop + kBlock * kBlock;
  float *total = top + kBlock, *fade = total + kBlock;
  transpose_rows(h.q.row(first), h.q.stride, queries, h.dim, h.scale, turned);
  for (int64_t q = 0; q < kBlock; ++q) top[q] = -__builtin_inff(), total[q] = 0;
  if (begin >= end) __builtin_memset(acc, 0, static_cast<uint64_t>(queries * h.dim) * sizeof(float));

  BlockPair pair;
  for (int64_t key = begin, keys = 0; key < end; key += keys) {
    keys = least(kBlock - key % kBlock, end - key);
    make_pair(h, key, keys, first, queries, masked, pair);
    const bool diagonal = pair.diagonal;
    score(h.k.row(key), h.k.stride, keys, turned, queries, h.dim, diagonal, scores);
    if (h.softcap > 0) cap_scores(scores, pair, h.softcap);
    soften(scores, pair, factors_of_block(h, first, queries, key, keys, diagonal, drop), top, total, fade);
    if (key > begin) {
      for (int64_t q = 0; q < queries; ++q) {
        float* row = acc + q * h.dim;
        const Vec f = splat(fade[q]);
        sweep(h.dim, [=](int64_t i, auto lanes) { lanes.store(row + i, lanes.load(row + i) * f); });
      }
    }
    to_queries(scores, keys, queries, h.v.row(key), h.v.stride, h.dim, diagonal, acc, h.dim, key > begin);
  }

  for (int64_t q = 0; q < queries; ++q) {
    const float* row = acc + q * h.dim;
    float* out = h.out.row(first + q);
    const Vec f = splat(inverse_of(total[q]));
    sweep(h.dim, [=](int64_t i, auto lanes) { lanes.store(out + i, lanes.load(row + i) * f); });
    if (lse != nullptr) lse[q] = top[q] + __builtin_logf(total[q]);
  }
}

inline int64_t blocks_of(int64_t rows) { return (rows + kBlock - 1) / kBlock; }

// Two score blocks and one of dropout factors. Then for every head and block of queries: transposed q and dout, lse,
// dot products of out and dout.
int64_t attention_grad_scratch_floats(int64_t queries, int64_t dim, int64_t heads) {
  return 3 * kBlock * kBlock + heads * blocks_of(queries) * kBlock * (2 * dim + 2);
}

void attention_block(const AttentionHead<float>& h, int64_t first, float* scratch) {
  attend(h, least(kBlock, h.queries - first), first, keys_of(h, first), true, h.lse + first, scratch);
}

// attention_block gives masked keys the weight 0. Omitting them here is bitwise identical.
void attention_query(const AttentionHead<float>& h, int64_t begin, int64_t end, float* scratch) {
  attend(h, 1, 0, {begin, end}, false, nullptr, scratch);
}

// Of each query: the logarithm of its softmax's sum, and the dot product of out and dout.
struct RowSums {
  float *lse, *dot;
};
struct TurnedBlock {
  float *q, *dout;
  RowSums sums;
};
inline TurnedBlock turned_block(float* scratch, int64_t index, int64_t dim) {
  float* at = scratch + 3 * kBlock * kBlock + index * kBlock * (2 * dim + 2);
  return {at, at + kBlock * dim, {at + 2 * kBlock * dim, at + 2 * kBlock * dim + kBlock}};
}

inline void turn_block(const AttentionHead<float>& h, int64_t first, const TurnedBlock& to) {
  const int64_t queries = least(kBlock, h.queries - first);
  transpose_rows(h.q.row(first), h.q.stride, queries, h.dim, h.scale, to.q);
  transpose_rows(h.dout.row(first), h.dout.stride, queries, h.dim, 1.0f, to.dout);
  for (int64_t q = 0; q < kBlock; ++q) to.sums.lse[q] = to.sums.dot[q] = 0;
  for (int64_t q = 0; q < queries; ++q) {
    const float *o = h.out.row(first + q), *g = h.dout.row(first + q);
    to.sums.lse[q] = h.lse[first + q];
    to.sums.dot[q] = sum_lanes(fold(
        h.dim, Vec{}, [=](Vec acc, int64_t i, auto lanes) { return fma(lanes.load(o + i), lanes.load(g + i), acc); },
        [](Vec a, Vec b) { return a + b; }));
  }
}

// scores -> weights p, dp -> ds = p (dp - dot) scale. With dropout factors f: p f and p (f dp - dot) scale, where dot,
// computed from the output, includes them. With a soft cap the scores are capped, and ds includes its derivative 1 -
// (score / cap)^2.
inline void soften_grad(float* scores, float* dp, const BlockPair& pair, const float* drop, const RowSums& sums,
                        float scale, float softcap) {
  const Vec factor = splat(scale), inverse = splat(softcap > 0 ? 1 / softcap : 0);
  const bool cut = pair.cut();
  for (int64_t q = 0; q < pair.queries; q += kLanes) {
    const Vec lse = load(sums.lse + q), dot = load(sums.dot + q);
    for (int64_t k = 0; k < attended_keys(pair.diagonal, pair.keys, q); ++k) {
      float *s = scores + k * kBlock + q, *d = dp + k * kBlock + q;
      const Vec score = load(s), part = score * inverse;
      Vec p = exp(score - lse);
      if (pair.later) p = is_later(pair, k, q) ? Vec{} : p;
      if (cut) p = is_behind(pair, k, q) ? Vec{} : p;
      const Vec f = drop == nullptr ? splat(1.0f) : load(drop + k * kBlock + q);
      const Vec ds = p * (drop == nullptr ? load(d) - dot : load(d) * f - dot) * factor;
      store(s, drop == nullptr ? p : p * f);
      store(d, softcap > 0 ? ds * (splat(1.0f) - part * part) : ds);
    }
  }
}

// Rows [first, end) of a matrix of `dim` columns become 0.
inline void zero_rows(const RowsOf<float>& rows, int64_t first, int64_t end, int64_t dim) {
  for (int64_t r = first; r < end; ++r) sweep(dim, [=](int64_t i, auto lanes) { lanes.store(rows.row(r) + i, Vec{}); });
}
// Keys of which some query may see any; the others have no gradient.
inline int64_t attended_rows(const AttentionShape& h) { return h.full ? h.attended : h.keys; }

// Calls f(n, first, range) for every head n and block of queries at `first` that reads the keys of the block at `key`.
template <class T, class F>
inline void for_readers(const AttentionHead<T>* heads, int64_t count, int64_t key, F f) {
  for (int64_t n = 0; n < count; ++n)
    for (int64_t first = first_query_of(heads[n], key); first < heads[n].queries; first += kBlock) {
      const KeyRange range = keys_of(heads[n], first);
      if (key < range.begin) break;  // what these queries see, and those behind them, begins later
      if (key < range.end) f(n, first, range);
    }
}
// Rows of queries that read no key have no gradient.
template <class T, class Zero>
inline void zero_blind_queries(const AttentionHead<T>& h, Zero zero) {
  for (int64_t first = 0; first < h.queries; first += kBlock) {
    const KeyRange range = keys_of(h, first);
    if (range.begin >= range.end) zero(first, least(first + kBlock, h.queries));
  }
}

// One pass over pairs of blocks, keys outside: the weights are computed once for all three gradients. dq of a query is
// summed over blocks of keys in ascending order, dk and dv over heads and blocks of queries in ascending order.
void attention_grad_heads(const AttentionHead<float>* heads, int64_t count, float* scratch) {
  const AttentionHead<float>& any = heads[0];
  const int64_t dim = any.dim, blocks = blocks_of(any.queries), attended = attended_rows(any);
  float *scores = scratch, *dp = scratch + kBlock * kBlock, *drop = dp + kBlock * kBlock;
  BlockPair pair;
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t b = 0; b < blocks; ++b) turn_block(heads[n], b * kBlock, turned_block(scratch, n * blocks + b, dim));
  }
  for (int64_t key = 0; key < attended; key += kBlock) {
    const int64_t keys = least(kBlock, attended - key);
    const float *k = any.k.row(key), *v = any.v.row(key);
    bool more = false;  // dk and dv hold a sum already
    for_readers(heads, count, key, [&](int64_t n, int64_t first, KeyRange range) {
      const AttentionHead<float>& h = heads[n];
      const int64_t queries = least(kBlock, h.queries - first);
      const TurnedBlock b = turned_block(scratch, n * blocks + first / kBlock, dim);
      make_pair(h, key, keys, first, queries, true, pair);
      const bool diagonal = pair.diagonal;
      score(k, h.k.stride, keys, b.q, queries, dim, diagonal, scores);
      score(v, h.v.stride, keys, b.dout, queries, dim, diagonal, dp);
      if (h.softcap > 0) cap_scores(scores, pair, h.softcap);
      soften_grad(scores, dp, pair, factors_of_block(h, first, queries, key, keys, diagonal, drop), b.sums, h.scale,
                  h.softcap);
      to_keys(scores, keys, queries, h.dout.row(first), h.dout.stride, dim, diagonal, h.dv.row(key), h.dv.stride, more);
      to_keys(dp, keys, queries, h.q.row(first), h.q.stride, dim, diagonal, h.dk.row(key), h.dk.stride, more);
      to_queries(dp, keys, queries, k, h.k.stride, dim, diagonal, h.dq.row(first), h.dq.stride, key > range.begin);
      more = true;
    });
    if (!more) zero_rows(any.dk, key, key + keys, dim), zero_rows(any.dv, key, key + keys, dim);
  }
  zero_rows(any.dk, attended, any.keys, dim);
  zero_rows(any.dv, attended, any.keys, dim);
  for (int64_t n = 0; n < count; ++n)
    zero_blind_queries(heads[n], [&](int64_t first, int64_t end) { zero_rows(heads[n].dq, first, end, dim); });
}

}  // namespace
}  // namespace gt::cpu
