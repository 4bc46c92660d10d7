// Cases of GEMM and layer norm.
#include <algorithm>
#include <vector>

#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

struct GemmSize {
  int64_t m, n, k;
};

std::string describe(const GemmSize& s, bool ta, bool tb) {
  return cat(s.m, "x", s.n, "x", s.k, ta ? " a transposed" : "", tb ? " b transposed" : "");
}

CaseOf<Gemm>& gemm_case(OpCases& to, GemmSize s, bool ta, bool tb, std::string what, bool accumulate = false,
                        DType in = DType::kF32, DType out = DType::kF32) {
  auto& c = add_case<Gemm>(to, describe(s, ta, tb) + what);
  c.args.trans_a = ta, c.args.trans_b = tb, c.args.accumulate = accumulate;
  c.in(&Gemm::a, "a", ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, normal(), in);
  c.in(&Gemm::b, "b", tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, normal(), in);
  c.result(&Gemm::out, "out", {s.m, s.n}, accumulate, out);
  c.flops = 2.0 * static_cast<double>(s.m * s.n * s.k);
  return c;
}

void add_epilogues(OpCases& to, GemmSize s, bool ta, bool tb, DType t, double tolerance) {
  const std::string kind = t == DType::kF32 ? "" : cat(" ", name_of(t));
  auto& bias = gemm_case(to, s, ta, tb, " bias" + kind, false, t, t);
  bias.in(&Gemm::bias, "bias", {s.n}, normal(), t);
  bias.tolerance = tolerance;
  for (const bool with_bias : {false, true}) {
    auto& g = gemm_case(to, s, ta, tb, (with_bias ? " bias gelu" : " gelu") + kind, false, t, t);
    if (with_bias) g.in(&Gemm::bias, "bias", {s.n}, normal(), t);
    g.out(&Gemm::aux, "aux", {s.m, s.n}, t);
    g.args.epilogue = Epilogue::kGelu;
    g.tolerance = tolerance;
  }
  auto& d = gemm_case(to, s, ta, tb, " gelu_grad" + kind, false, t, t);
  d.in(&Gemm::aux, "aux", {s.m, s.n}, normal(2), t);
  d.args.epilogue = Epilogue::kGeluGrad;
  d.tolerance = tolerance;
}

// Mixed-precision GEMMs: 16-bit inputs, with f32 or 16-bit bias, aux and out; weight gradients into f32.
void add_16bit_gemms(OpCases& to, DType h) {
  constexpr DType kF = DType::kF32;
  const double tolerance = h == DType::kBF16 ? 1e-2 : 2e-3;
  const std::string kind = suffix(h);
  for (const GemmSize& s : {GemmSize{1, 33, 7}, {33, 129, 65}, {70, 66, 128}, {70, 160, 66}}) {
    for (const bool tb : {false, true}) {
      gemm_case(to, s, false, tb, kind, false, h, h).tolerance = tolerance;
      gemm_case(to, s, false, tb, kind + " accumulate", true, h, h).tolerance = tolerance;
      gemm_case(to, s, true, !tb, kind + " to f32 accumulate", true, h, kF);
    }
    add_epilogues(to, s, false, true, h, tolerance);
    for (const auto& [aux, out] : {std::pair{h, kF}, {kF, h}, {kF, kF}}) {
      const std::string types = cat(kind, ", aux ", name_of(aux), ", out ", name_of(out));
      for (const DType bias : {kF, h}) {
        auto& g = gemm_case(to, s, false, true, cat(types, ", bias ", name_of(bias), " gelu"), false, h, out);
        g.in(&Gemm::bias, "bias", {s.n}, normal(), bias).out(&Gemm::aux, "aux", {s.m, s.n}, aux);
        g.args.epilogue = Epilogue::kGelu;
        g.tolerance = tolerance;
      }
      auto& d = gemm_case(to, s, false, false, types + " gelu_grad", false, h, out);
      d.in(&Gemm::aux, "aux", {s.m, s.n}, normal(2), aux);
      d.args.epilogue = Epilogue::kGeluGrad;
      d.tolerance = tolerance;
    }
  }
  auto& bias = gemm_case(to, {33, 129, 65}, false, true, kind + " bias f32", false, h, h);
  bias.in(&Gemm::bias, "bias", {129}).tolerance = tolerance;
  gemm_case(to, {33, 129, 65}, false, true, kind + " from unaligned addresses", false, h, h).tolerance = tolerance;
  to.back()->skew = 1;
  gemm_case(to, {130, 520, 64}, false, true, kind, false, h, h).tolerance = tolerance;  // several tiles and panels
  for (const bool tb : {false, true}) {  // several blocks of the inner dimension
    gemm_case(to, {600, 144, 1300}, false, tb, kind + " to f32", false, h, kF);
    gemm_case(to, {300, 144, 1300}, false, tb, kind, false, h, h).tolerance = tolerance;
  }
  for (const bool more : {false, true})
    gemm_case(to, {150, 144, 1301}, true, false, kind + (more ? " to f32 more" : " to f32"), more, h, kF);
}

