// Ops of routed layers: gradients against finite differences, and what parity with the reference does not show: rows
// that depend on no other row, experts without rows, ties.
#include <cstring>
#include <vector>

#include "kernels/core/open_stream.h"
#include "tests/kernels/every_isa.h"
#include "tests/kernels/finite_difference.h"

namespace gt::test {
namespace {

constexpr DType kI = DType::kI32;

template <class T>
Tensor tensor_of(std::vector<T>& v, Shape s, DType t) {
  return {reinterpret_cast<std::byte*>(v.data()), s, t, {}};
}

std::vector<float> random_values(int64_t n, uint64_t key) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<float>(philox_normal(key, static_cast<uint64_t>(i))));
  return out;
}

// A layer of 4 experts, of which one gets no token, for 5 tokens of 6 channels, from logits to the combined output.
void routed_layer(Problem& p, const Gate& gate, Activation kind, bool gated, int64_t k) {
  const int64_t n = 5, hidden = 6, experts = 4, width = 7, inner = gated ? 2 * width : width, r = n * k;
  const Tensor x = p.random({n, hidden}), logits = p.random({n, experts}, 1.5);
  for (int64_t t = 0; t < n; ++t) set(logits, t * experts + 2, -6);
  const Tensor w_up = p.random({experts, inner, hidden}, 0.5), w_down = p.random({experts, hidden, width}, 0.5);
  const Tensor chosen = p.empty({n, k}, kI), slots = p.empty({r}, kI), rows = p.empty({n, k}, kI);
  const Tensor offsets = p.empty({experts + 1}, kI), weights = p.empty({n, k}), h = p.empty({r, inner});
  const Tensor a = p.empty({r, width}), z = p.empty({r, hidden}), y = p.empty({n, hidden}), dy = p.add_output(y);
  const Tensor da = p.empty({r, width}), dh = p.empty({r, inner}), dweights = p.empty({n, k}),
               dz = p.empty({r, hidden});
  const Tensor dx = p.add_input("x", x), dlogits = p.add_input("logits", logits);
  const Tensor dup = p.weight_gradient_of("up", w_up), ddown = p.weight_gradient_of("down", w_down);
  p.forward = [=, &p] {
    p.ops.route({logits, chosen, weights, gate}, {});
    p.ops.group_rows({chosen, slots, rows, offsets}, {});
    p.ops.grouped_gemm({x, w_up, slots, offsets, h, k, true}, {});
    p.ops.expert_activate({h, weights, slots, a, kind, gated}, {});
    p.ops.grouped_gemm({.a = a, .b = w_down, .offsets = offsets, .out = z, .trans_b = true}, {});
    p.ops.combine_rows({z, rows, y}, {});
  };
  p.backward = [=, &p] {
    p.ops.grouped_gemm({dy, w_down, slots, offsets, da, k}, {});
    p.ops.grouped_gemm_grad({dy, a, slots, offsets, ddown, k, true}, {});
    p.ops.expert_activate_grad({h, weights, slots, da, dh, dweights, kind, gated}, {});
    p.ops.grouped_gemm_grad({dh, x, slots, offsets, dup, k}, {});
    p.ops.grouped_gemm({.a = dh, .b = w_up, .offsets = offsets, .out = dz}, {});
    p.ops.combine_rows({dz, rows, dx}, {});
    p.ops.route_grad({logits, chosen, dweights, dlogits, gate}, {});
  };
}

void balance(Problem& p, GateKind kind) {
  const int64_t n = 8, experts = 5, k = 2;
  const Tensor logits = p.random({n, experts}), chosen = p.empty({n, k}, kI), weights = p.empty({n, k});
  const Tensor loss = p.empty({2}), one = p.empty({1}), dlogits = p.add_input("logits", logits);
  p.ops.route({logits, chosen, weights, {}}, {});
  set(one, 0, 1);
  const Tensor factor = p.add_output(loss);
  for (int64_t i = 0; i < 2; ++i) set(factor, i, 1);
  p.forward = [=, &p] { p.ops.balance_loss({logits, chosen, one, loss, {}, 4, kind}, {}); };
  p.backward = [=, &p] { p.ops.balance_loss({logits, chosen, one, loss, dlogits, 4, kind}, {}); };
}

}  // namespace

TEST_CASE("finite differences: routed layers, every gate") {
  for (const GateKind kind : {GateKind::kSoftmax, GateKind::kSigmoid})
    for (const bool normalize : {true, false}) {
      INFO("gate " << static_cast<int>(kind) << (normalize ? "" : ", not normalized"));
      const Gate gate{.kind = kind, .normalize = normalize, .scale = 1.5f};
      expect_gradients([&](Problem& p) { routed_layer(p, gate, Activation::kSilu, true, 2); });
      if (!normalize) expect_gradients([&](Problem& p) { routed_layer(p, gate, Activation::kGelu, false, 1); });
    }
}

TEST_CASE("finite differences: experts of groups") {
  const Gate gate{.kind = GateKind::kSigmoid, .scale = 1.5f, .groups = 2, .top_groups = 1};
  expect_gradients([&](Problem& p) { routed_layer(p, gate, Activation::kSilu, true, 2); });
}

TEST_CASE("finite differences: the balance loss of experts") {
  expect_gradients([](Problem& p) { balance(p, GateKind::kSoftmax); });
  expect_gradients([](Problem& p) { balance(p, GateKind::kSigmoid); });
}

