// Cases of routed layers: experts without rows, with one and with many, sizes that are no multiple of a vector or of a
// panel, inner dimensions of more than one block, more slots than a GPU sorts at once, every dtype.
#include <algorithm>

#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

constexpr DType kI = DType::kI32;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Routes of `tokens` tokens: the first experts get more, some none.
int64_t expert_of(int64_t token, int64_t choice, int64_t experts) {
  return (token % 5 == 0 ? choice : (token * token + 3 * choice) % (experts > 2 ? experts - 1 : experts)) % experts;
}

// Experts chosen by each token: distinct ones.
void fill_experts(const Tensor& experts, int64_t count) {
  const int64_t k = experts.shape.cols();
  for (int64_t t = 0; t < experts.shape.rows(); ++t)
    for (int64_t j = 0; j < k; ++j) {
      int64_t e = expert_of(t, j, count);
      for (int64_t i = 0; i < j; ++i)
        if (static_cast<int64_t>(get(experts, t * k + i)) == e) e = (e + 1) % count, i = -1;
      set(experts, t * k + j, static_cast<double>(e));
    }
}

// Writes slots and offsets of such routes of slots.numel() / k tokens.
void fill_groups(const Tensor& slots, const Tensor& offsets, int64_t k) {
  const int64_t count = offsets.numel() - 1, tokens = slots.numel() / k;
  std::vector<int32_t> experts(static_cast<size_t>(slots.numel())), rows(experts.size());
  const auto tensor = [&](std::vector<int32_t>& v) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), {tokens, k}, kI, {}};
  };
  fill_experts(tensor(experts), count);
  reference::group_rows({.experts = tensor(experts), .slots = slots, .rows = tensor(rows), .offsets = offsets}, {});
}

std::string label(const Gate& g) {
  return cat(g.kind == GateKind::kSigmoid ? " sigmoid" : "", g.normalize ? "" : " not normalized",
             g.scale == 1 ? "" : " scaled");
}

constexpr Gate kGates[] = {{},
                           {.normalize = false},
                           {.kind = GateKind::kSigmoid, .scale = 2.5f},
                           {.kind = GateKind::kSigmoid, .normalize = false},
                           {.scale = 2.5f}};

// Benchmarks (`big`, here and below) derive nothing: their experts and slots are random.
void add_routes(OpCases& to, int64_t tokens, int64_t experts, int64_t k, const Gate& gate, bool big = false) {
  const std::string name = cat("[", tokens, ", ", experts, "] k ", k, label(gate));
  auto& r = add_case<Route>(to, name);
  r.in(&Route::logits, "logits", {tokens, experts}, normal(2, -1));
  r.out(&Route::experts, "experts", {tokens, k}, kI).out(&Route::weights, "weights", {tokens, k});
  r.args.gate = gate, r.big = big;
  for (const bool accumulate : {false, true}) {
    using G = RouteGrad;
    auto& g = add_case<G>(to, name + (accumulate ? " accumulate" : ""));
    g.in(&G::logits, "logits", {tokens, experts}, normal(2, -1));
    g.in(&G::experts, "experts", {tokens, k}, ids(0, experts), kI).in(&G::dweights, "dweights", {tokens, k});
    g.result(&G::dlogits, "dlogits", {tokens, experts}, accumulate);
    g.args.gate = gate, g.args.accumulate = accumulate, g.big = big;
    g.derive = [](const G& a) {
      std::vector<float> w(static_cast<size_t>(a.dweights.numel()));
      reference::route({a.logits, a.experts, {reinterpret_cast<std::byte*>(w.data()), a.dweights.shape}, a.gate}, {});
    };
  }
}

// Experts chosen with a bias, from groups, and counted.
void add_biased_routes(OpCases& to, int64_t tokens, int64_t experts, int64_t k, const Gate& gate, bool bias) {
  auto& r = add_case<Route>(to, cat("[", tokens, ", ", experts, "] k ", k, ", ", gate.top_groups, " of ", gate.groups,
                                    " groups", label(gate), bias ? ", bias" : ""));
  r.in(&Route::logits, "logits", {tokens, experts}, normal(2, -1));
  if (bias) r.in(&Route::bias, "bias", {experts}, normal(0.5, -0.3));
  r.out(&Route::experts, "experts", {tokens, k}, kI).out(&Route::weights, "weights", {tokens, k});
  r.result(&Route::counts, "counts", {experts}, true, DType::kF64);
  r.args.gate = gate;
}

void add_ties(OpCases& to) {
  auto& r = add_case<Route>(to, "ties");
  r.in(&Route::logits, "logits", {9, 7}, values({0, 1, 1, 0, -1, 1, 0, 0}));
  r.out(&Route::experts, "experts", {9, 4}, kI).out(&Route::weights, "weights", {9, 4});
}

