// Cases of Transformer-family ops: RMSNorm with all its fusions, gated activations, rotary embedding, QK norm. Every
// dtype, rows and heads that are not a multiple of a pack, unaligned addresses.
#include <algorithm>
#include <cmath>

#include "kernels/core/rope.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

CaseOf<LayerNorm>& rms_case(OpCases& to, int64_t rows, int64_t cols, bool delta, DType t, DType weights,
                            const char* what = "") {
  using N = LayerNorm;
  auto& c = add_case<N>(to, cat("rms [", rows, ", ", cols, "]", delta ? " delta" : "", suffix(t),
                                weights == t ? "" : cat(" weights ", name_of(weights)), what));
  c.in(&N::x, "x", {rows, cols}, normal(2, 0.5), t).in(&N::gamma, "gamma", {cols}, normal(0.3, 1), weights);
  if (delta) c.in(&N::delta, "delta", {rows, cols}, normal(), t).out(&N::sum, "sum", {rows, cols}, t);
  c.out(&N::out, "out", {rows, cols}, t).out(&N::rstd, "rstd", {rows});
  c.args.kind = NormKind::kRms;
  c.args.eps = 1e-6f;
  c.tolerance = unit_of(t);
  c.flops = static_cast<double>(7 * rows * cols);
  return c;
}

struct RmsGrad {
  bool dx = true, dw = true, accumulate = false, dbias = false, drops = false;
};

CaseOf<LayerNormGrad>& rms_grad_case(OpCases& to, int64_t rows, int64_t cols, RmsGrad f, DType t, DType weights,
                                     DType grads = DType::kF32, const char* what = "") {
  using G = LayerNormGrad;
  const Shape s{rows, cols};
  auto& c =
      add_case<G>(to, cat("rms [", rows, ", ", cols, "]", f.dx ? "" : " no dx", f.dw ? "" : " no dw",
                          f.accumulate ? " accumulate" : "", f.dbias ? " dbias" : "", f.drops ? " dropout" : "",
                          suffix(t), weights == t ? "" : cat(" weights ", name_of(weights)), grad_suffix(grads), what));
  c.in(&G::x, "x", s, normal(2, 0.5), t).in(&G::gamma, "gamma", {cols}, normal(0.3, 1), weights);
  c.in(&G::rstd, "rstd", {rows}).in(&G::dout, "dout", s, normal(), t);
  if (f.dx) c.inout(&G::dsum, "dsum", s, normal(), t).alias(&G::dx, &G::dsum);
  if (f.dw) c.result(&G::dgamma, "dgamma", {cols}, f.accumulate, grads);
  if (f.dbias) c.result(&G::dbias, "dbias", {cols}, f.accumulate, grads);
  if (f.drops) {
    c.out(&G::ddelta, "ddelta", s, t);
    c.args.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .rows = {.seq = 16}};
  }
  c.args.accumulate_dw = c.args.accumulate_dbias = f.accumulate;
  c.args.kind = NormKind::kRms;
  c.tolerance = std::max(unit_of(t), unit_of(grads));
  c.flops = static_cast<double>(12 * rows * cols);
  c.derive = [](const G& g) {  // statistics as computed by the forward
    for (int64_t r = 0; r < g.x.shape.rows(); ++r) {
      double squares = 0;
      for (int64_t j = 0; j < g.x.shape.cols(); ++j) squares += std::pow(get(g.x, r * g.x.shape.cols() + j), 2);
      set(g.rstd, r, 1 / std::sqrt(squares / static_cast<double>(g.x.shape.cols()) + 1e-6));
    }
  };
  return c;
}

