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

void validate(const char* op, const AttentionSpec& a) {
  GT_CHECK(a.batch >= 0 && a.queries >= 0 && a.keys >= 0 && a.heads > 0 && a.kv_heads > 0 && a.head_dim > 0 &&
               a.heads % a.kv_heads == 0,
           op, ": batch ", a.batch, ", queries ", a.queries, ", keys ", a.keys, ", heads ", a.heads, ", kv_heads ",
           a.kv_heads, ", head_dim ", a.head_dim);
  GT_CHECK(a.first_query >= 0 && a.first_key >= 0, op, ": queries from ", a.first_query, ", keys from ", a.first_key);
  GT_CHECK(a.window >= 0 && a.softcap >= 0, op, ": window ", a.window, ", softcap ", a.softcap);
  GT_CHECK(a.full ? a.window == 0 : !a.lengths, op,
           a.full ? ": bidirectional, with a window" : ": causal, with lengths");
  GT_CHECK(!a.drop || a.drop.seq >= std::max(a.first_query + a.queries, a.first_key + a.keys), op, ": dropout of ",
           a.drop.seq, " tokens");
  if (a.lengths) {
    require_dtype(op, DType::kI32, {{"lengths", a.lengths}});
    require_numel(op, a.batch, {{"lengths", a.lengths}});
    const auto* lengths = a.lengths.as<int32_t>();
    for (int64_t b = 0; b < a.batch; ++b)
      GT_CHECK(lengths[b] >= 1 && lengths[b] <= a.first_key + a.keys, op, ": length ", lengths[b], " of sequence ", b,
               " of ", a.first_key + a.keys, " tokens");
  }
  if (!a.documents) return;
  GT_CHECK(!a.full, op, ": bidirectional, with documents");
  require_dtype(op, DType::kI32, {{"documents", a.documents}});
  require_numel(op, a.batch * a.queries, {{"documents", a.documents}});
  const auto* at = a.documents.as<int32_t>();
  for (int64_t i = 0; i < a.batch * a.queries; ++i) {
    const int64_t query = i % a.queries;
    GT_CHECK(at[i] >= 0 && at[i] <= a.first_query + query && (query == 0 || at[i] == 0 || at[i] == at[i - 1] + 1), op,
             ": token ", i, " at position ", at[i], " of its document, the one before at ", i > 0 ? at[i - 1] : -1);
  }
}

// Checks that `heads` heads of `dim` fit into a view's rows, one a token.
void validate(const char* op, const char* name, const HeadView& v, int64_t tokens, int64_t heads, int64_t dim) {
  GT_CHECK(v.rows.shape.rows() == tokens || v.rows.numel() == 0, op, ": ", name, " ", to_string(v.rows.shape), " of ",
           tokens, " tokens");
  GT_CHECK(v.column >= 0 && v.column + heads * dim <= v.pitch(), op, ": ", name, " ", to_string(v.rows.shape),
           " from column ", v.column, " on, ", heads, " heads of ", dim);
}

template <class P>
void validate(const char* op, const P& p) {
  const AttentionSpec& a = p.spec;
  validate(op, a);
  require_same(op, {"q", p.q.rows}, {{"k", p.k.rows}, {"v", p.v.rows}, {"out", p.out}});
  require_f32(op, {{"lse", p.lse}});
  validate(op, "q", p.q, a.batch * a.queries, a.heads, a.head_dim);
  validate(op, "k", p.k, a.batch * a.keys, a.kv_heads, a.head_dim);
  validate(op, "v", p.v, a.batch * a.keys, a.kv_heads, a.head_dim);
  require_numel(op, a.batch * a.queries * a.heads * a.head_dim, {{"out", p.out}});
  require_numel(op, a.batch * a.queries * a.heads, {{"lse", p.lse}});
}

