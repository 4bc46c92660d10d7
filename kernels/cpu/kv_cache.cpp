// KV cache of generation on the CPU: appending tokens, and attention over the cache.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

struct CacheShape {
  int64_t sequences, kv_heads, capacity, dim;
};

// Checks the cache, and `heads` heads of a view of new rows.
template <class P>
CacheShape validate(const char* op, const P& p, const char* name, const HeadView& rows, int64_t heads) {
  const Shape& s = p.keys.shape;
  GT_CHECK(s.rank == 4 && s == p.values.shape && s[1] > 0 && heads > 0 && heads % s[1] == 0, op, ": keys ",
           to_string(s), ", values ", to_string(p.values.shape), ", heads ", heads);
  require_same(op, {name, rows.rows}, {{"keys", p.keys}, {"values", p.values}});
  require_dtype(op, DType::kI32, {{"sequences", p.sequences}, {"positions", p.positions}});
  const CacheShape c{s[0], s[1], s[2], s[3]};
  const int64_t n = p.positions.numel();
  require_numel(op, n, {{"sequences", p.sequences}});
  GT_CHECK(rows.rows.shape.rows() == n && rows.column + heads * c.dim <= rows.pitch(), op, ": ", name, " ",
           to_string(rows.rows.shape), " from column ", rows.column, " on, for ", n, " tokens of ", heads, " heads of ",
           c.dim);
  for (int64_t r = 0; r < n; ++r) {
    const int32_t position = p.positions.template as<int32_t>()[r], sequence = p.sequences.template as<int32_t>()[r];
    GT_CHECK(position >= 0 && position < c.capacity && sequence >= 0 && sequence < c.sequences, op, ": position ",
             position, " of sequence ", sequence, " in a cache of ", c.sequences, " x ", c.capacity);
  }
  return c;
}

// Offset of the first element of a KV head in the cache.
int64_t head_at(const CacheShape& c, int64_t sequence, int64_t head) {
  return (sequence * c.kv_heads + head) * c.capacity * c.dim;
}

}  // namespace

void store_kv(const StoreKv& p, Stream s) {
  const CacheShape c = validate("store_kv", p, "k", p.k, p.keys.shape[1]);
  validate("store_kv", p, "v", p.v, c.kv_heads);
  const int64_t size = size_of(p.keys.dtype), bytes = c.dim * size;
  parallel_for(s, p.positions.numel(), 32, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        const int64_t to = head_at(c, p.sequences.as<int32_t>()[r], h) + p.positions.as<int32_t>()[r] * c.dim;
        const auto copy = [&](const HeadView& from, const Tensor& cache) {
          std::memcpy(cache.data + to * size, from.data() + r * from.pitch() * size + h * bytes,
                      static_cast<size_t>(bytes));
        };
        copy(p.k, p.keys), copy(p.v, p.values);
      }
  });
}