TEST_CASE("a row that an expert computes alone is bitwise that among 4,096, with every instruction set") {
  constexpr int64_t kRows = 4096, kIn = 300, kOut = 70;
  std::vector<float> a = random_values(kRows * kIn, 1), b = random_values(kIn * kOut, 2), out(kRows * kOut),
                     alone(kOut);
  std::vector<int32_t> all{0, kRows}, one{0, 1};
  const OpenStream stream(*cpu_backend().device, 0, 3);
  on_every_isa([&] {
    for (const bool trans_b : {true, false}) {
      const Tensor w = tensor_of(b, trans_b ? Shape{1, kOut, kIn} : Shape{1, kIn, kOut}, DType::kF32);
      GroupedGemm g{.a = tensor_of(a, {kRows, kIn}, DType::kF32),
                    .b = w,
                    .offsets = tensor_of(all, {2}, kI),
                    .out = tensor_of(out, {kRows, kOut}, DType::kF32),
                    .trans_b = trans_b};
      cpu_backend().ops->grouped_gemm(g, stream);
      for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{130}, kRows - 1}) {
        GroupedGemm single = g;
        single.a = g.a.slice(row, 1), single.offsets = tensor_of(one, {2}, kI);
        single.out = tensor_of(alone, {1, kOut}, DType::kF32);
        cpu_backend().ops->grouped_gemm(single, stream);
        const bool same = std::memcmp(alone.data(), out.data() + row * kOut, kOut * sizeof(float)) == 0;
        INFO("row " << row << (trans_b ? ", transposed" : ""));
        CHECK(same);
      }
    }
  });
}

namespace {

// Experts and weights of one token with these logits.
struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<double> counts;
};
Choice choice_of(std::vector<float> logits, int64_t k, const Gate& gate, std::vector<float> bias = {}) {
  const auto count = static_cast<int64_t>(logits.size());
  Choice out{std::vector<int32_t>(static_cast<size_t>(k)), std::vector<float>(static_cast<size_t>(k)),
             std::vector<double>(logits.size(), 2)};
  cpu_backend().ops->route({.logits = tensor_of(logits, {1, count}, DType::kF32),
                            .experts = tensor_of(out.experts, {1, k}, kI),
                            .weights = tensor_of(out.weights, {1, k}, DType::kF32),
                            .gate = gate,
                            .bias = bias.empty() ? Tensor{} : tensor_of(bias, {count}, DType::kF32),
                            .counts = tensor_of(out.counts, {count}, DType::kF64)},
                           {});
  return out;
}

float sigmoid(float z) { return 1 / (1 + std::exp(-z)); }

}  // namespace

TEST_CASE("a bias changes which experts are chosen, and never their weights") {
  const Gate gate{.kind = GateKind::kSigmoid, .normalize = false, .scale = 2};
  const std::vector<float> logits{1, 0.5f, -1, 0};
  CHECK(choice_of(logits, 2, gate).experts == std::vector<int32_t>{0, 1});
  const Choice biased = choice_of(logits, 2, gate, {-0.5f, 0, 0.5f, 0});
  CHECK(biased.experts == std::vector<int32_t>{2, 1});
  CHECK(biased.weights == std::vector<float>{2 * sigmoid(-1), 2 * sigmoid(0.5f)});
  CHECK(biased.counts == std::vector<double>{2, 3, 3, 2});  // added to what was there
  CHECK(choice_of(logits, 2, gate, {0, 0, 1e-9f, 0}).experts == std::vector<int32_t>{0, 1});
  CHECK(choice_of({0, 0, 0, 0}, 2, gate, {0, 0, 0, 0}).experts == std::vector<int32_t>{0, 1});  // ties: lower index
  const Choice low = choice_of({-200, -200, -200, -200}, 2, {.kind = GateKind::kSigmoid});
  CHECK(low.weights == std::vector<float>{0, 0});  // sigmoids that are 0 have no sum to divide by
}

TEST_CASE("the best groups have the largest sums of two scores, and experts of others are chosen by no score") {
  const Gate gate{.kind = GateKind::kSigmoid, .normalize = false, .groups = 2, .top_groups = 1};
  // The best expert is in the first group, the best two are the second's.
  CHECK(choice_of({3, -3, -3, 1, 1, -3}, 2, gate).experts == std::vector<int32_t>{3, 4});
  // All scores are below 0: experts of the other group do not count as 0.
  const std::vector<float> negative(6, -2);
  CHECK(choice_of({-3, -1, -2, 0, 1, -3}, 3, gate, negative).experts == std::vector<int32_t>{4, 3, 5});
  CHECK(choice_of({0, 0, 0, 0, 0, 0}, 2, gate).experts == std::vector<int32_t>{0, 1});  // of equal groups the first
  const float nan = std::nanf("");
  for (const int32_t e : choice_of(std::vector<float>(6, nan), 3, gate).experts) CHECK((e >= 0 && e < 6));
}

TEST_CASE("equal logits choose the experts of lower index, and their slots stay in the order of the tokens") {
  std::vector<float> logits(3 * 6), weights(3 * 2);
  std::vector<int32_t> chosen(6), slots(6), rows(6), offsets(7);
  const Tensor experts = tensor_of(chosen, {3, 2}, kI);
  cpu_backend().ops->route(
      {tensor_of(logits, {3, 6}, DType::kF32), experts, tensor_of(weights, {3, 2}, DType::kF32), {}}, {});
  CHECK(chosen == std::vector<int32_t>{0, 1, 0, 1, 0, 1});
  CHECK(weights == std::vector<float>(6, 0.5f));
  cpu_backend().ops->group_rows(
      {experts, tensor_of(slots, {6}, kI), tensor_of(rows, {3, 2}, kI), tensor_of(offsets, {7}, kI)}, {});
  CHECK(slots == std::vector<int32_t>{0, 2, 4, 1, 3, 5});
  CHECK(rows == std::vector<int32_t>{0, 3, 1, 4, 2, 5});
  CHECK(offsets == std::vector<int32_t>{0, 3, 6, 6, 6, 6, 6});
}

}  // namespace gt::test