// A head without its rows.
template <class T, class P>
AttentionHead<T> head_of(const P& p, int64_t batch, int64_t head) {
  const AttentionSpec& a = p.spec;
  AttentionHead<T> h{};
  h.drop = a.drop ? &a.drop.mask : nullptr, h.sample = a.drop.mask.first() + batch;
  h.head = a.drop.first_head + head, h.drop_length = a.drop.seq;
  h.queries = a.queries, h.keys = a.keys, h.dim = a.head_dim, h.scale = a.scale, h.window = a.window;
  h.first_query = a.first_query, h.first_key = a.first_key, h.softcap = a.softcap;
  h.documents = a.documents ? a.documents.as<int32_t>() + batch * a.queries : nullptr;
  h.lse = p.lse.template as<float>() + (batch * a.heads + head) * a.queries;
  h.full = a.full;
  const int64_t length = a.lengths ? a.lengths.as<int32_t>()[batch] - a.first_key : a.keys;
  h.attended = std::clamp<int64_t>(length, 0, a.keys);
  return h;
}

// Rows of head `head` of a sequence whose first row is `row`.
template <class T>
RowsOf<T> rows_of(const HeadView& v, int64_t row, int64_t head, int64_t dim) {
  return {reinterpret_cast<T*>(v.data()) + row * v.pitch() + head * dim, v.pitch()};
}
HeadView heads_of(const Tensor& t, int64_t heads, int64_t dim) {
  return {t.view({t.numel() / (heads * dim), heads * dim})};
}

// The tensors of a head: of queries in q, out, dout, dq; of keys in k, v, dk, dv.
struct HeadRows {
  int64_t query_row, key_row, head, kv;
};
template <class P>
HeadRows rows_of_head(const P& p, int64_t batch, int64_t head) {
  const AttentionSpec& a = p.spec;
  return {batch * a.queries, batch * a.keys, head, head / (a.heads / a.kv_heads)};
}

// Same for tensors of T, used in place.
template <class T, class P>
AttentionHead<T> stored_head(const P& p, int64_t batch, int64_t head) {
  const int64_t dim = p.spec.head_dim;
  const HeadRows at = rows_of_head(p, batch, head);
  AttentionHead<T> h = head_of<T>(p, batch, head);
  h.q = rows_of<const T>(p.q, at.query_row, head, dim);
  h.k = rows_of<const T>(p.k, at.key_row, at.kv, dim);
  h.v = rows_of<const T>(p.v, at.key_row, at.kv, dim);
  h.out = rows_of<T>(heads_of(p.out, p.spec.heads, dim), at.query_row, head, dim);
  if constexpr (requires { p.dq; }) {
    h.dout = rows_of<const T>(heads_of(p.dout, p.spec.heads, dim), at.query_row, head, dim);
    h.dq = rows_of<T>(p.dq, at.query_row, head, dim);
    h.dk = rows_of<T>(p.dk, at.key_row, at.kv, dim);
    h.dv = rows_of<T>(p.dv, at.key_row, at.kv, dim);
  }
  return h;
}

// Copies rows [first, last) of a 16-bit head, whose row 0 is row `row` of v, to and from the same rows of a dense f32
// matrix.
void widen_rows(const Simd& f, const HeadView& v, int64_t row, int64_t head, int64_t first, int64_t last, int64_t dim,
                float* to) {
  for (int64_t r = first; r < last; ++r)
    read(f, v.rows, (row + r) * v.pitch() + v.column + head * dim, dim, to + r * dim);
}
void narrow_rows(const Simd& f, const HeadView& v, int64_t row, int64_t head, int64_t first, int64_t last, int64_t dim,
                 const float* from) {
  for (int64_t r = first; r < last; ++r)
    write(f, v.rows, (row + r) * v.pitch() + v.column + head * dim, dim, from + r * dim);
}

// 16-bit heads widened to dense f32. Keys and values are kept while following queries read them too.
class WideBlocks {
 public:
  WideBlocks(const Attention& p, const Simd& f) : p_(p), a_(p.spec), f_(f) {}
  int64_t floats() const { return f_.attention_scratch(a_.head_dim) + 2 * (a_.queries + a_.keys) * a_.head_dim; }

