// Causal attention on the CPU: which thread computes which heads and blocks. The arithmetic is in simd_attention.h.
#include <algorithm>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace gt::cpu {
namespace {

template <class P>
void validate(const char* op, const P& p) {
  GT_CHECK(p.batch >= 0 && p.seq >= 0 && p.heads > 0 && p.kv_heads > 0 && p.head_dim > 0 && p.heads % p.kv_heads == 0,
           op, ": batch ", p.batch, ", seq ", p.seq, ", heads ", p.heads, ", kv_heads ", p.kv_heads, ", head_dim ",
           p.head_dim);
  const int64_t tokens = p.batch * p.seq;
  require_f32(op, {{"qkv", p.qkv}, {"out", p.out}, {"lse", p.lse}});
  require_numel(op, tokens * (p.heads + 2 * p.kv_heads) * p.head_dim, {{"qkv", p.qkv}});
  require_numel(op, tokens * p.heads * p.head_dim, {{"out", p.out}});
  require_numel(op, tokens * p.heads, {{"lse", p.lse}});
}

// Query head `head` of sequence `batch`, and the key head that it reads.
template <class P>
AttentionHead head_of(const P& p, int64_t batch, int64_t head) {
  AttentionHead h{};
  h.drop = p.drop ? &p.drop.mask : nullptr, h.sample = p.drop.mask.first_sample + batch;
  h.head = p.drop.first_head + head;
  h.seq = p.seq, h.dim = p.head_dim, h.scale = p.scale;
  h.qkv_stride = (p.heads + 2 * p.kv_heads) * p.head_dim, h.out_stride = p.heads * p.head_dim;
  const int64_t kv = head / (p.heads / p.kv_heads), row = batch * p.seq;
  const int64_t k = (p.heads + kv) * p.head_dim, v = k + p.kv_heads * p.head_dim;
  const float* qkv = p.qkv.template as<float>() + row * h.qkv_stride;
  h.q = qkv + head * p.head_dim, h.k = qkv + k, h.v = qkv + v;
  const int64_t at = row * h.out_stride + head * p.head_dim;
  h.out = p.out.template as<float>() + at;
  h.lse = p.lse.template as<float>() + (batch * p.heads + head) * p.seq;
  if constexpr (requires { p.dqkv; }) {
    h.dout = p.dout.template as<float>() + at;
    float* d = p.dqkv.template as<float>() + row * h.qkv_stride;
    h.dq = d + head * p.head_dim, h.dk = d + k, h.dv = d + v;
  }
  return h;
}

}  // namespace

void attention(const Attention& p, Stream s) {
  validate("attention", p);
  const int64_t blocks = (p.seq + kAttentionBlock - 1) / kAttentionBlock, heads = p.batch * p.heads;
  CpuContext& context = cpu_context(s);
  parallel_for(s, heads * blocks, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* scratch = context.thread_scratch<float>(thread, f.attention_scratch(p.head_dim));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks;
      f.attention(head_of(p, head / p.heads, head % p.heads), i % blocks * kAttentionBlock, scratch);
    }
  });
}

void attention_grad(const AttentionGrad& p, Stream s) {
  validate("attention_grad", p);
  require_f32("attention_grad", {{"dout", p.dout}, {"dqkv", p.dqkv}});
  require_numel("attention_grad", p.out.numel(), {{"dout", p.dout}});
  require_numel("attention_grad", p.qkv.numel(), {{"dqkv", p.dqkv}});
  const int64_t group = p.heads / p.kv_heads;
  constexpr int64_t kMaxGroup = 64;
  GT_REQUIRE(group <= kMaxGroup, Exit::kUsage, "attention_grad on the CPU: ", group,
             " query heads share a key head; at most ", kMaxGroup, " can");
  CpuContext& context = cpu_context(s);
  parallel_for(s, p.seq ? p.batch * p.kv_heads : 0, 1, [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    float* scratch = context.thread_scratch<float>(thread, f.attention_grad_scratch(p.seq, p.head_dim, group));
    AttentionHead heads[kMaxGroup];
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t g = 0; g < group; ++g) heads[g] = head_of(p, i / p.kv_heads, i % p.kv_heads * group + g);
      f.attention_grad(heads, group, scratch);
    }
  });
}

}  // namespace gt::cpu
