// Cases of attention: grouped queries, windows, soft caps, dropout, packed documents, every type, lengths on both sides
// of a tile.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/rng.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

struct AttentionSize {
  int64_t batch, seq, heads, kv_heads, head_dim;
  int64_t window = 0;
  float softcap = 0;
  int64_t first_head = -1;              // of the heads that drop probabilities; -1: none are dropped
  bool full = false;                    // bidirectional
  std::vector<double> lengths = {};     // of its sequences; empty: seq
  std::vector<int64_t> documents = {};  // lengths of packed documents, again and again in each sequence; empty: one
  // Parts of sequences, with q, k and v in tensors of their own: keys, and the positions of the first ones. -1: no.
  int64_t keys = -1, first_query = 0, first_key = 0;
};

// Positions of all tokens in their documents; the second sequence begins with the second document.
std::vector<double> positions_of(const AttentionSize& s) {
  std::vector<double> out;
  for (int64_t b = 0; b < s.batch; ++b) {
    size_t document = static_cast<size_t>(b);
    const int64_t begun = std::min(s.first_query, s.documents[document % s.documents.size()] - 1);
    for (int64_t i = 0, at = begun; i < s.seq; ++i, ++at) {
      if (at == s.documents[document % s.documents.size()]) at = 0, ++document;
      out.push_back(static_cast<double>(at));
    }
  }
  return out;
}

AttentionSpec spec_of(const AttentionSize& s) {
  AttentionSpec a{.batch = s.batch,
                  .queries = s.seq,
                  .keys = s.keys < 0 ? s.seq : s.keys,
                  .heads = s.heads,
                  .kv_heads = s.kv_heads,
                  .head_dim = s.head_dim,
                  .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)),
                  .window = s.window,
                  .softcap = s.softcap,
                  .full = s.full,
                  .first_query = s.first_query,
                  .first_key = s.first_key};
  if (s.first_head < 0) return a;
  const int64_t length = std::max(a.first_query + a.queries, a.first_key + a.keys);
  a.drop = {drop_mask(stream_key(1234, "dropout/test"), 0.3), s.first_head, length};
  a.drop.mask.first_sample = (int64_t{1} << 32) - 2;  // ordinals on both sides of 2^32
  return a;
}

double attention_flops(const AttentionSize& s) {  // two products of the pairs that are seen
  if (s.full) return 4.0 * static_cast<double>(s.batch * s.heads * s.head_dim * s.seq * s.seq);
  const int64_t window = s.window > 0 && s.window < s.seq ? s.window : s.seq;
  return 2.0 * static_cast<double>(s.batch * s.heads * s.head_dim * window * (2 * s.seq - window + 1));
}

std::string documents_text(const AttentionSize& s) {
  std::string out;
  for (const int64_t length : s.documents) out += (out.empty() ? " documents of " : ", ") + std::to_string(length);
  return out;
}

std::string describe(const AttentionSize& s, DType t) {
  const std::string from = s.first_head < 0 ? "" : cat(" from ", s.first_head);
  return cat("batch ", s.batch, " seq ", s.seq, " heads ", s.heads, "/", s.kv_heads, from, " dim ", s.head_dim,
             s.window > 0 ? cat(" window ", s.window) : "", s.softcap > 0 ? cat(" softcap ", s.softcap) : "",
             documents_text(s), s.first_head < 0 ? "" : " dropout", s.full ? " full" : "",
             s.lengths.empty() ? "" : " padded",
             s.keys < 0 ? "" : cat(" from ", s.first_query, ", keys ", s.keys, " from ", s.first_key), suffix(t));
}