  void run(int64_t batch, int64_t head, int64_t first, float* scratch) {
    const int64_t dim = a_.head_dim, last = std::min(first + kAttentionBlock, a_.queries);
    const HeadRows at = rows_of_head(p_, batch, head);
    float *q = scratch + f_.attention_scratch(dim), *out = q + a_.queries * dim, *k = out + a_.queries * dim;
    float* v = k + a_.keys * dim;
    widen_rows(f_, p_.q, at.query_row, head, first, last, dim, q);
    if (std::exchange(wide_, batch * a_.kv_heads + at.kv) != batch * a_.kv_heads + at.kv) {
      widen_rows(f_, p_.k, at.key_row, at.kv, 0, a_.keys, dim, k);
      widen_rows(f_, p_.v, at.key_row, at.kv, 0, a_.keys, dim, v);
    }
    AttentionHead<float> h = head_of<float>(p_, batch, head);
    h.q = {q, dim}, h.k = {k, dim}, h.v = {v, dim}, h.out = {out, dim};
    f_.attention(h, first, scratch);
    narrow_rows(f_, heads_of(p_.out, a_.heads, dim), at.query_row, head, first, last, dim, out);
  }

 private:
  const Attention& p_;
  const AttentionSpec& a_;
  const Simd& f_;
  int64_t wide_ = -1;  // the KV head that is
};

constexpr int64_t kMaxGroup = 64;  // query heads that share a KV head

int64_t wide_grad_floats(const AttentionSpec& a, int64_t group) {
  return 4 * (group * a.queries + a.keys) * a.head_dim;
}

// Gradient of KV head `kv` of sequence `batch` and of its queries, all in 16 bits; `wide`: memory for their f32 copies.
void wide_grad(const AttentionGrad& p, const Simd& f, int64_t batch, int64_t kv, int64_t group, float* scratch,
               float* wide) {
  const AttentionSpec& a = p.spec;
  const int64_t dim = a.head_dim, rows = a.queries, key_size = a.keys * dim, size = rows * dim;
  const HeadRows at = rows_of_head(p, batch, kv * group);
  const HeadView outs = heads_of(p.out, a.heads, dim), douts = heads_of(p.dout, a.heads, dim);
  AttentionHead<float> heads[kMaxGroup];
  float *k = wide, *v = k + key_size, *dk = v + key_size, *dv = dk + key_size;
  widen_rows(f, p.k, at.key_row, kv, 0, a.keys, dim, k);
  widen_rows(f, p.v, at.key_row, kv, 0, a.keys, dim, v);
  for (int64_t g = 0; g < group; ++g) {
    AttentionHead<float>& h = heads[g] = head_of<float>(p, batch, kv * group + g);
    float *q = dv + key_size + 4 * g * size, *out = q + size, *dout = out + size;
    widen_rows(f, p.q, at.query_row, at.head + g, 0, rows, dim, q);
    widen_rows(f, outs, at.query_row, at.head + g, 0, rows, dim, out);
    widen_rows(f, douts, at.query_row, at.head + g, 0, rows, dim, dout);
    h.q = {q, dim}, h.k = {k, dim}, h.v = {v, dim}, h.out = {out, dim}, h.dout = {dout, dim};
    h.dq = {dout + size, dim}, h.dk = {dk, dim}, h.dv = {dv, dim};
  }
  f.attention_grad(heads, group, scratch);
  for (int64_t g = 0; g < group; ++g) narrow_rows(f, p.dq, at.query_row, at.head + g, 0, rows, dim, heads[g].dq.at);
  narrow_rows(f, p.dk, at.key_row, kv, 0, a.keys, dim, dk);
  narrow_rows(f, p.dv, at.key_row, kv, 0, a.keys, dim, dv);
}

// Queries [first, first + kAttentionBlock) of heads, block by block: f32 in place.
class F32Blocks {
 public:
  F32Blocks(const Attention& p, const Simd& f) : p_(p), f_(f) {}
  int64_t floats() const { return f_.attention_scratch(p_.spec.head_dim); }
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
  int64_t floats() const {
    return f_.attention_scratch_bf16(p_.spec.head_dim) + f_.values_floats(p_.spec.keys, p_.spec.head_dim);
  }
  void run(int64_t batch, int64_t head, int64_t first, float* scratch) {
    const AttentionHead<uint16_t> h = stored_head<uint16_t>(p_, batch, head);
    float* values = scratch + f_.attention_scratch_bf16(h.dim);
    if (std::exchange(turned_, h.v.at) != h.v.at) f_.turn_values(h, 0, h.keys, values);
    f_.attention_bf16(h, first, values, native_pair_gemm(), scratch);
  }