void add_rms(OpCases& to) {
  constexpr DType kF = DType::kF32, kB = DType::kBF16;
  for (const DType t : kTypes) {
    for (const int64_t cols : {7, 33, 768, 1024, 1600, 4096}) {
      for (const bool delta : {false, true}) rms_case(to, 5, cols, delta, t, t);
      rms_grad_case(to, 67, cols, {.dbias = true}, t, t);
      rms_grad_case(to, 5, cols, {.accumulate = true, .dbias = true}, t, kF, kB);
      rms_grad_case(to, 67, cols, {.dx = false, .accumulate = true}, t, t);
      rms_grad_case(to, 5, cols, {.dw = false}, t, t);
    }
    rms_case(to, 5, 129, true, t, kF).skew = 1;
    rms_grad_case(to, 5, 129, {}, t, t).skew = 1;
    rms_grad_case(to, 32, 256, {.dbias = true, .drops = true}, t, t);
    auto& drops = rms_case(to, 32, 256, true, t, t, " dropout");
    drops.args.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .rows = {.seq = 16}};
    auto& offset = rms_case(to, 5, 96, true, t, kF, " offset");
    auto& offset_grad = rms_grad_case(to, 5, 96, {.dbias = true, .drops = true}, t, kF, kF, " offset");
    offset.args.gamma_offset = offset_grad.args.gamma_offset = 1;
  }
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 512}, {37, 2048}, {20, 90}}) {  // fused FP8 output
    auto& c = rms_case(to, rows, cols, true, kB, kF, " codes");
    c.in(&Fp8Out::amax, "amax", {1}, values({3.7})).out(&Fp8Out::scale_inv, "scale_inv", {1});
    c.out(&Fp8Out::rowwise, "rowwise", {rows, cols}, DType::kF8E4M3);
    c.out(&Fp8Out::columnwise, "columnwise", {cols, rows}, DType::kF8E4M3);
    c.inout(&Fp8Out::step_amax, "step_amax", {1}, values({0.5})).tolerance = 8e-3;
    auto& g = rms_grad_case(to, rows, cols, {.dbias = true}, kB, kF, kF, " codes");
    g.in(&Fp8Out::amax, "amax", {1}, values({7.9})).out(&Fp8Out::scale_inv, "scale_inv", {1});
    g.out(&Fp8Out::rowwise, "rowwise", {rows, cols}, DType::kF8E5M2);
    g.out(&Fp8Out::columnwise, "columnwise", {cols, rows}, DType::kF8E5M2);
    g.inout(&Fp8Out::step_amax, "step_amax", {1}, values({0.5})).tolerance = 8e-3;
    if (rows != 48) c.args.gamma_offset = g.args.gamma_offset = 1;
  }
  rms_case(to, 4096, 1024, true, kB, kF, " big").big = true;
  rms_grad_case(to, 4096, 1024, {}, kB, kF, kF, " big").big = true;
}

constexpr const char* kNames[] = {"gelu", "silu", "relu2", "gelu_erf", "tanh"};

void add_activation(OpCases& to, Activation kind, bool gated, int64_t rows, int64_t cols, DType t, int skew = 0,
                    bool big = false) {
  const std::string name =
      cat(kNames[static_cast<size_t>(kind)], gated ? " gated" : "", " [", rows, ", ", cols, "]", suffix(t));
  const Shape in{rows, gated ? 2 * cols : cols}, out{rows, cols};
  using A = Activate;
  auto& forward = add_case<A>(to, name);
  forward.in(&A::x, "x", in, normal(2), t).out(&A::out, "out", out, t);
  forward.args.kind = kind, forward.args.gated = gated;
  using G = ActivateGrad;
  auto& apart = add_case<G>(to, name);
  apart.in(&G::x, "x", in, normal(2), t).in(&G::dout, "dout", out, normal(), t).out(&G::dx, "dx", in, t);
  auto& onto = add_case<G>(to, name + " dx is x");
  onto.inout(&G::x, "x", in, normal(2), t).alias(&G::dx, &G::x).in(&G::dout, "dout", out, normal(), t);
  apart.args.kind = onto.args.kind = kind, apart.args.gated = onto.args.gated = gated;
  if (!gated) {
    auto& over = add_case<G>(to, name + " dx is dout");
    over.in(&G::x, "x", in, normal(2), t).inout(&G::dout, "dout", out, normal(), t).alias(&G::dx, &G::dout);
    over.args.kind = kind, over.args.gated = false;
    over.tolerance = unit_of(t), over.skew = skew, over.big = big;
    over.flops = static_cast<double>(8 * rows * cols);
  }
  for (OpCase* c : {static_cast<OpCase*>(&forward), static_cast<OpCase*>(&apart), static_cast<OpCase*>(&onto)}) {
    c->tolerance = unit_of(t), c->skew = skew, c->big = big;
    c->flops = static_cast<double>(8 * rows * cols);
  }
}

