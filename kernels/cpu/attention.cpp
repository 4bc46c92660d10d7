// Attention on the CPU: which thread computes which heads and blocks. The arithmetic is in simd_attention.h, and in
// simd_attention_bf16.h where the processor multiplies bf16. Other heads of 16-bit values are widened into the thread's
// scratch for the former.
#include <algorithm>
#include <utility>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

template <class P>
void validate(const char* op, const P& p) {
  GT_CHECK(p.batch >= 0 && p.seq >= 0 && p.heads > 0 && p.kv_heads > 0 && p.head_dim > 0 && p.heads % p.kv_heads == 0,
           op, ": batch ", p.batch, ", seq ", p.seq, ", heads ", p.heads, ", kv_heads ", p.kv_heads, ", head_dim ",
           p.head_dim);
  GT_CHECK(p.window >= 0 && p.softcap >= 0, op, ": window ", p.window, ", softcap ", p.softcap);
  GT_CHECK(p.full ? p.window == 0 : !p.lengths, op,
           p.full ? ": bidirectional, with a window" : ": causal, with lengths");
  const int64_t tokens = p.batch * p.seq;
  require_same(op, {"qkv", p.qkv}, {{"out", p.out}});
  require_f32(op, {{"lse", p.lse}});
  require_numel(op, tokens * (p.heads + 2 * p.kv_heads) * p.head_dim, {{"qkv", p.qkv}});
  require_numel(op, tokens * p.heads * p.head_dim, {{"out", p.out}});
  require_numel(op, tokens * p.heads, {{"lse", p.lse}});
  if (p.lengths) {
    require_dtype(op, DType::kI32, {{"lengths", p.lengths}});
    require_numel(op, p.batch, {{"lengths", p.lengths}});
    const auto* lengths = p.lengths.template as<int32_t>();
    for (int64_t b = 0; b < p.batch; ++b)
      GT_CHECK(lengths[b] >= 1 && lengths[b] <= p.seq, op, ": length ", lengths[b], " of sequence ", b, " of ", p.seq,
               " tokens");
  }
  if (!p.positions) return;
  GT_CHECK(!p.full, op, ": bidirectional, with documents");
  require_dtype(op, DType::kI32, {{"positions", p.positions}});
  require_numel(op, tokens, {{"positions", p.positions}});
  const auto* at = p.positions.template as<int32_t>();
  for (int64_t i = 0; i < tokens; ++i)
    GT_CHECK(at[i] == 0 || (i % p.seq > 0 && at[i] == at[i - 1] + 1), op, ": token ", i, " at position ", at[i],
             " of its document, the one before at ", i > 0 ? at[i - 1] : -1);
}

// Offsets of query head `head` of sequence `batch` and of its KV head, in elements of qkv and of out.
struct TilePosition {
  int64_t q, k, v, out, qkv_stride, out_stride;
};
template <class P>
TilePosition tile_position(const P& p, int64_t batch, int64_t head) {
  const int64_t kv = head / (p.heads / p.kv_heads), row = batch * p.seq;
  const int64_t in = (p.heads + 2 * p.kv_heads) * p.head_dim, out = p.heads * p.head_dim, q = row * in;
  const int64_t k = q + (p.heads + kv) * p.head_dim;
  return {.q = q + head * p.head_dim,
          .k = k,
          .v = k + p.kv_heads * p.head_dim,
          .out = row * out + head * p.head_dim,
          .qkv_stride = in,
          .out_stride = out};
}

// A head without its rows.
template <class T, class P>
AttentionHead<T> head_of(const P& p, int64_t batch, int64_t head) {
  AttentionHead<T> h{};
  h.drop = p.drop ? &p.drop.mask : nullptr, h.sample = p.drop.mask.first() + batch;
  h.head = p.drop.first_head + head;
  h.seq = p.seq, h.dim = p.head_dim, h.scale = p.scale, h.window = p.window, h.softcap = p.softcap;
  h.positions = p.positions ? p.positions.template as<int32_t>() + batch * p.seq : nullptr;
  h.lse = p.lse.template as<float>() + (batch * p.heads + head) * p.seq;
  if (p.full) h.keys = p.lengths ? p.lengths.template as<int32_t>()[batch] : p.seq;
  return h;
}

// Same for tensors of T, used in place.
template <class T, class P>
AttentionHead<T> stored_head(const P& p, int64_t batch, int64_t head) {
  AttentionHead<T> h = head_of<T>(p, batch, head);
  const TilePosition at = tile_position(p, batch, head);
  h.qkv_stride = at.qkv_stride, h.out_stride = at.out_stride;
  const T* qkv = p.qkv.template as<T>();
  h.q = qkv + at.q, h.k = qkv + at.k, h.v = qkv + at.v;
  h.out = p.out.template as<T>() + at.out;
  if constexpr (requires { p.dqkv; }) {
    h.dout = p.dout.template as<T>() + at.out;
    T* d = p.dqkv.template as<T>();
    h.dq = d + at.q, h.dk = d + at.k, h.dv = d + at.v;
  }
  return h;
}