 private:
  const Attention& p_;
  const Simd& f_;
  const uint16_t* turned_ = nullptr;
};

template <class Blocks>
void run_blocks(const Attention& p, Stream s) {
  const AttentionSpec& a = p.spec;
  const int64_t blocks = (a.queries + kAttentionBlock - 1) / kAttentionBlock, heads = a.batch * a.heads;
  CpuContext& context = cpu_context(s);
  parallel_for(s, heads * blocks, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    Blocks all(p, f);
    float* scratch = context.thread_scratch<float>(thread, all.floats());
    const HeldTiles held;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks;
      all.run(head / a.heads, head % a.heads, i % blocks * kAttentionBlock, scratch);
    }
  });
}

// Calls body(batch, kv_head, thread) for all.
template <class Body>
void for_kv_heads(const AttentionSpec& a, Stream s, Body body) {
  parallel_for(s, a.queries + a.keys > 0 ? a.batch * a.kv_heads : 0, 1, [&](int64_t begin, int64_t end, int thread) {
    const HeldTiles held;
    for (int64_t i = begin; i < end; ++i) body(i / a.kv_heads, i % a.kv_heads, thread);
  });
}

void validate_grad(const AttentionGrad& p) {
  constexpr const char* kOp = "attention_grad";
  const AttentionSpec& a = p.spec;
  validate(kOp, p);
  require_same(kOp, {"q", p.q.rows}, {{"dout", p.dout}, {"dq", p.dq.rows}, {"dk", p.dk.rows}, {"dv", p.dv.rows}});
  require_numel(kOp, p.out.numel(), {{"dout", p.dout}});
  validate(kOp, "dq", p.dq, a.batch * a.queries, a.heads, a.head_dim);
  validate(kOp, "dk", p.dk, a.batch * a.keys, a.kv_heads, a.head_dim);
  validate(kOp, "dv", p.dv, a.batch * a.keys, a.kv_heads, a.head_dim);
  GT_REQUIRE(a.heads / a.kv_heads <= kMaxGroup, Exit::kUsage, "attention_grad on the CPU: ", a.heads / a.kv_heads,
             " query heads share a KV head; at most ", kMaxGroup, " can");
}

}  // namespace

void attention(const Attention& p, Stream s) {
  validate("attention", p);
  if (p.q.rows.dtype == DType::kF32) return run_blocks<F32Blocks>(p, s);
  attention_pair_gemm(p.q.rows.dtype, p.spec.head_dim) ? run_blocks<Bf16Blocks>(p, s) : run_blocks<WideBlocks>(p, s);
}

void attention_grad(const AttentionGrad& p, Stream s) {
  validate_grad(p);
  const AttentionSpec& a = p.spec;
  const int64_t group = a.heads / a.kv_heads, dim = a.head_dim;
  CpuContext& context = cpu_context(s);
  const Simd& f = simd();
  if (const PairGemm multiply = attention_pair_gemm(p.q.rows.dtype, dim)) {
    for_kv_heads(a, s, [&](int64_t batch, int64_t kv, int thread) {
      float* scratch = context.thread_scratch<float>(thread, f.attention_grad_scratch_bf16(a.queries, dim, group));
      AttentionHead<uint16_t> heads[kMaxGroup];
      for (int64_t g = 0; g < group; ++g) heads[g] = stored_head<uint16_t>(p, batch, kv * group + g);
      f.attention_grad_bf16(heads, group, multiply, scratch);
    });
    return;
  }
  const bool wide = is_16bit(p.q.rows.dtype);
  for_kv_heads(a, s, [&](int64_t batch, int64_t kv, int thread) {
    const int64_t own = f.attention_grad_scratch(a.queries, dim, group);
    float* scratch = context.thread_scratch<float>(thread, own + (wide ? wide_grad_floats(a, group) : 0));
    if (wide) return wide_grad(p, f, batch, kv, group, scratch, scratch + own);
    AttentionHead<float> heads[kMaxGroup];
    for (int64_t g = 0; g < group; ++g) heads[g] = stored_head<float>(p, batch, kv * group + g);
    f.attention_grad(heads, group, scratch);
  });
}

}  // namespace gt::cpu