void add_balance(OpCases& to, int64_t sequences, int64_t seq, int64_t experts, int64_t k, GateKind kind, bool grads,
                 bool big = false) {
  using B = BalanceLoss;
  const int64_t n = sequences * seq;
  auto& c = add_case<B>(to, cat("[", sequences, " x ", seq, ", ", experts, "] k ", k,
                                kind == GateKind::kSigmoid ? " sigmoid" : "", grads ? "" : " loss only"));
  c.in(&B::logits, "logits", {n, experts}, normal(2)).in(&B::experts, "experts", {n, k}, ids(0, experts), kI);
  c.in(&B::seed, "seed", {1}).out(&B::loss, "loss", {sequences});
  if (grads) c.out(&B::dlogits, "dlogits", {n, experts});
  c.args.seq = seq, c.args.kind = kind, c.big = big;
  c.derive = [experts](const B& a) { fill_experts(a.experts, experts); };
}

void add_group(OpCases& to, int64_t tokens, int64_t experts, int64_t k, bool big = false) {
  using G = GroupRows;
  auto& c = add_case<G>(to, cat("[", tokens, ", ", k, "] of ", experts));
  c.in(&G::experts, "experts", {tokens, k}, ids(0, experts), kI);
  c.out(&G::slots, "slots", {tokens * k}, kI).out(&G::rows, "rows", {tokens, k}, kI);
  c.out(&G::offsets, "offsets", {experts + 1}, kI);
  c.tolerance = 0, c.big = big;
  c.derive = [experts](const G& a) { fill_experts(a.experts, experts); };
}

// What is behind the copies that there are is undefined: every token has experts on every rank, or on one alone.
void add_send(OpCases& to, int64_t tokens, int64_t experts, int64_t k, int64_t ranks, bool big = false) {
  using S = SendRows;
  auto& c = add_case<S>(to, cat("[", tokens, ", ", k, "] of ", experts, " on ", ranks, " ranks"));
  c.in(&S::experts, "experts", {tokens, k}, ids(0, experts), kI);
  c.out(&S::slots, "slots", {tokens * k}, kI).out(&S::rows, "rows", {tokens, k}, kI);
  c.out(&S::copies, "copies", {tokens * std::min(k, ranks)}, kI).out(&S::parts, "parts", {tokens * k, 2}, kI);
  c.out(&S::counts, "counts", {ranks, 2}, kI);
  c.args.count = experts, c.tolerance = 0, c.big = big;
  c.derive = [experts, k, ranks](const S& a) {
    for (int64_t i = 0; i < a.experts.numel(); ++i) {
      const int64_t t = i / k, j = i % k, each = experts / ranks;
      const int64_t e = k >= ranks ? (t + j) % ranks * each + (t + j) / ranks % each : (t * 7 + j * each) % experts;
      set(a.experts, i, static_cast<double>(e));
    }
  };
}

// Rank d sends 3 d copies, each of whose tokens has two slots; the first rank has none.
void add_receive(OpCases& to, int64_t ranks, int64_t experts, bool big = false) {
  using R = ReceiveRows;
  const int64_t parts = 3 * ranks * (ranks - 1);
  auto& c = add_case<R>(to, cat(parts, " parts of ", ranks, " ranks, ", experts, " experts"));
  c.in(&R::parts, "parts", {parts, 2}, ids(0, experts), kI).in(&R::counts, "counts", {ranks, 2}, ids(0, 1), kI);
  c.out(&R::slots, "slots", {parts}, kI).out(&R::tokens, "tokens", {parts}, kI).out(&R::rows, "rows", {parts, 1}, kI);
  c.out(&R::offsets, "offsets", {experts + 1}, kI);
  c.tolerance = 0, c.big = big;
  c.derive = [ranks](const R& a) {
    int64_t part = 0;
    for (int64_t d = 0; d < ranks; ++d) {
      set(a.counts, 2 * d, static_cast<double>(3 * d));
      set(a.counts, 2 * d + 1, static_cast<double>(6 * d));
      for (int64_t i = 0; i < 6 * d; ++i) set(a.parts, 2 * part++, static_cast<double>(i / 2));
    }
  };
}

struct Sizes {
  int64_t tokens, experts, k, rows, cols;  // of an expert's matrix
};

// Offsets of experts with as many rows each.
std::vector<double> even(const Sizes& z) {
  std::vector<double> out;
  for (int64_t e = 0; e <= z.experts; ++e) out.push_back(static_cast<double>(e * z.tokens * z.k / z.experts));
  return out;
}