// Copies rows [first, last) of a 16-bit head, which begins at element `at` of t, to and from the same rows of a dense
// f32 matrix.
void widen_rows(const Simd& f, const Tensor& t, int64_t at, int64_t stride, int64_t first, int64_t last, int64_t dim,
                float* to) {
  for (int64_t r = first; r < last; ++r) read(f, t, at + r * stride, dim, to + r * dim);
}
void narrow_rows(const Simd& f, const Tensor& t, int64_t at, int64_t stride, int64_t first, int64_t last, int64_t dim,
                 const float* from) {
  for (int64_t r = first; r < last; ++r) write(f, t, at + r * stride, dim, from + r * dim);
}

// 16-bit heads widened to dense f32. Keys and values are kept while following queries read them too.
class WideBlocks {
 public:
  WideBlocks(const Attention& p, const Simd& f) : p_(p), f_(f) {}
  int64_t floats() const { return f_.attention_scratch(p_.head_dim) + 4 * p_.seq * p_.head_dim; }

  void run(int64_t batch, int64_t head, int64_t first, float* scratch) {
    const TilePosition at = tile_position(p_, batch, head);
    const int64_t last = std::min(first + kAttentionBlock, p_.seq), size = p_.seq * p_.head_dim;
    float *q = scratch + f_.attention_scratch(p_.head_dim), *out = q + size, *k = out + size, *v = k + size;
    widen_rows(f_, p_.qkv, at.q, at.qkv_stride, first, last, p_.head_dim, q);
    if (at.k != key_at_) {
      widen_rows(f_, p_.qkv, at.k, at.qkv_stride, 0, p_.seq, p_.head_dim, k);
      widen_rows(f_, p_.qkv, at.v, at.qkv_stride, 0, p_.seq, p_.head_dim, v);
      key_at_ = at.k;
    }
    AttentionHead<float> h = head_of<float>(p_, batch, head);
    h.q = q, h.k = k, h.v = v, h.out = out, h.qkv_stride = h.out_stride = p_.head_dim;
    f_.attention(h, first, scratch);
    narrow_rows(f_, p_.out, at.out, at.out_stride, first, last, p_.head_dim, out);
  }

 private:
  const Attention& p_;
  const Simd& f_;
  int64_t key_at_ = -1;
};

constexpr int64_t kMaxGroup = 64;  // query heads that share a KV head

int64_t wide_grad_floats(const AttentionGrad& p, int64_t group) { return 4 * (group + 1) * p.seq * p.head_dim; }

// Gradient of KV head `kv` of sequence `batch` and of its queries, all in 16 bits; `wide`: memory for their f32 copies.
void wide_grad(const AttentionGrad& p, const Simd& f, int64_t batch, int64_t kv, int64_t group, float* scratch,
               float* wide) {
  const int64_t dim = p.head_dim, size = p.seq * dim;
  AttentionHead<float> heads[kMaxGroup];
  float *k = wide, *v = k + size, *dk = v + size, *dv = dk + size;
  for (int64_t g = 0; g < group; ++g) {
    AttentionHead<float>& h = heads[g] = head_of<float>(p, batch, kv * group + g);
    const TilePosition at = tile_position(p, batch, kv * group + g);
    float *q = wide + 4 * (g + 1) * size, *out = q + size, *dout = out + size;
    if (g == 0) widen_rows(f, p.qkv, at.k, at.qkv_stride, 0, p.seq, dim, k);
    if (g == 0) widen_rows(f, p.qkv, at.v, at.qkv_stride, 0, p.seq, dim, v);
    widen_rows(f, p.qkv, at.q, at.qkv_stride, 0, p.seq, dim, q);
    widen_rows(f, p.out, at.out, at.out_stride, 0, p.seq, dim, out);
    widen_rows(f, p.dout, at.out, at.out_stride, 0, p.seq, dim, dout);
    h.q = q, h.k = k, h.v = v, h.out = out, h.dout = dout, h.dq = dout + size, h.dk = dk, h.dv = dv;
    h.qkv_stride = h.out_stride = dim;
  }
  f.attention_grad(heads, group, scratch);
  for (int64_t g = 0; g < group; ++g) {
    const TilePosition at = tile_position(p, batch, kv * group + g);
    narrow_rows(f, p.dqkv, at.q, at.qkv_stride, 0, p.seq, dim, heads[g].dq);
    if (g == 0) narrow_rows(f, p.dqkv, at.k, at.qkv_stride, 0, p.seq, dim, dk);
    if (g == 0) narrow_rows(f, p.dqkv, at.v, at.qkv_stride, 0, p.seq, dim, dv);
  }
}