// Adds the views q, k and v of a pass, or their gradients: packed, or apart.
template <class P, class Add>
void add_views(CaseOf<P>& c, const AttentionSize& s, HeadView P::*q, HeadView P::*k, HeadView P::*v, const char* prefix,
               Add add) {
  const int64_t width = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  if (s.keys >= 0) {
    add(q, cat(prefix, "q").c_str(), Shape{s.batch * s.seq, width});
    add(k, cat(prefix, "k").c_str(), Shape{s.batch * s.keys, kv});
    add(v, cat(prefix, "v").c_str(), Shape{s.batch * s.keys, kv});
    return;
  }
  add(q, cat(prefix, "q").c_str(), Shape{s.batch * s.seq, width + 2 * kv});
  c.alias(k, q).alias(v, q);
  (c.args.*k).column = width, (c.args.*v).column = width + kv;
}

void add_attention(OpCases& to, const AttentionSize& s, DType t = DType::kF32, bool big = false) {
  const Shape out{s.batch * s.seq, s.heads * s.head_dim}, lse{s.batch, s.heads, s.seq};
  const auto add_controls = [&]<class P>(CaseOf<P>& c) {
    if (!s.lengths.empty()) c.in(&AttentionSpec::lengths, "lengths", {s.batch}, values(s.lengths), DType::kI32);
    if (!s.documents.empty())
      c.in(&AttentionSpec::documents, "documents", {s.batch, s.seq}, values(positions_of(s)), DType::kI32);
  };
  using F = Attention;
  auto& forward = add_case<F>(to, describe(s, t));
  forward.args.spec = spec_of(s);
  add_views(forward, s, &F::q, &F::k, &F::v, "",
            [&](auto f, const char* name, Shape shape) { forward.in(f, name, shape, normal(1.5), t); });
  forward.out(&F::out, "out", out, t).out(&F::lse, "lse", lse);
  add_controls(forward);

  using G = AttentionGrad;
  auto& backward = add_case<G>(to, describe(s, t));
  backward.args.spec = spec_of(s);
  add_views(backward, s, &G::q, &G::k, &G::v, "",
            [&](auto f, const char* name, Shape shape) { backward.in(f, name, shape, normal(1.5), t); });
  backward.in(&G::out, "out", out, normal(), t).in(&G::lse, "lse", lse).in(&G::dout, "dout", out, normal(), t);
  add_views(backward, s, &G::dq, &G::dk, &G::dv, "d",
            [&](auto f, const char* name, Shape shape) { backward.out(f, name, shape, t); });
  add_controls(backward);
  backward.derive = [](const G& g) { reference::attention({g.q, g.k, g.v, g.out, g.lse, g.spec}, {}); };
  forward.flops = attention_flops(s), backward.flops = 2.5 * attention_flops(s);
  forward.big = backward.big = big;
  forward.non_finite = s.keys >= 0;  // lse of a query that sees no key
  forward.tolerance = backward.tolerance = unit_of(t);
}

// Windows of one key, of less than a vector, of about a tile, of the whole sequence, and longer.
void add_windows(OpCases& to) {
  for (const int64_t window : {1, 2, 3, 15, 16, 17, 40, 63, 64, 65, 66, 100, 129, 130, 131, 1000})
    add_attention(to, {1, 130, 2, 1, 8, window});
  for (const int64_t window : {5, 33, 70, 127, 128}) add_attention(to, {2, 200, 3, 3, 45, window});
  for (const float softcap : {50.f, 2.f, 0.5f}) add_attention(to, {2, 70, 4, 2, 16, 0, softcap});
  add_attention(to, {1, 7, 1, 1, 3, 3, 1.5f});
  add_attention(to, {1, 140, 4, 2, 80, 37, 5});
  add_attention(to, {2, 132, 4, 2, 24, 50, 3, 4});  // with dropout, on whole and partial counters
  add_attention(to, {1, 131, 4, 2, 24, 70, 0, 2});
  add_attention(to, {0, 7, 2, 2, 8, 3, 2});
  add_attention(to, {1, 70, 2, 1, 120, 20, 4});
  for (const DType t : k16BitDtypes) {
    for (const int64_t window : {1, 20, 64, 100}) add_attention(to, {1, 130, 4, 2, 64, window}, t);
    add_attention(to, {2, 130, 2, 1, 128, 40, 20}, t);
    add_attention(to, {2, 66, 4, 2, 8, 0, 2, 4}, t);
  }
  add_attention(to, {1, 4096, 8, 8, 64, 1024}, DType::kF32, true);
  add_attention(to, {1, 4096, 8, 8, 64}, DType::kF32, true);
  add_attention(to, {1, 8192, 16, 4, 128, 1024}, DType::kBF16, true);
  add_attention(to, {1, 4096, 8, 4, 256, 0, 50}, DType::kBF16, true);
}

