// A small call of each op, with the numbers that a rank's part of it has.
#include <algorithm>
#include <cmath>

#include "tests/parallel/op_placements.h"

namespace gt::placements {
namespace {

constexpr auto kIds = Draw::kIds;
constexpr auto kPositive = Draw::kPositive;
constexpr DType kI32 = DType::kI32, kF8 = DType::kF8E4M3;

void add_gemm_cases(std::vector<OpCase>& to) {
  using F = std::vector<FieldSpec>;
  const FieldSpec a{"a", {8, 12}}, b{"b", {12, 4}}, b_rows{"b", {4, 12}}, bias{"bias", {4}}, out{"out", {8, 4}},
      aux{"aux", {8, 4}}, dbias{"dbias", {4}};
  add(to, Gemm{}, "", F{a, b, out});
  add(to, Gemm{}, "with bias", F{a, b, bias, out});
  add(to, Gemm{.trans_b = true}, "b transposed", F{a, b_rows, bias, out});
  add(to, Gemm{.accumulate = true}, "added", F{a, b, out});
  add(to, Gemm{.epilogue = Epilogue::kGelu}, "gelu", F{a, b, bias, out, aux});
  add(to, Gemm{.trans_b = true, .epilogue = Epilogue::kGelu}, "gelu, b transposed", F{a, b_rows, bias, out, aux});
  add(to, Gemm{.epilogue = Epilogue::kGeluGrad}, "gelu's gradient", F{a, b, out, aux, dbias});
  add(to, Gemm{.trans_b = true, .epilogue = Epilogue::kGeluGrad}, "gelu's gradient, b transposed",
      F{a, b_rows, out, aux, dbias});
  add(to, Gemm{.trans_a = true}, "a transposed", F{{"a", {12, 8}}, b, out, {"dbias", {8}}});
  add(to, Gemm{.trans_a = true, .accumulate = true, .accumulate_dbias = true}, "a transposed, added",
      F{{"a", {12, 8}}, b, out, {"dbias", {8}}});
  add(to, Gemm{.trans_a = true, .trans_b = true}, "both transposed", F{{"a", {12, 8}}, b_rows, out});
}

void add_elementwise_cases(std::vector<OpCase>& to) {
  const Shape s{8, 4};
  const FieldSpec x{"x", s}, out{"out", s};
  add(to, Add{}, "", {{"a", s}, {"b", s}, out});
  add(to, Axpy{.alpha = 0.5f}, "", {x, {"y", s}});
  add(to, Scale{.factor = 3}, "", {x, out});
  add(to, SoftCap{.cap = 2}, "", {x, out});
  add(to, Copy{}, "", {{"src", s}, {"dst", s}});
  add(to, AddBias{}, "", {x, {"bias", {4}}, out});
  add(to, ColumnSums{}, "", {x, {"out", {4}}});
  add(to, ColumnSums{.accumulate = true}, "added", {x, {"out", {4}}});
  add(to, Cast{}, "", {{"src", s}, {"dst", s, {}, DType::kBF16}}).tolerance = 0.05;
  add(to, Gelu{}, "", {x, out});
  add(to, GeluGrad{}, "", {x, {"dout", s}, {"dx", s}});
  add(to, GeluGrad{.accumulate = true}, "added", {x, {"dout", s}, {"dx", s}});
  const FieldSpec gated{"x", {4, 16}, {}, DType::kF32, {8, 8}};
  add(to, Activate{}, "gated", {gated, {"out", {4, 8}}});
  add(to, Activate{.kind = Activation::kRelu2, .gated = false}, "not gated", {x, out});
  add(to, ActivateGrad{}, "gated", {gated, {"dout", {4, 8}}, {"dx", {4, 16}, {}, DType::kF32, {8, 8}}});
  add(to, ActivateGrad{.kind = Activation::kTanh, .gated = false}, "not gated", {x, {"dout", s}, {"dx", s}});
  Dropout dropout;
  dropout.drop.mask = drop_mask(17, 0.4);
  dropout.drop.rows.seq = 4;
  add<Dropout>(to, dropout, "", {x, out}, [](Dropout& d, const Cut& cut) {
    d.drop.rows.first_row = cut.begin('0', 8);
    d.drop.first_column = cut.begin('1', 4), d.drop.width = 4;
  }).flat = false;
  add(to, Sum{}, "", {{"x", {8}}, {"out", {1}, {}, DType::kF64}});
  add(to, Normalize{.eps = 1e-3f}, "", {x, {"squares", {1}, kPositive, DType::kF64}, out});
  StochasticRound round;
  round.key = 5, round.cols = 4, round.stride = 4;
  add<StochasticRound>(
      to, round, "",
      {{"src", s}, {"dst", s, {}, DType::kBF16}, {"scalars", {kNumScalars}, kIds, DType::kF32, {}, "_", 1}},
      [](StochasticRound& r, const Cut& cut) {
        r.first = 0;
        r.base = 4 * cut.begin('0', 8) + cut.begin('1', 4);
        r.cols = 4 / cut.parts('1');
      })
      .flat = false;
  add(to, FakeQuant{}, "", {x, {"limits", {8}, kPositive, DType::kF32, {}, "0"}, out}).flat = false;
  add(to, FakeQuantGrad{}, "", {x, {"limits", {8}, kPositive, DType::kF32, {}, "0"}, {"dout", s}, {"dx", s}}).flat =
      false;
  add(to, FakeQuant{}, "of a tensor",
      {{"x", {1, 32}}, {"limits", {1}, kPositive, DType::kF32, {}, "_"}, {"out", {1, 32}}});
  add(to, QuantizeInt8{}, "", {x, {"scales", {8}, kPositive, DType::kF32, {}, "0"}, {"out", s, {}, DType::kI8}}).flat =
      false;
  add(to, DequantizeInt8{}, "", {{"x", s, {}, DType::kI8}, {"scales", {8}, kPositive, DType::kF32, {}, "0"}, out})
      .flat = false;
}

void add_norm_cases(std::vector<OpCase>& to) {
  const Shape s{8, 4};
  const FieldSpec x{"x", s}, gamma{"gamma", {4}}, beta{"beta", {4}}, mean{"mean", {8}}, out{"out", s}, dout{"dout", s},
      delta{"delta", s}, dx{"dx", s}, dgamma{"dgamma", {4}}, rstd{"rstd", {8}, kPositive};
  add(to, LayerNorm{}, "", {x, gamma, beta, out, mean, rstd});
  add(to, LayerNorm{}, "with residual", {x, delta, gamma, beta, {"sum", s}, out, mean, rstd});
  add(to, LayerNorm{.kind = NormKind::kRms}, "rms", {x, gamma, out, rstd});
  add(to, LayerNormGrad{}, "", {x, gamma, mean, rstd, dout, dx, dgamma, {"dbeta", {4}}});
  add(to, LayerNormGrad{.accumulate_dw = true, .kind = NormKind::kRms}, "rms, added",
      {x, gamma, rstd, dout, dx, dgamma});
  LayerNormGrad grad;
  grad.drop.mask = drop_mask(3, 0.25);
  grad.drop.rows.seq = 4;
  add<LayerNormGrad>(
      to, grad, "with residual",
      {x, gamma, mean, rstd, dout, {"dsum", s}, dx, dgamma, {"dbeta", {4}}, {"ddelta", s}, {"dbias", {4}}},
      [](LayerNormGrad& a, const Cut& cut) { a.drop.rows.first_row = cut.begin('t', 8); });
}

void add_loss_cases(std::vector<OpCase>& to) {
  const FieldSpec logits{"logits", {4, 12}}, targets{"targets", {4}, kIds, kI32, {}, nullptr, 12}, seed{"seed", {1}},
      loss{"loss", {4}}, dlogits{"dlogits", {4, 12}}, hits{"hits", {4}};
  add(to, CrossEntropy{.vocab = 12, .z_loss = 0.1f}, "", {logits, targets, seed, loss, dlogits, hits});
  OpCase& stats =
      add<CrossEntropyStats>(to, {.vocab = 12}, "", {logits, targets, {"stats", {1, 4, 3}}},
                             [](CrossEntropyStats& s, const Cut& cut) { s.first_col = cut.begin('v', 12); });
  stats.fields[2].one_each = true;
  stats.combine = [](const Values& parts) {
    Values one = empty_values({1, 4, 3}, DType::kF32);
    const int64_t n = parts.shape.numel() / 12;
    for (int64_t row = 0; row < 4; ++row) {
      double most = -HUGE_VAL, sum = 0, target = 0;
      for (int64_t k = 0; k < n; ++k) most = std::max(most, parts.at(12 * k + 3 * row));
      for (int64_t k = 0; k < n; ++k)
        sum += parts.at(12 * k + 3 * row + 1) * std::exp(parts.at(12 * k + 3 * row) - most),
            target += parts.at(12 * k + 3 * row + 2);
      one.set(3 * row, most), one.set(3 * row + 1, sum), one.set(3 * row + 2, target);
    }
    return one;
  };
  const OpCase of_one = stats;
  OpCase& grad = add<CrossEntropyGrad>(to, {.vocab = 12}, "",
                                       {logits, targets, {"stats", {1, 4, 3}, kPositive}, seed, loss, dlogits, hits},
                                       [](CrossEntropyGrad& g, const Cut& cut) { g.first_col = cut.begin('v', 12); });
  Values made = grad.fields[2].value;
  of_one.call(std::vector{grad.fields[0].value.tensor(), grad.fields[1].value.tensor(), made.tensor()}, {});
  grad.fields[2].value = made;
}

void add_quantized_cases(std::vector<OpCase>& to) {
  const FieldSpec amax{"amax", {1}, kPositive, DType::kF32, {}, "_"},
      inverse{"scale_inv", {1}, {}, DType::kF32, {}, "_"};
  add(to, QuantizeFp8{}, "",
      {{"x", {8, 4}}, amax, {"sums", {4}}, {"rowwise", {8, 4}, {}, kF8}, {"columnwise", {4, 8}, {}, kF8}, inverse});
  QuantizeFp8 grad;
  grad.of = Fp8Source::kGeluGrad, grad.accumulate = true;
  add(to, grad, "gelu's gradient",
      {{"x", {8, 4}},
       {"pre", {8, 4}},
       amax,
       {"sums", {4}},
       {"rowwise", {8, 4}, {}, kF8},
       {"columnwise", {4, 8}, {}, kF8},
       inverse});
  add(to, GemmFp8{}, "",
      {{"a", {64, 64}, {}, kF8},
       {"b", {64, 64}, {}, kF8},
       {"bias", {64}},
       {"out", {64, 64}},
       {"a_scale", {1}, kPositive, DType::kF32, {}, "_"},
       {"b_scale", {1}, kPositive, DType::kF32, {}, "_"}});
}

void add_routing_cases(std::vector<OpCase>& to) {
  const FieldSpec logits{"logits", {8, 4}}, experts{"experts", {8, 2}, kIds, kI32, {}, nullptr, 4},
      dweights{"dweights", {8, 2}}, dlogits{"dlogits", {8, 4}};
  add(to, Route{}, "", {logits, experts, {"weights", {8, 2}}});
  add(to, Route{.gate = {GateKind::kSigmoid, false, 2.5f}}, "sigmoid", {logits, experts, {"weights", {8, 2}}});
  add(to, Route{.gate = {GateKind::kSigmoid, true, 1, 2, 1}}, "biased",
      {logits, {"bias", {4}}, experts, {"weights", {8, 2}}, {"counts", {4}, {}, DType::kF64}});
  add(to, RouteGrad{}, "", {logits, experts, dweights, dlogits});
  add(to, RouteGrad{.gate = {GateKind::kSigmoid}, .accumulate = true}, "added", {logits, experts, dweights, dlogits});
  add(to, BalanceLoss{.seq = 2}, "", {logits, experts, {"seed", {1}}, {"loss", {4}}, dlogits});
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> to;
    add_gemm_cases(to);
    add_elementwise_cases(to);
    add_norm_cases(to);
    add_loss_cases(to);
    add_quantized_cases(to);
    add_routing_cases(to);
    add_transformer_cases(to);
    return to;
  }();
  return all;
}

}  // namespace gt::placements