// Parameters are packed without gaps: a bias may be unaligned while all else is aligned.
void add_unaligned_biases(OpCases& to) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool with_gelu : {false, true}) {
      const char* what = with_gelu ? " unaligned bias gelu" : " unaligned bias";
      auto& c = gemm_case(to, {64, 48, 32}, false, true, what + suffix(t), false, t, t);
      c.in(&Gemm::bias, "bias", {48}, normal(), t).skew = 1, c.skewed = "bias";
      c.tolerance = 2 * unit_of(t);  // of the sum, and of the GELU of it
      if (!with_gelu) continue;
      c.out(&Gemm::aux, "aux", {64, 48}, t).args.epilogue = Epilogue::kGelu;
    }
}

// Bias gradients fused with a GELU's gradient, and with a weight's. m, n, k: of the GEMM; 1000 rows are several blocks.
void add_bias_gradients(OpCases& to) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
    for (const DType grad : kGradients)
      for (const bool more : {false, true}) {
        const std::string kind = cat(suffix(t), more ? " accumulate" : "", " dbias", grad_suffix(grad));
        // Sums may be rounded to either dtype; without a fused GELU the GEMM result is rounded before it too.
        const double tolerance = 2 * unit_of(t) + unit_of(grad);
        for (const GemmSize& s : {GemmSize{1, 33, 7}, {33, 129, 65}, {130, 72, 64}, {1000, 24, 8}, {5, 24, 0}}) {
          auto& d = gemm_case(to, s, false, false, " gelu_grad" + kind, false, t, t);
          d.in(&Gemm::aux, "aux", {s.m, s.n}, normal(2), t);
          d.args.epilogue = Epilogue::kGeluGrad, d.args.accumulate_dbias = more;
          // A GPU's hardware tanh has an error of 2^-11; where it is fused, that alone moves f16 by 1.3e-3.
          d.result(&Gemm::dbias, "dbias", {s.n}, more, grad).tolerance = t == DType::kF16 ? 4e-3 : tolerance;
        }
        for (const GemmSize& s : {GemmSize{33, 1, 7}, {129, 33, 65}, {200, 800, 40}, {24, 8, 1000}, {24, 8, 0}}) {
          auto& w = gemm_case(to, s, true, false, kind, more, t, grad);
          w.args.accumulate_dbias = !more;  // weights and biases may differ in accumulation
          w.result(&Gemm::dbias, "dbias", {s.m}, !more, grad).tolerance = tolerance;
        }
        auto& unaligned = gemm_case(to, {33, 129, 65}, true, false, kind + " from unaligned addresses", more, t, grad);
        unaligned.args.accumulate_dbias = more;
        unaligned.result(&Gemm::dbias, "dbias", {33}, more, grad).skew = 1, unaligned.tolerance = tolerance;
      }
  auto& rank3 = add_case<Gemm>(to, "rank 3 weight gradient dbias");
  rank3.args.trans_a = true;
  rank3.in(&Gemm::a, "a", {2, 5, 33}).in(&Gemm::b, "b", {2, 5, 24}).out(&Gemm::out, "out", {33, 24});
  rank3.out(&Gemm::dbias, "dbias", {33});
  for (const bool more : {false, true}) {  // no rows: no sum
    auto& none = gemm_case(to, {0, 33, 7}, false, false, cat(" empty gelu_grad dbias", more ? " accumulate" : ""));
    none.in(&Gemm::aux, "aux", {0, 33});
    none.args.epilogue = Epilogue::kGeluGrad, none.args.accumulate_dbias = more;
    none.result(&Gemm::dbias, "dbias", {33}, more);
  }
}

