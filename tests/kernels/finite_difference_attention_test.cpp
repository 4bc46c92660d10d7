// Gradients of attention (finite_difference.h).
#include "tests/kernels/finite_difference.h"
#include "tests/kernels/packed_attention.h"

namespace gt::test {
namespace {

// Attention of two sequences of six tokens, four query heads of width 8. `call` has what a case adds to that: KV heads,
// window, soft cap, mask, dropout.
void expect_attention_gradients(AttentionSpec spec, const std::vector<int32_t>& documents,
                                const std::vector<int32_t>& lengths) {
  expect_gradients([&](Problem& p) {
    spec.batch = 2, spec.queries = spec.keys = spec.drop.seq = 6, spec.heads = 4, spec.head_dim = 8;
    spec.scale = 0.35f;
    const int64_t rows = spec.batch * spec.queries, width = spec.heads * spec.head_dim;
    const Tensor qkv = p.random({rows, width + 2 * spec.kv_heads * spec.head_dim}), out = p.empty({rows, width});
    const Tensor lse = p.empty({spec.batch, spec.heads, spec.queries});
    if (!documents.empty()) spec.documents = p.tokens(documents);
    if (!lengths.empty()) spec.lengths = p.tokens(lengths);
    const Tensor dout = p.add_output(out), dqkv = p.add_input("qkv", qkv);
    p.forward = [=, &p] { p.ops.attention(packed_attention(qkv, out, lse, spec), {}); };
    p.backward = [=, &p] { p.ops.attention_grad(packed_attention_grad(qkv, out, lse, dout, dqkv, spec), {}); };
  });
}

// Queries at 5 to 8 of sequences of twelve, over keys from `first_key` on, in tensors of their own. The statistics are
// those of these keys.
void expect_gradients_of_parts(AttentionSpec spec, int64_t first_key, int64_t keys) {
  expect_gradients([&](Problem& p) {
    spec.batch = 2, spec.queries = 4, spec.keys = keys, spec.first_query = 5, spec.first_key = first_key;
    spec.drop.seq = 12, spec.heads = 4, spec.head_dim = 8, spec.scale = 0.35f;
    const int64_t rows = spec.batch * spec.queries, width = spec.heads * spec.head_dim;
    const Shape kv{spec.batch * keys, spec.kv_heads * spec.head_dim};
    const Tensor q = p.random({rows, width}), k = p.random(kv), v = p.random(kv), out = p.empty({rows, width});
    const Tensor lse = p.empty({spec.batch, spec.heads, spec.queries});
    const Tensor dout = p.add_output(out), dq = p.add_input("q", q), dk = p.add_input("k", k);
    const Tensor dv = p.add_input("v", v);
    p.forward = [=, &p] { p.ops.attention({{q}, {k}, {v}, out, lse, spec}, {}); };
    p.backward = [=, &p] { p.ops.attention_grad({{q}, {k}, {v}, out, lse, dout, {dq}, {dk}, {dv}, spec}, {}); };
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

TEST_CASE("finite differences: attention of a part of a sequence's queries over a part of its keys") {
  struct Part {
    int64_t first_key, keys, kv_heads;
    AttentionSpec rule = {};
  };
  for (const Part& part : {Part{0, 9, 4},
                           {0, 5, 2},  // all before the queries
                           {3, 9, 2},  // some after all of them
                           {7, 4, 4},  // some queries see none
                           {2, 7, 4, {.window = 3}},
                           {0, 12, 2, {.softcap = 1.5f, .full = true}},
                           {0, 4, 4, {.window = 4}}}) {
    INFO("keys from " << part.first_key << ", " << part.keys << ", kv_heads " << part.kv_heads);
    AttentionSpec spec = part.rule;
    spec.kv_heads = part.kv_heads, spec.drop = dropout_of(part.kv_heads);
    expect_gradients_of_parts(spec, part.first_key, part.keys);
  }
}

}  // namespace gt::test