void add_activations(OpCases& to) {
  for (const Activation kind :
       {Activation::kGelu, Activation::kSilu, Activation::kRelu2, Activation::kGeluErf, Activation::kTanh}) {
    for (const bool gated : {true, false}) {
      for (const DType t : kTypes) {
        for (const int64_t cols : {33, 768, 2500}) add_activation(to, kind, gated, 5, cols, t);
        add_activation(to, kind, gated, 3, 64, t, 1);
      }
    }
    auto& far = add_case<Activate>(to, cat(kNames[static_cast<size_t>(kind)], " far from zero"));
    far.in(&Activate::x, "x", {9}, values({-3e30, -90, -30, -6, -1e-4, 1e-4, 6, 30, 1e6}))
        .out(&Activate::out, "out", {9});
    auto& slope = add_case<ActivateGrad>(to, cat(kNames[static_cast<size_t>(kind)], " far from zero"));
    slope.in(&ActivateGrad::x, "x", {9}, values({-3e30, -90, -30, -6, -1e-4, 1e-4, 6, 30, 1e6}));
    slope.in(&ActivateGrad::dout, "dout", {9}).out(&ActivateGrad::dx, "dx", {9});
    far.args.kind = slope.args.kind = kind, far.args.gated = slope.args.gated = false;
  }
  add_activation(to, Activation::kSilu, true, 4096, 2816, DType::kBF16, 0, true);
}

// Queries, keys and values of one or two sequences, or rows with explicit positions.
struct RopeCase {
  int64_t rows = 12, seq = 6, first_row = 0, first_position = 0, dim = 0;  // dim 0: the whole head
  bool positions = false, backward = false;
  int64_t run = INT64_MAX, gap = 0;
};

CaseOf<Rope>& rope_case(OpCases& to, int64_t heads, int64_t kv, int64_t head_dim, RopeCase f, DType t,
                        const char* what = "") {
  const int64_t dim = f.dim > 0 ? f.dim : head_dim, known = f.first_position + f.gap + f.seq + 3;
  auto& c = add_case<Rope>(
      to, cat("heads ", heads, "/", kv, " of ", head_dim, dim < head_dim ? cat(" partly ", dim) : "", " rows ", f.rows,
              " of ", f.seq, " from ", f.first_row, f.positions ? " by row" : "",
              f.first_position > 0 ? cat(" position ", f.first_position) : "",
              f.gap > 0 ? cat(", ", f.gap, " after ", f.run) : "", f.backward ? " backward" : "", suffix(t), what));
  std::vector<float> table(static_cast<size_t>(known * dim));
  fill_rope_table(rope_inverse_frequencies(dim, 1e4), 1, known, table.data());
  c.inout(&Rope::x, "x", {f.rows, (heads + 2 * kv) * head_dim}, normal(), t);
  c.in(&Rope::table, "table", {known, dim}, values({table.begin(), table.end()}));
  if (f.positions) c.in(&Rope::positions, "positions", {f.rows}, ids(0, known), DType::kI32);
  c.args.heads = heads + kv, c.args.head_dim = head_dim, c.args.backward = f.backward;
  c.args.rows = {f.seq, f.first_row, f.first_position, f.run, f.gap};
  c.tolerance = unit_of(t);
  c.flops = static_cast<double>(3 * f.rows * (heads + kv) * dim);
  return c;
}