void add_gemms(OpCases& to) {
  const GemmSize sizes[] = {{1, 1, 1}, {1, 33, 7}, {7, 1, 129}, {33, 129, 65}, {64, 48, 32}, {130, 70, 257}};
  for (const GemmSize& s : sizes) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        gemm_case(to, s, ta, tb, "");
        gemm_case(to, s, ta, tb, " accumulate", true);
        if (s.m == 33 || s.m == 64) add_epilogues(to, s, ta, tb, DType::kF32, 1e-5);
      }
    }
  }
  add_epilogues(to, {1, 7, 33}, false, true, DType::kF32, 1e-5);
  gemm_case(to, {0, 33, 7}, false, true, " empty");
  for (const bool tb : {false, true}) gemm_case(to, {300, 200, 150}, false, tb, "");  // worth splitting over threads
  gemm_case(to, {200, 300, 150}, true, false, " accumulate", true);
  gemm_case(to, {33, 129, 65}, false, true, " from unaligned addresses").skew = 1;

  auto& rank3 = add_case<Gemm>(to, "rank 3 activations");
  rank3.args.trans_b = true;
  rank3.in(&Gemm::a, "a", {2, 5, 24}).in(&Gemm::b, "b", {33, 24}).out(&Gemm::out, "out", {2, 5, 33});
  rank3.in(&Gemm::bias, "bias", {33});
  auto& weight_grad = add_case<Gemm>(to, "rank 3 weight gradient");
  weight_grad.args.trans_a = true, weight_grad.args.accumulate = true;
  weight_grad.in(&Gemm::a, "a", {2, 5, 33}).in(&Gemm::b, "b", {2, 5, 24}).inout(&Gemm::out, "out", {33, 24});

  for (const DType t : k16BitDtypes) {
    const double tolerance = t == DType::kBF16 ? 1e-2 : 2e-3;
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const std::string kind = cat(" ", name_of(t));
        gemm_case(to, {64, 48, 32}, ta, tb, kind, false, t, t).tolerance = tolerance;
        gemm_case(to, {64, 48, 32}, ta, tb, kind + " to f32", false, t, DType::kF32);
        gemm_case(to, {64, 48, 32}, ta, tb, kind + " to f32 accumulate", true, t, DType::kF32);
      }
    }
    add_epilogues(to, {64, 48, 32}, false, true, t, tolerance);
    add_16bit_gemms(to, t);
  }
  // Weight gradients into bf16, from operands of any dtype.
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const GemmSize& s : {GemmSize{1, 33, 7}, {33, 129, 65}, {64, 48, 32}, {130, 70, 257}}) {
      if (t == DType::kBF16 && s.m == 64) continue;  // covered above
      for (const bool ta : {false, true}) {
        const std::string kind = suffix(t) + grad_suffix(DType::kBF16);
        gemm_case(to, s, ta, false, kind, false, t, DType::kBF16).tolerance = unit_of(DType::kBF16);
        gemm_case(to, s, ta, false, kind + " accumulate", true, t, DType::kBF16).tolerance = unit_of(DType::kBF16);
      }
    }
    auto& unaligned =
        gemm_case(to, {33, 129, 65}, true, false, suffix(t) + " unaligned, gradient bf16", true, t, DType::kBF16);
    unaligned.skew = 1, unaligned.tolerance = unit_of(DType::kBF16);
  }
  add_unaligned_biases(to);
  add_bias_gradients(to);
  gemm_case(to, {1024, 1024, 1024}, true, false, ", gradient bf16", true, DType::kBF16, DType::kBF16).big = true;
  gemm_case(to, {1024, 1024, 1024}, true, false, " bf16, gradient f32", true, DType::kBF16).big = true;
  gemm_case(to, {1024, 1024, 1024}, false, true, "").big = true;
  gemm_case(to, {1024, 1024, 1024}, false, true, " bf16", false, DType::kBF16, DType::kBF16).big = true;
}

enum class Residual { kNone, kSeparate, kOntoX, kOntoDelta };

// Dtypes of a norm's rows, its weights, the residual branch, and the weight gradients.
struct NormTypes {
  DType rows = DType::kF32, weights = rows, delta = rows, grads = DType::kF32;
  std::string name() const {
    return suffix(rows) + (weights == rows ? "" : cat(" weights ", name_of(weights))) +
           (delta == rows ? "" : cat(" branch ", name_of(delta))) + grad_suffix(grads);
  }
};

