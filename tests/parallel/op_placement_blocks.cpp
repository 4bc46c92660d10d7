// Calls of the ops of attention and of tables of embeddings: 8 query and 4 KV heads of 4 channels, 4 sequences of 4
// tokens.
#include "tests/parallel/op_placements.h"

namespace gt::placements {
namespace {

constexpr auto kIds = Draw::kIds;
constexpr auto kPositive = Draw::kPositive;
constexpr DType kF32 = DType::kF32, kI32 = DType::kI32;
constexpr int64_t kHeads = 8, kKv = 4, kDim = 4, kBatch = 4, kSeq = 4, kRows = kBatch * kSeq;
constexpr int64_t kQ = kHeads * kDim, kK = kKv * kDim;

FieldSpec packed(const char* name) { return {name, {kRows, kQ + 2 * kK}, {}, kF32, {kQ, kK, kK}}; }
FieldSpec head_norm(const char* name) { return {name, {kQ + kK}, {}, kF32, {kQ, kK}}; }

template <class Args>
void heads(Args& a, const Cut& cut) {
  a.heads = kHeads / cut.parts('h'), a.kv_heads = kKv / cut.parts('h');
  if constexpr (requires { a.head_dim; }) a.head_dim = kDim;
  if constexpr (requires { a.ranks; }) a.ranks = cut.parts('h');
}

void add_qk_norm_cases(std::vector<OpCase>& to) {
  const FieldSpec q_gamma{"q_gamma", {kDim}}, k_gamma{"k_gamma", {kDim}}, gamma = head_norm("gamma"),
                                                                          sums{"sums", {kRows, 2}, kPositive};
  const FieldSpec rstd{"rstd", {kRows, kHeads + kKv}, kPositive, kF32, {kHeads, kKv}};
  add<QkNorm>(to, {}, "", {packed("qkv"), q_gamma, k_gamma, packed("out"), rstd}, heads<QkNorm>);
  add<QkNormGrad>(to, {.accumulate_dw = true}, "",
                  {packed("qkv"),
                   q_gamma,
                   k_gamma,
                   rstd,
                   packed("dout"),
                   packed("dqkv"),
                   {"dq_gamma", {kDim}},
                   {"dk_gamma", {kDim}}},
                  heads<QkNormGrad>);
  add<QkRowSums>(to, {}, "", {packed("qkv"), sums}, heads<QkRowSums>);
  add<QkRowSums>(to, {}, "of gradients", {packed("qkv"), gamma, packed("dout"), sums}, heads<QkRowSums>);
  add<QkRowNorm>(to, {}, "", {packed("qkv"), gamma, sums, packed("out")}, heads<QkRowNorm>);
  add<QkRowNormGrad>(
      to, {}, "",
      {packed("qkv"), gamma, sums, {"dsums", {kRows, 2}}, packed("dout"), packed("dqkv"), head_norm("dgamma")},
      heads<QkRowNormGrad>);
}

template <class Args>
void attention(Args& a, const Cut& cut) {
  AttentionSpec& s = a.spec;
  s.batch = kBatch / cut.parts('s'), s.queries = s.keys = kSeq, s.head_dim = kDim;
  s.heads = kHeads / cut.parts('h'), s.kv_heads = kKv / cut.parts('h');
  s.drop.mask.first_sample = cut.begin('s', kBatch), s.drop.first_head = cut.begin('h', kHeads), s.drop.seq = kSeq;
}

void add_attention_cases(std::vector<OpCase>& to) {
  const FieldSpec q{"q", {kRows, kQ}}, k{"k", {kRows, kK}}, v{"v", {kRows, kK}}, out{"out", {kRows, kQ}},
      lse{"lse", {kBatch, kHeads, kSeq}, kPositive}, lengths{"lengths", {kBatch}, kIds, kI32, {}, nullptr, kSeq};
  AttentionSpec causal;
  causal.drop.mask = drop_mask(11, 0.2);
  AttentionSpec full;
  full.full = true;
  add<Attention>(to, {.spec = causal}, "", {q, k, v, out, lse}, attention<Attention>);
  OpCase& masked = add<Attention>(to, {.spec = full}, "of lengths", {q, k, v, out, lse, lengths}, attention<Attention>);
  for (int64_t i = 0; i < kBatch; ++i) masked.fields.back().value.set(i, static_cast<double>(1 + i % kSeq));
  const std::vector<FieldSpec> grad{
      q, k, v, out, lse, {"dout", {kRows, kQ}}, {"dq", {kRows, kQ}}, {"dk", {kRows, kK}}, {"dv", {kRows, kK}}};
  OpCase& backward = add<AttentionGrad>(to, {.spec = causal}, "", grad, attention<AttentionGrad>);
  for (int64_t i = 0; i < kBatch * kHeads * kSeq; ++i)
    backward.fields[4].value.set(i, 2 + 0.01 * static_cast<double>(i));
}

void add_cache_cases(std::vector<OpCase>& to) {
  constexpr int64_t kCapacity = 5;
  const FieldSpec keys{"keys", {2, kKv, kCapacity, kDim}}, values{"values", {2, kKv, kCapacity, kDim}};
  const FieldSpec sequences{"sequences", {4}, kIds, kI32, {}, "t", 2},
      positions{"positions", {4}, kIds, kI32, {}, "t", kCapacity};
  OpCase& store = add<StoreKv>(to, {}, "", {{"k", {4, kK}}, {"v", {4, kK}}, sequences, positions, keys, values});
  for (int64_t i = 0; i < 4; ++i)
    store.fields[2].value.set(i, static_cast<double>(i % 2)), store.fields[3].value.set(i, static_cast<double>(i));
  add<CachedAttention>(to, {}, "", {{"q", {4, kQ}}, sequences, positions, keys, values, {"out", {4, kQ}}},
                       [](CachedAttention& a, const Cut& cut) { a.heads = kHeads / cut.parts('h'); });
}

void add_table_cases(std::vector<OpCase>& to) {
  constexpr int64_t kVocab = 12, kCols = 4;
  const FieldSpec tokens{"tokens", {kRows}, kIds, kI32, {}, nullptr, kVocab}, dout{"dout", {kRows, kCols}};
  add<Embedding>(to, {}, "", {tokens, {"table", {kVocab, kCols}}, {"out", {kRows, kCols}}},
                 [](Embedding& e, const Cut& cut) { e.first_row = cut.begin('v', kVocab); });
  for (const bool adds : {false, true})
    add<EmbeddingGrad>(to, {.accumulate = adds}, adds ? "added" : "", {tokens, dout, {"dtable", {kVocab, kCols}}},
                       [](EmbeddingGrad& e, const Cut& cut) { e.first_row = cut.begin('v', kVocab); });
  Positions rows;
  rows.seq = kSeq;
  add<AddPosition>(to, {.rows = rows}, "", {{"x", {kRows, kCols}}, {"pos", {kSeq, kCols}}},
                   [](AddPosition& p, const Cut& cut) { p.rows.first_row = cut.begin('t', kRows); });
  add<PositionGrad>(to, {.rows = rows}, "", {dout, {"dpos", {kSeq, kCols}}});
  add<Rope>(
      to, {.head_dim = kDim}, "",
      {packed("x"), {"table", {kSeq, kDim}, {}, kF32, {}, "__"}, {"positions", {kRows}, kIds, kI32, {}, "t", kSeq}},
      [](Rope& r, const Cut& cut) { r.heads = (kHeads + kKv) / cut.parts('h'); });
}

}  // namespace

void add_transformer_cases(std::vector<OpCase>& to) {
  add_qk_norm_cases(to);
  add_attention_cases(to);
  add_cache_cases(to);
  add_table_cases(to);
}

}  // namespace gt::placements