// Less than a vector, a tile and what is next to it; sequences of one token, of a part of a tile and of all of it.
void add_bidirectional(OpCases& to) {
  for (const int64_t seq : {1, 5, 16, 64, 65, 130}) add_attention(to, {2, seq, 2, 2, 8, 0, 0, -1, true});
  add_attention(to, {4, 130, 2, 2, 8, 0, 0, -1, true, {130, 1, 64, 65}});
  add_attention(to, {3, 200, 4, 2, 45, 0, 0, -1, true, {17, 129, 199}});
  add_attention(to, {2, 70, 4, 2, 80, 0, 5, 2, true, {70, 33}});
  add_attention(to, {2, 132, 4, 4, 24, 0, 0, 4, true, {60, 132}});
  add_attention(to, {1, 70, 2, 1, 120, 0, 0, -1, true, {40}});
  add_attention(to, {0, 7, 2, 2, 8, 0, 0, -1, true});
  for (const DType t : k16BitDtypes) {
    add_attention(to, {2, 130, 4, 4, 64, 0, 0, -1, true}, t);
    add_attention(to, {3, 130, 4, 2, 64, 0, 0, -1, true, {128, 9, 65}}, t);
    add_attention(to, {2, 66, 4, 4, 8, 0, 0, 2, true, {66, 3}}, t);
  }
  add_attention(to, {8, 512, 12, 12, 64, 0, 0, -1, true}, DType::kF32, true);
  add_attention(to, {32, 512, 16, 16, 64, 0, 0, -1, true}, DType::kBF16, true);
}

// Documents that begin and end on both sides of a tile's edge, of a token, over several tiles, with everything else.
void add_documents(OpCases& to) {
  const auto with = [](AttentionSize s, std::vector<int64_t> documents) {
    s.documents = std::move(documents);
    return s;
  };
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {1}, {2, 1, 3}, {15, 17, 16}, {64}, {63, 1}, {65, 2}, {130}, {1, 129}, {3, 100, 7}, {200, 40}})
    add_attention(to, with({2, 260, 2, 1, 24}, lengths));
  add_attention(to, with({3, 40, 4, 2, 8}, {7, 30, 2}));
  add_attention(to, with({1, 200, 2, 2, 80, 33}, {90, 20, 5}));        // with a window
  add_attention(to, with({2, 132, 4, 2, 24, 50, 3, 4}, {70, 3, 40}));  // with everything
  add_attention(to, with({1, 140, 2, 1, 120}, {50, 75}));
  add_attention(to, with({0, 7, 2, 2, 8}, {3}));
  for (const DType t : k16BitDtypes) {
    add_attention(to, with({2, 200, 4, 2, 64}, {90, 20, 5}), t);
    add_attention(to, with({1, 130, 2, 1, 128, 40, 20}, {64, 10}), t);
  }
  add_attention(to, with({1, 4096, 8, 8, 64}, {512, 100, 900}), DType::kF32, true);
}

}  // namespace