void add_gemm(OpCases& to, const Sizes& z, bool trans_b, bool gather, DType t, bool big = false) {
  using G = GroupedGemm;
  const int64_t r = z.tokens * z.k;
  auto& c = add_case<G>(to, cat(z.tokens, " tokens, ", z.experts, " experts, k ", z.k, ", [", z.rows, ", ", z.cols, "]",
                                trans_b ? " transposed" : "", gather ? " gathered" : "", suffix(t)));
  c.in(&G::a, "a", {gather ? z.tokens : r, z.rows}, normal(), t);
  c.in(&G::b, "b", trans_b ? Shape{z.experts, z.cols, z.rows} : Shape{z.experts, z.rows, z.cols}, normal(), t);
  c.in(&G::slots, "slots", {r}, ids(0, r), kI).in(&G::offsets, "offsets", {z.experts + 1}, values(even(z)), kI);
  c.out(&G::out, "out", {r, z.cols}, t);
  c.args.top_k = z.k, c.args.trans_b = trans_b;
  c.tolerance = unit_of(t), c.big = big;
  c.flops = static_cast<double>(2 * r * z.rows * z.cols);
  c.derive = [k = z.k](const G& a) { fill_groups(a.slots, a.offsets, k); };
}

void add_gemm_in_order(OpCases& to, const Sizes& z, bool trans_b, DType t) {
  using G = GroupedGemm;
  const int64_t r = z.tokens * z.k;
  auto& c = add_case<G>(to, cat(z.tokens, " tokens, ", z.experts, " experts, k ", z.k, ", [", z.rows, ", ", z.cols, "]",
                                trans_b ? " transposed" : "", suffix(t)));
  c.in(&G::a, "a", {r, z.rows}, normal(), t);
  c.in(&G::b, "b", trans_b ? Shape{z.experts, z.cols, z.rows} : Shape{z.experts, z.rows, z.cols}, normal(), t);
  c.in(&G::offsets, "offsets", {z.experts + 1}, ids(0, r), kI).out(&G::out, "out", {r, z.cols}, t);
  c.args.trans_b = trans_b;
  c.tolerance = unit_of(t);
  c.flops = static_cast<double>(2 * r * z.rows * z.cols);
  c.derive = [r, k = z.k](const G& a) {
    std::vector<int32_t> slots(static_cast<size_t>(r));
    fill_groups({reinterpret_cast<std::byte*>(slots.data()), {r}, kI, {}}, a.offsets, k);
  };
}

void add_gemm_grad(OpCases& to, const Sizes& z, bool gather_a, bool accumulate, DType t, DType grads,
                   bool big = false) {
  using G = GroupedGemmGrad;
  const int64_t r = z.tokens * z.k;
  auto& c = add_case<G>(
      to, cat(z.tokens, " tokens, ", z.experts, " experts, k ", z.k, ", [", z.rows, ", ", z.cols, "]",
              gather_a ? " gathered a" : "", accumulate ? " accumulate" : "", suffix(t), grad_suffix(grads)));
  c.in(&G::a, "a", {gather_a ? z.tokens : r, z.rows}, normal(), t);
  c.in(&G::b, "b", {gather_a ? r : z.tokens, z.cols}, normal(), t);
  c.in(&G::slots, "slots", {r}, ids(0, r), kI).in(&G::offsets, "offsets", {z.experts + 1}, values(even(z)), kI);
  c.result(&G::out, "out", {z.experts, z.rows, z.cols}, accumulate, grads);
  c.args.top_k = z.k, c.args.gather_a = gather_a, c.args.accumulate = accumulate, c.big = big;
  c.tolerance = std::max(unit_of(t) / 4, unit_of(grads));
  c.flops = static_cast<double>(2 * r * z.rows * z.cols);
  c.derive = [k = z.k](const G& a) { fill_groups(a.slots, a.offsets, k); };
}

void add_activations(OpCases& to, int64_t tokens, int64_t k, int64_t width, Activation kind, bool gated, DType t,
                     bool big = false) {
  const int64_t r = tokens * k;
  const std::string name =
      cat("[", r, ", ", width, "] kind ", static_cast<int>(kind), gated ? " gated" : "", suffix(t));
  const Shape in{r, gated ? 2 * width : width};
  using A = ExpertActivate;
  auto& a = add_case<A>(to, name);
  a.in(&A::x, "x", in, normal(), t).in(&A::weights, "weights", {tokens, k}, positive());
  a.in(&A::slots, "slots", {r}, ids(0, r), kI).out(&A::out, "out", {r, width}, t);
  a.args.kind = kind, a.args.gated = gated, a.tolerance = 2 * unit_of(t), a.big = big;
  const auto permute = [](const Tensor& slots) {
    for (int64_t i = 0; i < slots.numel(); ++i) set(slots, i, static_cast<double>(slots.numel() - 1 - i));
  };
  a.derive = [permute](const A& args) { permute(args.slots); };
  using G = ExpertActivateGrad;
  auto& g = add_case<G>(to, name);
  g.in(&G::x, "x", in, normal(), t).in(&G::weights, "weights", {tokens, k}, positive());
  g.in(&G::slots, "slots", {r}, ids(0, r), kI).in(&G::dout, "dout", {r, width}, normal(), t);
  g.out(&G::dx, "dx", in, t).out(&G::dweights, "dweights", {tokens, k});
  g.args.kind = kind, g.args.gated = gated, g.tolerance = unit_of(t), g.big = big;
  g.derive = [permute](const G& args) { permute(args.slots); };
}