void add_ropes(OpCases& to) {
  for (const DType t : kTypes) {
    for (const bool backward : {false, true}) {
      rope_case(to, 4, 4, 16, {.backward = backward}, t);
      rope_case(to, 4, 2, 64, {.backward = backward}, t);
      rope_case(to, 3, 1, 6, {.first_row = 4, .backward = backward}, t);  // half heads of partial packs; a chunk
      rope_case(to, 4, 1, 24, {.dim = 16, .backward = backward}, t);
    }
    rope_case(to, 4, 2, 32, {.rows = 3, .seq = 1, .first_position = 40}, t);  // decoding
    rope_case(to, 4, 2, 32, {.rows = 7, .positions = true}, t);
    rope_case(to, 4, 2, 32, {.first_position = 2, .run = 3, .gap = 9}, t);
    rope_case(to, 4, 2, 32, {.rows = 10, .first_row = 5, .first_position = 3, .run = 2, .gap = 1}, t);
    rope_case(to, 2, 1, 128, {.rows = 9, .seq = 9}, t, " unaligned").skew = 1;
  }
  rope_case(to, 16, 4, 128, {.rows = 4096, .seq = 1024}, DType::kBF16).big = true;
}

void add_qk_norm(OpCases& to, int64_t rows, int64_t heads, int64_t kv, int64_t dim, DType t, DType weights, DType grads,
                 float offset = 0, int skew = 0, bool big = false) {
  const std::string name = cat("rows ", rows, " heads ", heads, "/", kv, " of ", dim, suffix(t),
                               weights == t ? "" : cat(" weights ", name_of(weights)), offset > 0 ? " offset" : "");
  const Shape s{rows, (heads + 2 * kv) * dim};
  using N = QkNorm;
  std::vector<OpCase*> made;
  const auto common = [&](auto& c) {
    c.args.heads = heads, c.args.kv_heads = kv, c.args.head_dim = dim, c.args.gamma_offset = offset;
    made.push_back(&c);
  };
  for (const bool onto : {false, true}) {
    auto& c = add_case<N>(to, name + (onto ? " out is qkv" : ""));
    if (onto)
      c.inout(&N::qkv, "qkv", s, normal(2), t).alias(&N::out, &N::qkv);
    else
      c.in(&N::qkv, "qkv", s, normal(2), t).out(&N::out, "out", s, t);
    c.in(&N::q_gamma, "q_gamma", {dim}, normal(0.3, 1), weights)
        .in(&N::k_gamma, "k_gamma", {dim}, normal(0.3, 1), weights);
    c.out(&N::rstd, "rstd", {rows, heads + kv});
    common(c);
  }
  enum { kApart, kOnto, kWeights, kInput };
  using G = QkNormGrad;
  for (const int how : {kApart, kOnto, kWeights, kInput}) {
    constexpr const char* kHow[] = {"", " dqkv is dout", " weights alone", " no weights"};
    auto& c = add_case<G>(to, cat(name, kHow[how], grad_suffix(grads)));
    c.in(&G::qkv, "qkv", s, normal(2), t).in(&G::rstd, "rstd", {rows, heads + kv}, positive());
    c.in(&G::q_gamma, "q_gamma", {dim}, normal(0.3, 1), weights)
        .in(&G::k_gamma, "k_gamma", {dim}, normal(0.3, 1), weights);
    if (how == kOnto)
      c.inout(&G::dout, "dout", s, normal(), t).alias(&G::dqkv, &G::dout);
    else
      c.in(&G::dout, "dout", s, normal(), t);
    if (how == kApart || how == kInput) c.out(&G::dqkv, "dqkv", s, t);
    c.args.accumulate_dw = how == kOnto;
    if (how != kInput)
      c.result(&G::dq_gamma, "dq_gamma", {dim}, how == kOnto, grads)
          .result(&G::dk_gamma, "dk_gamma", {dim}, how == kOnto, grads);
    common(c);
  }
  for (OpCase* c : made) {
    c->tolerance = std::max(unit_of(t), unit_of(grads)), c->skew = skew, c->big = big;
    c->flops = static_cast<double>(7 * s.numel());
  }
}