namespace {

// What the queries of a row and a KV head read: keys [begin, end) of the row's sequence, from element `at` of the cache
// on. They are indexed from the beginning of the block that holds the first key, `skipped` keys before it.
struct Span {
  int64_t row, kv, begin, end, at, skipped;
  int64_t query(const CachedAttention& p, const CacheShape& c, int64_t head) const {
    return row * p.q.pitch() + p.q.column + head * c.dim;
  }
  int64_t out(const CachedAttention& p, const CacheShape& c, int64_t head) const {
    return (row * p.heads + head) * c.dim;
  }
};

Span span_of(const CachedAttention& p, const CacheShape& c, int64_t i) {
  Span s{.row = i / c.kv_heads, .kv = i % c.kv_heads};
  s.end = p.positions.as<int32_t>()[s.row] + 1;
  s.begin = p.window > 0 ? std::max<int64_t>(0, s.end - p.window) : 0;
  s.skipped = s.begin % kAttentionBlock;
  s.at = head_at(c, p.sequences.as<int32_t>()[s.row], s.kv) + s.begin * c.dim;
  return s;
}

template <class T>
AttentionHead<T> head_of(const CachedAttention& p, const CacheShape& c, const T* k, const T* v) {
  AttentionHead<T> h{};
  h.dim = c.dim, h.scale = p.scale, h.softcap = p.softcap;
  h.k = {k, c.dim}, h.v = {v, c.dim};
  return h;
}

// f32 in place, 16-bit rows widened once for all queries that read them.
void query_f32(const CachedAttention& p, const CacheShape& c, const Span& s, const Simd& f, CpuContext& context,
               int thread) {
  const int64_t own = f.attention_scratch(c.dim), whole = c.capacity * c.dim, group = p.heads / c.kv_heads;
  float* scratch = context.thread_scratch<float>(thread, own + (is_16bit(p.out.dtype) ? 2 * whole + 2 * c.dim : 0));
  float *k_scratch = scratch + own, *v_scratch = k_scratch + whole, *q_scratch = v_scratch + whole,
        *out_scratch = q_scratch + c.dim;
  const int64_t before = s.skipped * c.dim, count = (s.end - s.begin) * c.dim;
  AttentionHead<float> h = head_of(p, c, read(f, p.keys, s.at, count, k_scratch + before) - before,
                                   read(f, p.values, s.at, count, v_scratch + before) - before);
  for (int64_t head = s.kv * group; head < (s.kv + 1) * group; ++head) {
    h.q = {read(f, p.q.rows, s.query(p, c, head), c.dim, q_scratch), c.dim};
    h.out = {target(p.out, s.out(p, c, head), out_scratch), c.dim};
    f.attention_query(h, s.skipped, s.end - s.begin + s.skipped, scratch);
    write(f, p.out, s.out(p, c, head), c.dim, h.out.at);
  }
}

void query_bf16(const CachedAttention& p, const CacheShape& c, const Span& s, const Simd& f, CpuContext& context,
                int thread) {
  const int64_t own = f.attention_scratch_bf16(c.dim), group = p.heads / c.kv_heads;
  const int64_t end = s.end - s.begin + s.skipped, at = s.at - s.skipped * c.dim;
  float* scratch = context.thread_scratch<float>(thread, own + f.values_floats(c.capacity, c.dim));
  AttentionHead<uint16_t> h = head_of<uint16_t>(p, c, p.keys.as<uint16_t>() + at, p.values.as<uint16_t>() + at);
  f.turn_values(h, s.skipped, end, scratch + own);
  for (int64_t head = s.kv * group; head < (s.kv + 1) * group; ++head) {
    h.q = {p.q.rows.as<uint16_t>() + s.query(p, c, head), c.dim};
    h.out = {p.out.as<uint16_t>() + s.out(p, c, head), c.dim};
    f.attention_query_bf16(h, s.skipped, end, scratch + own, native_pair_gemm(), scratch);
  }
}

}  // namespace

// Parallel over (row, KV head): its queries share keys and values that are widened or turned once.
void cached_attention(const CachedAttention& p, Stream s) {
  const CacheShape c = validate("cached_attention", p, "q", p.q, p.heads);
  const int64_t n = p.positions.numel();
  require_same("cached_attention", {"q", p.q.rows}, {{"out", p.out}});
  require_numel("cached_attention", n * p.heads * c.dim, {{"out", p.out}});
  GT_CHECK(p.window >= 0 && p.softcap >= 0, "cached_attention: window ", p.window, ", softcap ", p.softcap);
  CpuContext& context = cpu_context(s);
  const bool bf16 = attention_pair_gemm(p.out.dtype, c.dim) != nullptr;
  parallel_for(s, n * c.kv_heads, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    const HeldTiles held;
    for (int64_t i = begin; i < end; ++i) (bf16 ? query_bf16 : query_f32)(p, c, span_of(p, c, i), f, context, thread);
  });
}

}  // namespace gt::cpu