CaseOf<LayerNorm>& norm_case(OpCases& to, int64_t rows, int64_t cols, Residual r, NormTypes types = {}) {
  const char* names[] = {"", " delta", " delta, sum is x", " delta, sum is delta"};
  const DType t = types.rows, w = types.weights;
  auto& c = add_case<LayerNorm>(to, cat("[", rows, ", ", cols, "]", names[static_cast<int>(r)], types.name()));
  const Shape s{rows, cols};
  if (r == Residual::kOntoX) {
    c.inout(&LayerNorm::x, "x", s, normal(2, 0.5), t).alias(&LayerNorm::sum, &LayerNorm::x);
  } else {
    c.in(&LayerNorm::x, "x", s, normal(2, 0.5), t);
  }
  if (r == Residual::kOntoDelta) {
    c.inout(&LayerNorm::delta, "delta", s, normal(), t).alias(&LayerNorm::sum, &LayerNorm::delta);
  } else if (r != Residual::kNone) {
    c.in(&LayerNorm::delta, "delta", s, normal(), types.delta);
  }
  if (r == Residual::kSeparate) c.out(&LayerNorm::sum, "sum", s, t);
  c.in(&LayerNorm::gamma, "gamma", {cols}, normal(0.3, 1), w).in(&LayerNorm::beta, "beta", {cols}, normal(), w);
  c.tolerance = unit_of(t);
  c.out(&LayerNorm::out, "out", s, t).out(&LayerNorm::mean, "mean", {rows}).out(&LayerNorm::rstd, "rstd", {rows});
  if (cols == 1) c.args.eps = 0.1f;
  return c;
}

enum class BiasGrad { kNone, kWritten, kAdded };
struct NormGrad {
  bool dsum, alias, accumulate_dx, dw, accumulate_dw, dx = true;
  BiasGrad dbias = BiasGrad::kNone;
};

CaseOf<LayerNormGrad>& norm_grad_case(OpCases& to, int64_t rows, int64_t cols, NormGrad f, NormTypes types = {}) {
  const DType t = types.rows;
  auto& c =
      add_case<LayerNormGrad>(to, cat("[", rows, ", ", cols, "]", f.dsum ? " dsum" : "", f.alias ? ", dx is dsum" : "",
                                      f.accumulate_dx ? " accumulate dx" : "", f.dx ? "" : " no dx",
                                      f.dw ? "" : " no dw", f.accumulate_dw ? " accumulate dw" : "",
                                      f.dbias == BiasGrad::kNone    ? ""
                                      : f.dbias == BiasGrad::kAdded ? " accumulate dbias"
                                                                    : " dbias",
                                      types.name()));
  using G = LayerNormGrad;
  const Shape s{rows, cols};
  c.args.accumulate_dx = f.accumulate_dx, c.args.accumulate_dw = f.accumulate_dw;
  c.in(&G::x, "x", s, normal(2, 0.5), t).in(&G::gamma, "gamma", {cols}, normal(0.3, 1), types.weights);
  c.tolerance = std::max(unit_of(t), unit_of(types.grads));
  c.in(&G::mean, "mean", {rows}).in(&G::rstd, "rstd", {rows}).in(&G::dout, "dout", s, normal(), t);
  if (f.alias) {
    c.inout(&G::dsum, "dsum", s, normal(), t).alias(&G::dx, &G::dsum);
  } else {
    if (f.dsum) c.in(&G::dsum, "dsum", s, normal(), t);
    if (f.dx) c.result(&G::dx, "dx", s, f.accumulate_dx, t);
  }
  if (f.dw) {
    c.result(&G::dgamma, "dgamma", {cols}, f.accumulate_dw, types.grads);
    c.result(&G::dbeta, "dbeta", {cols}, f.accumulate_dw, types.grads);
  }
  if (f.dbias != BiasGrad::kNone) {
    c.args.accumulate_dbias = f.dbias == BiasGrad::kAdded;
    c.result(&G::dbias, "dbias", {cols}, c.args.accumulate_dbias, types.grads);
  }
  c.derive = [cols](const G& g) {  // statistics as computed by the forward
    std::vector<float> beta(static_cast<size_t>(cols), 0.0f), out(static_cast<size_t>(g.x.numel()));
    LayerNorm forward{.x = g.x, .gamma = g.gamma, .mean = g.mean, .rstd = g.rstd};
    forward.beta = {reinterpret_cast<std::byte*>(beta.data()), {cols}, DType::kF32, {}};
    forward.out = {reinterpret_cast<std::byte*>(out.data()), g.x.shape, DType::kF32, {}};
    reference::layer_norm(forward, {});
  };
  return c;
}

