// Gradients of attention (finite_difference.h).
#include "tests/kernels/finite_difference.h"

namespace gt::test {

TEST_CASE(
    "finite differences: causal attention with grouped queries, dropout, windows, soft caps and packed documents") {
  struct Rule {
    int64_t kv_heads, window;
    float softcap;
    bool packed = false;
  };
  for (const Rule rule : {Rule{4, 0, 0},
                          {2, 0, 0},
                          {1, 0, 0},
                          {4, 3, 0},
                          {2, 1, 0},
                          {4, 0, 0.7f},
                          {2, 4, 1.5f},
                          {2, 0, 0, true},
                          {4, 3, 1.5f, true}}) {
    const auto [kv_heads, window, softcap, packed] = rule;
    INFO("kv_heads " << kv_heads << ", window " << window << ", softcap " << softcap << ", packed " << packed);
    const HeadDrop drop{drop_mask(98, kv_heads == 4 ? 0 : 0.3), 1};
    expect_gradients([kv_heads = kv_heads, window = window, softcap = softcap, packed = packed, drop](Problem& p) {
      const int64_t batch = 2, seq = 6, heads = 4, dim = 8;
      const Tensor qkv = p.random({batch * seq, (heads + 2 * kv_heads) * dim});
      const Tensor out = p.empty({batch * seq, heads * dim}), lse = p.empty({batch, heads, seq});
      const Tensor dout = p.add_output(out), dqkv = p.add_input("qkv", qkv);
      const Tensor positions = packed ? p.tokens({0, 1, 0, 1, 2, 0, 0, 0, 1, 2, 3, 4}) : Tensor{};
      const float scale = 0.35f;
      p.forward = [=, &p] {
        p.ops.attention(
            {qkv, out, lse, batch, seq, heads, kv_heads, dim, scale, drop, window, softcap, false, {}, positions}, {});
      };
      p.backward = [=, &p] {
        p.ops.attention_grad({qkv,
                              out,
                              lse,
                              dout,
                              dqkv,
                              batch,
                              seq,
                              heads,
                              kv_heads,
                              dim,
                              scale,
                              drop,
                              window,
                              softcap,
                              false,
                              {},
                              positions},
                             {});
      };
    });
  }
}

TEST_CASE(
    "finite differences: bidirectional attention, of whole sequences and of shorter ones, with and without dropout") {
  for (const int64_t kv_heads : {4, 2})
    for (const bool padded : {false, true}) {
      INFO("kv_heads " << kv_heads << ", padded " << padded);
      const HeadDrop drop{drop_mask(98, kv_heads == 4 ? 0 : 0.3), 1};
      expect_gradients([=](Problem& p) {
        const int64_t batch = 2, seq = 6, heads = 4, dim = 8;
        const Tensor qkv = p.random({batch * seq, (heads + 2 * kv_heads) * dim});
        const Tensor out = p.empty({batch * seq, heads * dim}), lse = p.empty({batch, heads, seq});
        const Tensor dout = p.add_output(out), dqkv = p.add_input("qkv", qkv);
        const Tensor lengths = padded ? p.tokens({6, 3}) : Tensor{};
        p.forward = [=, &p] {
          p.ops.attention({.qkv = qkv,
                           .out = out,
                           .lse = lse,
                           .batch = batch,
                           .seq = seq,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .head_dim = dim,
                           .scale = 0.35f,
                           .drop = drop,
                           .full = true,
                           .lengths = lengths},
                          {});
        };
        p.backward = [=, &p] {
          p.ops.attention_grad({.qkv = qkv,
                                .out = out,
                                .lse = lse,
                                .dout = dout,
                                .dqkv = dqkv,
                                .batch = batch,
                                .seq = seq,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = dim,
                                .scale = 0.35f,
                                .drop = drop,
                                .full = true,
                                .lengths = lengths},
                               {});
        };
      });
    }
}

}  // namespace gt::test
