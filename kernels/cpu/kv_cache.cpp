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
  int64_t sequences, kv_heads, capacity, dim, row;  // row: elements per row of qkv
};

template <class P>
CacheShape validate(const char* op, const P& p) {
  const Shape& s = p.keys.shape;
  GT_CHECK(s.rank == 4 && s == p.values.shape && p.heads > 0 && s[1] > 0 && p.heads % s[1] == 0, op, ": keys ",
           to_string(s), ", values ", to_string(p.values.shape), ", heads ", p.heads);
  require_same(op, {"qkv", p.qkv}, {{"keys", p.keys}, {"values", p.values}});
  require_dtype(op, DType::kI32, {{"sequences", p.sequences}, {"positions", p.positions}});
  const CacheShape c{s[0], s[1], s[2], s[3], (p.heads + 2 * s[1]) * s[3]};
  const int64_t n = p.positions.numel();
  require_numel(op, n, {{"sequences", p.sequences}});
  require_numel(op, n * c.row, {{"qkv", p.qkv}});
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
  const CacheShape c = validate("store_kv", p);
  const int64_t size = size_of(p.qkv.dtype), bytes = c.dim * size;
  parallel_for(s, p.positions.numel(), 32, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        const int64_t to = head_at(c, p.sequences.as<int32_t>()[r], h) + p.positions.as<int32_t>()[r] * c.dim;
        const std::byte* key = p.qkv.data + (r * c.row + (p.heads + h) * c.dim) * size;
        std::memcpy(p.keys.data + to * size, key, static_cast<size_t>(bytes));
        std::memcpy(p.values.data + to * size, key + c.kv_heads * bytes, static_cast<size_t>(bytes));
      }
  });
}

// Parallel over (row, KV head): its queries share keys and values that are widened once.
void cached_attention(const CachedAttention& p, Stream s) {
  const CacheShape c = validate("cached_attention", p);
  const int64_t n = p.positions.numel(), group = p.heads / c.kv_heads;
  require_same("cached_attention", {"qkv", p.qkv}, {{"out", p.out}});
  require_numel("cached_attention", n * p.heads * c.dim, {{"out", p.out}});
  GT_CHECK(p.window >= 0 && p.softcap >= 0, "cached_attention: window ", p.window, ", softcap ", p.softcap);
  CpuContext& context = cpu_context(s);
  const bool wide = is_16bit(p.qkv.dtype);
  parallel_for(s, n * c.kv_heads, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    const int64_t own = f.attention_scratch(c.dim), whole = c.capacity * c.dim;
    float* scratch = context.thread_scratch<float>(thread, own + (wide ? 2 * whole + 2 * c.dim : 0));
    float *k_scratch = scratch + own, *v_scratch = k_scratch + whole, *q_scratch = v_scratch + whole,
          *out_scratch = q_scratch + c.dim;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / c.kv_heads, kv = i % c.kv_heads, end = p.positions.as<int32_t>()[r] + 1;
      const int64_t begin = p.window > 0 ? std::max<int64_t>(0, end - p.window) : 0, skipped = begin % kAttentionBlock;
      const int64_t at = head_at(c, p.sequences.as<int32_t>()[r], kv) + begin * c.dim, count = (end - begin) * c.dim;
      AttentionHead h{};
      h.dim = h.qkv_stride = h.out_stride = c.dim;
      h.scale = p.scale, h.softcap = p.softcap;
      // Indexed from the beginning of the block that holds the first key.
      h.k = read(f, p.keys, at, count, k_scratch + skipped * c.dim) - skipped * c.dim;
      h.v = read(f, p.values, at, count, v_scratch + skipped * c.dim) - skipped * c.dim;
      for (int64_t g = 0; g < group; ++g) {
        const int64_t head = kv * group + g, to = (r * p.heads + head) * c.dim;
        h.q = read(f, p.qkv, r * c.row + head * c.dim, c.dim, q_scratch);
        h.out = target(p.out, to, out_scratch);
        f.attention_query(h, skipped, end - begin + skipped, scratch);
        write(f, p.out, to, c.dim, out_scratch);
      }
    }
  });
}

}  // namespace gt::cpu