// Queries and keys of different parts of a sequence: aligned with a tile and not, keys before, around and after the
// queries, queries that see nothing, more and fewer keys than queries.
void add_parts(OpCases& to) {
  const auto part = [](AttentionSize s, int64_t keys, int64_t first_query, int64_t first_key) {
    s.keys = keys, s.first_query = first_query, s.first_key = first_key;
    return s;
  };
  for (const auto& [queries, keys, first_query, first_key] : std::vector<std::array<int64_t, 4>>{{64, 192, 128, 0},
                                                                                                 {64, 64, 128, 0},
                                                                                                 {70, 200, 130, 0},
                                                                                                 {65, 130, 33, 0},
                                                                                                 {130, 65, 0, 0},
                                                                                                 {130, 130, 0, 64},
                                                                                                 {100, 90, 20, 50},
                                                                                                 {1, 77, 76, 0},
                                                                                                 {77, 2, 5, 40},
                                                                                                 {40, 40, 0, 40},
                                                                                                 {64, 128, 64, 256},
                                                                                                 {3, 5, 1, 2}})
    add_attention(to, part({2, queries, 4, 2, 24}, keys, first_query, first_key));
  add_attention(to, part({1, 90, 2, 2, 80, 33}, 150, 70, 10));           // with a window
  add_attention(to, part({1, 90, 2, 2, 80, 33}, 60, 170, 0));            // behind all windows, or some
  add_attention(to, part({2, 72, 4, 2, 24, 50, 3, 4}, 136, 64, 0));      // with dropout, on whole counters
  add_attention(to, part({2, 71, 4, 2, 24, 0, 0, 4}, 133, 63, 1));       // and partial ones
  add_attention(to, part({2, 50, 2, 2, 16, 0, 0, -1, true}, 90, 7, 0));  // bidirectional
  AttentionSize padded = part({2, 50, 2, 2, 16, 0, 0, -1, true}, 90, 7, 30);
  padded.lengths = {100, 31};
  add_attention(to, padded);
  AttentionSize packed = part({2, 130, 2, 1, 24}, 200, 60, 0);
  packed.documents = {20, 90, 5, 40};
  add_attention(to, packed);
  packed.window = 30, packed.softcap = 5;
  add_attention(to, packed);
  for (const DType t : k16BitDtypes) {
    add_attention(to, part({1, 100, 4, 2, 64}, 230, 130, 0), t);
    add_attention(to, part({1, 100, 4, 2, 64, 40}, 90, 20, 50), t);
    add_attention(to, part({2, 64, 2, 2, 8}, 64, 0, 64), t);
  }
}

void add_attention_cases(OpCases& to) {
  for (const int64_t dim : {8, 64, 80}) {
    for (const int64_t seq : {1, 5, 64, 65, 130}) add_attention(to, {seq < 64 ? 3 : 1, seq, 2, 2, dim});
    add_attention(to, {2, 33, 4, 2, dim});
    add_attention(to, {2, 65, 3, 1, dim});
  }
  add_attention(to, {1, 7, 1, 1, 3});
  add_attention(to, {0, 7, 2, 2, 8});
  for (const DType t : k16BitDtypes) {
    for (const int64_t seq : {1, 5, 64, 65, 130}) add_attention(to, {seq < 64 ? 3 : 1, seq, 4, 2, 8}, t);
    add_attention(to, {2, 64, 4, 4, 64}, t);
    add_attention(to, {2, 130, 4, 2, 64}, t);
    add_attention(to, {1, 130, 3, 1, 80}, t);
    add_attention(to, {1, 7, 1, 1, 3}, t);
    add_attention(to, {2, 130, 4, 2, 64, 0, 0, 4}, t);
  }
  for (const int64_t seq : {1, 5, 64, 66, 132}) add_attention(to, {2, seq, 2, 2, 8, 0, 0, seq % 4});
  add_attention(to, {1, 65, 6, 2, 80, 0, 0, 6});
  add_windows(to);
  add_bidirectional(to);
  add_documents(to);
  add_parts(to);
  add_attention(to, {4, 512, 8, 8, 64, 0, 0, 0}, DType::kF32, true);
  add_attention(to, {4, 512, 8, 8, 64}, DType::kF32, true);
  add_attention(to, {4, 512, 8, 8, 64}, DType::kBF16, true);
  add_attention(to, {8, 1024, 16, 16, 64}, DType::kBF16, true);
}

}  // namespace gt::test
