// Gradients of attention (finite_difference.h).
#include "tests/kernels/finite_difference.h"

namespace gt::test {
namespace {

// Attention of two sequences of six tokens, four query heads of width 8. `call` has what a case adds to that: KV heads,
// window, soft cap, mask, dropout.
void expect_attention_gradients(Attention call, const std::vector<int32_t>& positions,
                                const std::vector<int32_t>& lengths) {
  expect_gradients([&](Problem& p) {
    call.batch = 2, call.seq = 6, call.heads = 4, call.head_dim = 8, call.scale = 0.35f;
    const int64_t rows = call.batch * call.seq, width = call.heads * call.head_dim;
    call.qkv = p.random({rows, width + 2 * call.kv_heads * call.head_dim});
    call.out = p.empty({rows, width}), call.lse = p.empty({call.batch, call.heads, call.seq});
    if (!positions.empty()) call.positions = p.tokens(positions);
    if (!lengths.empty()) call.lengths = p.tokens(lengths);
    const Tensor dout = p.add_output(call.out), dqkv = p.add_input("qkv", call.qkv);
    p.forward = [call, &p] { p.ops.attention(call, {}); };
    p.backward = [call, dout, dqkv, &p] {
      p.ops.attention_grad({.qkv = call.qkv,
                            .out = call.out,
                            .lse = call.lse,
                            .dout = dout,
                            .dqkv = dqkv,
                            .batch = call.batch,
                            .seq = call.seq,
                            .heads = call.heads,
                            .kv_heads = call.kv_heads,
                            .head_dim = call.head_dim,
                            .scale = call.scale,
                            .drop = call.drop,
                            .window = call.window,
                            .softcap = call.softcap,
                            .full = call.full,
                            .lengths = call.lengths,
                            .positions = call.positions},
                           {});
    };
  });
}

HeadDrop dropout_of(int64_t kv_heads) { return {drop_mask(98, kv_heads == 4 ? 0 : 0.3), 1}; }

}  // namespace

TEST_CASE(
    "finite differences: causal attention with grouped queries, dropout, windows, soft caps and packed documents") {
  struct Rule {
    int64_t kv_heads, window;
    float softcap;
    bool packed = false;
  };
  for (const Rule r : {Rule{4, 0, 0},
                       {2, 0, 0},
                       {1, 0, 0},
                       {4, 3, 0},
                       {2, 1, 0},
                       {4, 0, 0.7f},
                       {2, 4, 1.5f},
                       {2, 0, 0, true},
                       {4, 3, 1.5f, true}}) {
    INFO("kv_heads " << r.kv_heads << ", window " << r.window << ", softcap " << r.softcap << ", packed " << r.packed);
    const std::vector<int32_t> documents{0, 1, 0, 1, 2, 0, 0, 0, 1, 2, 3, 4};
    expect_attention_gradients(
        {.kv_heads = r.kv_heads, .drop = dropout_of(r.kv_heads), .window = r.window, .softcap = r.softcap},
        r.packed ? documents : std::vector<int32_t>{}, {});
  }
}

TEST_CASE(
    "finite differences: bidirectional attention, of whole sequences and of shorter ones, with and without dropout") {
  for (const int64_t kv_heads : {4, 2})
    for (const bool padded : {false, true}) {
      INFO("kv_heads " << kv_heads << ", padded " << padded);
      expect_attention_gradients({.kv_heads = kv_heads, .drop = dropout_of(kv_heads), .full = true}, {},
                                 padded ? std::vector<int32_t>{6, 3} : std::vector<int32_t>{});
    }
}

}  // namespace gt::test