void add_qk_row(OpCases& to, int64_t rows, int64_t heads, int64_t kv, int64_t dim, DType t, DType weights, DType grads,
                int64_t ranks = 1, int skew = 0, bool big = false) {
  const std::string name =
      cat("rows ", rows, " heads ", heads, "/", kv, " of ", dim, suffix(t),
          weights == t ? "" : cat(" weights ", name_of(weights)), ranks > 1 ? cat(" ranks ", ranks) : "");
  const Shape s{rows, (heads + 2 * kv) * dim}, gamma{(heads + kv) * dim};
  const auto squares = [&] { return normal(0.4 * static_cast<double>(dim), 4 * static_cast<double>(dim)); };
  std::vector<OpCase*> made;
  const auto common = [&](auto& c) {
    c.args.heads = heads, c.args.kv_heads = kv, c.args.head_dim = dim;
    if constexpr (requires { c.args.ranks; }) c.args.ranks = ranks;
    made.push_back(&c);
  };
  using S = QkRowSums;
  for (const bool backward : {false, true}) {
    auto& c = add_case<S>(to, name + (backward ? " with dout" : ""));
    c.in(&S::qkv, "qkv", s, normal(2), t).in(&S::gamma, "gamma", gamma, normal(0.3, 1), weights);
    if (backward) c.in(&S::dout, "dout", s, normal(), t);
    c.out(&S::sums, "sums", {rows, 2});
    common(c);
  }
  using N = QkRowNorm;
  for (const bool onto : {false, true}) {
    auto& c = add_case<N>(to, name + (onto ? " out is qkv" : ""));
    if (onto)
      c.inout(&N::qkv, "qkv", s, normal(2), t).alias(&N::out, &N::qkv);
    else
      c.in(&N::qkv, "qkv", s, normal(2), t).out(&N::out, "out", s, t);
    c.in(&N::gamma, "gamma", gamma, normal(0.3, 1), weights).in(&N::sums, "sums", {rows, 2}, squares());
    common(c);
  }
  enum { kApart, kOnto, kWeights, kInput };
  using G = QkRowNormGrad;
  for (const int how : {kApart, kOnto, kWeights, kInput}) {
    constexpr const char* kHow[] = {"", " dqkv is dout", " weights alone", " no weights"};
    auto& c = add_case<G>(to, cat(name, kHow[how], grad_suffix(grads)));
    c.in(&G::qkv, "qkv", s, normal(2), t).in(&G::sums, "sums", {rows, 2}, squares());
    c.in(&G::gamma, "gamma", gamma, normal(0.3, 1), weights);
    if (how != kWeights) c.in(&G::dsums, "dsums", {rows, 2}, normal(4));
    if (how == kOnto)
      c.inout(&G::dout, "dout", s, normal(), t).alias(&G::dqkv, &G::dout);
    else
      c.in(&G::dout, "dout", s, normal(), t);
    if (how == kApart || how == kInput) c.out(&G::dqkv, "dqkv", s, t);
    c.args.accumulate_dw = how == kOnto;
    if (how != kInput) c.result(&G::dgamma, "dgamma", gamma, how == kOnto, grads);
    common(c);
  }
  for (OpCase* c : made) {
    c->tolerance = std::max(unit_of(t), unit_of(grads)), c->skew = skew, c->big = big;
    c->flops = static_cast<double>(5 * s.numel());
  }
}

}  // namespace

void add_transformer_cases(OpCases& to) {
  add_rms(to);
  add_activations(to);
  add_ropes(to);
  for (const DType t : kTypes) {
    add_qk_norm(to, 5, 4, 2, 16, t, t, DType::kF32);
    add_qk_norm(to, 70, 3, 1, 64, t, DType::kF32, DType::kBF16, 1);
    add_qk_norm(to, 3, 2, 2, 33, t, t, DType::kF32);
    add_qk_norm(to, 4, 2, 1, 128, t, t, DType::kF32, 0, 1);
    add_qk_row(to, 5, 4, 2, 16, t, t, DType::kF32);
    add_qk_row(to, 70, 3, 1, 64, t, DType::kF32, DType::kBF16, 2);
    add_qk_row(to, 3, 2, 2, 33, t, t, DType::kF32);
    add_qk_row(to, 4, 2, 1, 128, t, t, DType::kF32, 1, 1);
  }
  add_qk_norm(to, 4096, 16, 4, 128, DType::kBF16, DType::kF32, DType::kF32, 0, 0, true);
  add_qk_row(to, 4096, 16, 4, 128, DType::kBF16, DType::kF32, DType::kF32, 1, 0, true);
}

}  // namespace gt::test