void add_combine(OpCases& to, int64_t tokens, int64_t k, int64_t cols, bool accumulate, DType t, bool big = false) {
  using C = CombineRows;
  auto& c = add_case<C>(to, cat("[", tokens, ", ", cols, "] k ", k, accumulate ? " accumulate" : "", suffix(t)));
  c.in(&C::x, "x", {tokens * k, cols}, normal(), t).in(&C::rows, "rows", {tokens, k}, ids(0, tokens * k), kI);
  c.result(&C::out, "out", {tokens, cols}, accumulate, t);
  c.args.accumulate = accumulate, c.tolerance = unit_of(t), c.big = big;
}

}  // namespace

void add_expert_cases(OpCases& to) {
  constexpr DType kF = DType::kF32;
  for (const Gate& gate : kGates) {
    add_routes(to, 5, 8, 2, gate);
    add_routes(to, 67, 33, 8, gate);
    add_routes(to, 3, 4, 4, gate);
  }
  add_routes(to, 9, 6, 1, {.normalize = false});
  for (const bool bias : {false, true})
    for (const bool normalize : {false, true}) {
      add_biased_routes(to, 67, 32, 5, {GateKind::kSigmoid, normalize, 2.5f, 8, 3}, bias);
      add_biased_routes(to, 9, 6, 2, {GateKind::kSigmoid, normalize, 1, 2, 1}, bias);
    }
  add_biased_routes(to, 40, 7, 3, {GateKind::kSigmoid}, true);
  add_ties(to);
  for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid}) {
    add_balance(to, 3, 11, 8, 2, kind, true);
    add_balance(to, 1, 40, 33, 8, kind, false);
    add_balance(to, 2, 150, 6, 3, kind, true);
  }
  add_group(to, 7, 4, 2);
  add_group(to, 201, 16, 8);
  add_group(to, 1, 3, 3);
  add_send(to, 11, 8, 4, 2);
  add_send(to, 40, 6, 1, 3);
  add_send(to, 1, 4, 4, 4);
  add_send(to, 300, 8, 4, 2);
  add_receive(to, 4, 3);
  add_receive(to, 2, 1);
  add_receive(to, 24, 5);
  constexpr Sizes kSizes[] = {
      {5, 4, 2, 6, 7}, {37, 6, 3, 33, 65}, {150, 3, 1, 300, 64}, {1, 9, 2, 16, 130}, {700, 3, 1, 40, 136}};
  for (const DType t : kTypes)
    for (const Sizes& z : kSizes) {
      for (const bool trans_b : {false, true}) {
        add_gemm(to, z, trans_b, true, t);
        add_gemm_in_order(to, z, trans_b, t);
      }
      for (const bool gather_a : {false, true})
        for (const bool accumulate : {false, true}) add_gemm_grad(to, z, gather_a, accumulate, t, kF);
    }
  add_gemm_grad(to, kSizes[1], true, true, DType::kBF16, DType::kBF16);
  add_gemm_grad(to, kSizes[1], false, false, kF, DType::kBF16);
  add_gemm(to, {1024, 8, 2, 512, 2048}, true, true, kF, true);
  add_gemm(to, {1024, 64, 8, 512, 256}, true, true, kF, true);
  add_gemm_grad(to, {1024, 8, 2, 2048, 512}, false, false, kF, kF, true);
  add_routes(to, 4096, 64, 8, {}, true);
  add_balance(to, 4, 1024, 64, 8, GateKind::kSoftmax, true, true);
  add_group(to, 4096, 64, 8, true);
  add_send(to, 4096, 64, 8, 8, true);
  add_receive(to, 64, 8, true);
  add_activations(to, 1024, 2, 1024, Activation::kSilu, true, kF, true);
  add_combine(to, 1024, 2, 512, false, kF, true);
  for (const DType t : kTypes)
    for (const bool gated : {true, false}) {
      add_activations(to, 9, 2, 33, Activation::kSilu, gated, t);
      add_activations(to, 3, 1, 700, Activation::kGelu, gated, t);
    }
  for (const DType t : kTypes)
    for (const bool accumulate : {false, true}) {
      add_combine(to, 7, 2, 33, accumulate, t);
      add_combine(to, 3, 8, 1300, accumulate, t);
      add_combine(to, 5, 1, 16, accumulate, t);
    }
}

}  // namespace gt::test