// Queries [first, first + kAttentionBlock) of heads, block by block: f32 in place.
class F32Blocks {
 public:
  F32Blocks(const Attention& p, const Simd& f) : p_(p), f_(f) {}
  int64_t floats() const { return f_.attention_scratch(p_.head_dim); }
  void run(int64_t batch, int64_t head, int64_t first, float* scratch) {
    f_.attention(stored_head<float>(p_, batch, head), first, scratch);
  }

 private:
  const Attention& p_;
  const Simd& f_;
};

// bf16 in place. Values are turned once while following queries read them too.
class Bf16Blocks {
 public:
  Bf16Blocks(const Attention& p, const Simd& f) : p_(p), f_(f) {}
  int64_t floats() const { return f_.attention_scratch_bf16(p_.head_dim) + f_.values_floats(p_.seq, p_.head_dim); }
  void run(int64_t batch, int64_t head, int64_t first, float* scratch) {
    const AttentionHead<uint16_t> h = stored_head<uint16_t>(p_, batch, head);
    float* values = scratch + f_.attention_scratch_bf16(p_.head_dim);
    if (std::exchange(turned_, h.v) != h.v) f_.turn_values(h, 0, p_.seq, values);
    f_.attention_bf16(h, first, values, native_pair_gemm(), scratch);
  }

 private:
  const Attention& p_;
  const Simd& f_;
  const uint16_t* turned_ = nullptr;
};

template <class Blocks>
void run_blocks(const Attention& p, Stream s) {
  const int64_t blocks = (p.seq + kAttentionBlock - 1) / kAttentionBlock, heads = p.batch * p.heads;
  CpuContext& context = cpu_context(s);
  parallel_for(s, heads * blocks, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    Blocks all(p, f);
    float* scratch = context.thread_scratch<float>(thread, all.floats());
    const HeldTiles held;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks;
      all.run(head / p.heads, head % p.heads, i % blocks * kAttentionBlock, scratch);
    }
  });
}

// Calls body(batch, kv_head, thread) for all.
template <class Body>
void for_kv_heads(const AttentionGrad& p, Stream s, Body body) {
  parallel_for(s, p.seq ? p.batch * p.kv_heads : 0, 1, [&](int64_t begin, int64_t end, int thread) {
    const HeldTiles held;
    for (int64_t i = begin; i < end; ++i) body(i / p.kv_heads, i % p.kv_heads, thread);
  });
}

}  // namespace

void attention(const Attention& p, Stream s) {
  validate("attention", p);
  if (p.qkv.dtype == DType::kF32) return run_blocks<F32Blocks>(p, s);
  attention_pair_gemm(p.qkv.dtype, p.head_dim) ? run_blocks<Bf16Blocks>(p, s) : run_blocks<WideBlocks>(p, s);
}

void attention_grad(const AttentionGrad& p, Stream s) {
  validate("attention_grad", p);
  require_same("attention_grad", {"qkv", p.qkv}, {{"dout", p.dout}, {"dqkv", p.dqkv}});
  require_numel("attention_grad", p.out.numel(), {{"dout", p.dout}});
  require_numel("attention_grad", p.qkv.numel(), {{"dqkv", p.dqkv}});
  const int64_t group = p.heads / p.kv_heads, dim = p.head_dim;
  GT_REQUIRE(group <= kMaxGroup, Exit::kUsage, "attention_grad on the CPU: ", group,
             " query heads share a KV head; at most ", kMaxGroup, " can");
  CpuContext& context = cpu_context(s);
  const Simd& f = simd();
  if (const PairGemm multiply = attention_pair_gemm(p.qkv.dtype, dim)) {
    for_kv_heads(p, s, [&](int64_t batch, int64_t kv, int thread) {
      float* scratch = context.thread_scratch<float>(thread, f.attention_grad_scratch_bf16(p.seq, dim, group));
      AttentionHead<uint16_t> heads[kMaxGroup];
      for (int64_t g = 0; g < group; ++g) heads[g] = stored_head<uint16_t>(p, batch, kv * group + g);
      f.attention_grad_bf16(heads, group, multiply, scratch);
    });
    return;
  }
  const bool wide = is_16bit(p.qkv.dtype);
  for_kv_heads(p, s, [&](int64_t batch, int64_t kv, int thread) {
    const int64_t own = f.attention_grad_scratch(p.seq, dim, group);
    float* scratch = context.thread_scratch<float>(thread, own + (wide ? wide_grad_floats(p, group) : 0));
    if (wide) return wide_grad(p, f, batch, kv, group, scratch, scratch + own);
    AttentionHead<float> heads[kMaxGroup];
    for (int64_t g = 0; g < group; ++g) heads[g] = stored_head<float>(p, batch, kv * group + g);
    f.attention_grad(heads, group, scratch);
  });
}

}  // namespace gt::cpu