void add_norms(OpCases& to) {
  for (const int64_t cols : {1, 7, 33, 129, 768}) {
    for (const int64_t rows : {1, 5, 67}) {
      norm_case(to, rows, cols, Residual::kNone);
      norm_case(to, rows, cols, Residual::kSeparate);
      norm_case(to, rows, cols, Residual::kOntoX);
      norm_case(to, rows, cols, Residual::kOntoDelta);
      if (cols == 1) continue;  // a norm of one element is constant: its gradient is rounding error only
      norm_grad_case(to, rows, cols, {false, false, false, true, false});
      norm_grad_case(to, rows, cols, {true, false, false, true, false});
      norm_grad_case(to, rows, cols, {true, true, false, true, true});
      norm_grad_case(to, rows, cols, {false, false, true, true, true});
      norm_grad_case(to, rows, cols, {true, false, true, false, false});
      norm_grad_case(to, rows, cols, {false, false, false, false, false});
      norm_grad_case(to, rows, cols, {false, false, false, true, true, false});
      norm_grad_case(to, rows, cols, {true, false, false, true, false, true, BiasGrad::kWritten});
      norm_grad_case(to, rows, cols, {true, true, false, true, true, true, BiasGrad::kAdded});
      norm_grad_case(to, rows, cols, {true, false, true, false, false, true, BiasGrad::kAdded});
    }
  }
  for (const int64_t cols : {512, 1024, 1600, 4096, 8192})  // every register layout of a row
    for (const DType t : {DType::kF32, DType::kBF16})
      norm_grad_case(to, 5, cols, {true, true, false, true, true, true, BiasGrad::kAdded}, {t, DType::kF32, t});
  norm_case(to, 0, 33, Residual::kSeparate).name += " empty";
  norm_case(to, 5, 129, Residual::kSeparate).skew = 1;
  norm_grad_case(to, 5, 129, {true, false, false, true, false}).skew = 1;
  norm_grad_case(to, 5, 128, {true, false, false, true, false, true, BiasGrad::kWritten}).skew = 1;
  norm_grad_case(to, 600, 64, {true, true, false, true, true}).name += " many rows";
  for (const int64_t cols : {64, 4104})  // more than the warps, or the blocks, that iterate over rows
    norm_grad_case(to, cols == 64 ? 1700 : 140, cols, {true, true, false, true, true, true, BiasGrad::kAdded}).name +=
        " many rows";
  norm_grad_case(to, 1200, 800, {true, false, false, true, true, true, BiasGrad::kAdded}, {DType::kBF16}).name +=
      " many rows";
  for (const DType t : k16BitDtypes) {
    for (const int64_t cols : {7, 33, 768}) {
      for (const NormTypes& types : {NormTypes{t}, {t, DType::kF32, t}}) {
        for (const Residual r : {Residual::kNone, Residual::kSeparate, Residual::kOntoX, Residual::kOntoDelta})
          norm_case(to, 5, cols, r, types);
        norm_grad_case(to, 67, cols, {false, false, false, true, false}, types);
        norm_grad_case(to, 67, cols, {true, true, false, true, true}, types);
        norm_grad_case(to, 5, cols, {true, false, true, false, false}, types);
        norm_grad_case(to, 67, cols, {true, true, false, true, true, true, BiasGrad::kAdded}, types);
        norm_grad_case(to, 67, cols, {false, false, false, true, true, false}, types);
      }
      norm_case(to, 5, cols, Residual::kSeparate, {DType::kF32, DType::kF32, t});
      norm_case(to, 5, cols, Residual::kOntoX, {DType::kF32, DType::kF32, t});
    }
    norm_case(to, 5, 129, Residual::kSeparate, {t}).skew = 1;
    norm_grad_case(to, 5, 129, {true, false, false, true, false}, {t}).skew = 1;
  }
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t cols : {7, 33, 768, 3000}) {
      const NormTypes types{t, DType::kF32, t, DType::kBF16};
      norm_grad_case(to, 67, cols, {false, false, false, true, false}, types);
      norm_grad_case(to, 67, cols, {true, true, false, true, true}, types);
      norm_grad_case(to, 67, cols, {false, false, false, true, true, false}, types);
    }
    norm_grad_case(to, 5, 129, {true, false, false, true, true}, {t, t, t, DType::kBF16}).skew = 1;
  }
  auto& forward = norm_case(to, 4096, 1024, Residual::kSeparate);
  auto& backward = norm_grad_case(to, 4096, 1024, {true, false, false, true, true});
  forward.big = backward.big = true;
  forward.flops = 9.0 * 4096 * 1024, backward.flops = 16.0 * 4096 * 1024;
  norm_case(to, 4096, 1024, Residual::kSeparate, {DType::kBF16, DType::kF32, DType::kBF16}).big = true;
  norm_grad_case(to, 4096, 1024, {true, false, false, true, true}, {DType::kBF16, DType::kF32}).big = true;
}

}  // namespace

void add_matrix_cases(OpCases& to) {
  add_gemms(to);
  add_norms(to);
}

}  // namespace gt::test
