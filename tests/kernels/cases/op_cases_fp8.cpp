// FP8 cases: partial tiles, values out of range, amax 0 and nearly 0; GEMMs of all format pairs into every output
// dtype.
#include <algorithm>
#include <cmath>

#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

constexpr DType kFp8[] = {DType::kF8E4M3, DType::kF8E5M2};
enum class Outputs { kBoth, kRows, kColumns };

void add_quantize(OpCases& to, int64_t rows, int64_t cols, DType t, DType codes, double amax, Outputs outputs,
                  const char* what = "") {
  using Q = QuantizeFp8;
  const char* only = outputs == Outputs::kRows ? " rows" : outputs == Outputs::kColumns ? " columns" : "";
  auto& c = add_case<Q>(to, cat("[", rows, ", ", cols, "] ", name_of(codes), " amax ", amax, only, what, suffix(t)));
  c.in(&Q::x, "x", {rows, cols}, normal(), t).in(&Fp8Out::amax, "amax", {1}, values({amax}));
  if (outputs != Outputs::kColumns) c.out(&Fp8Out::rowwise, "rowwise", {rows, cols}, codes);
  if (outputs != Outputs::kRows) c.out(&Fp8Out::columnwise, "columnwise", {cols, rows}, codes);
  c.out(&Fp8Out::scale_inv, "scale_inv", {1});
  if (outputs == Outputs::kBoth) c.inout(&Fp8Out::step_amax, "step_amax", {1}, values({0.5}));
  if (outputs == Outputs::kRows) c.inout(&Fp8Out::step_amax, "step_amax", {1}, values({1e3}));
  c.tolerance = 0;
  c.flops = static_cast<double>(rows * cols);
}

// Quantization of GEMM inputs derived by `of`, with the column sums and amax that go with it.
CaseOf<QuantizeFp8>& add_made(OpCases& to, int64_t rows, int64_t cols, DType t, DType codes, Fp8Source of,
                              bool accumulate, DType sums) {
  using Q = QuantizeFp8;
  const char* names[] = {"", " gelu", " gelu gradient"};
  auto& c = add_case<Q>(to, cat("[", rows, ", ", cols, "] ", name_of(codes), names[static_cast<int>(of)], " sums",
                                accumulate ? " accumulate" : "", suffix(t), grad_suffix(sums)));
  c.in(&Q::x, "x", {rows, cols}, normal(1, 0.3), t).in(&Fp8Out::amax, "amax", {1}, values({2.9}));
  if (of == Fp8Source::kGeluGrad) c.in(&Q::pre, "pre", {rows, cols}, normal(1.5), t);
  c.out(&Fp8Out::rowwise, "rowwise", {rows, cols}, codes).out(&Fp8Out::columnwise, "columnwise", {cols, rows}, codes);
  c.out(&Fp8Out::scale_inv, "scale_inv", {1}).result(&Q::sums, "sums", {cols}, accumulate, sums);
  c.inout(&Fp8Out::step_amax, "step_amax", {1}, values({accumulate ? 1e3 : 0.5}));
  c.args.of = of;
  c.args.accumulate = accumulate;
  c.args.fp8.overwrite_amax = accumulate;
  c.tolerance = std::max(4e-3, unit_of(sums));  // one quantized value in thousands rounds to its neighbour
  c.flops = static_cast<double>(rows * cols);
  return c;
}

// amax only: first step of `current` scaling.
void add_amax(OpCases& to, int64_t rows, int64_t cols, DType t, Fp8Source of) {
  using Q = QuantizeFp8;
  auto& c = add_case<Q>(to, cat("[", rows, ", ", cols, "] amax only, ", static_cast<int>(of), suffix(t)));
  c.in(&Q::x, "x", {rows, cols}, normal(), t);
  if (of == Fp8Source::kGeluGrad) c.in(&Q::pre, "pre", {rows, cols}, normal(), t);
  c.out(&Fp8Out::step_amax, "step_amax", {1});
  c.args.of = of;
  c.args.fp8.overwrite_amax = true;
  c.tolerance = unit_of(t);
  c.flops = static_cast<double>(rows * cols);
}

// A norm with FP8 output: `out` may be omitted, and so may rowwise or columnwise data.
CaseOf<LayerNorm>& add_norm(OpCases& to, int64_t rows, int64_t cols, DType t, Outputs outputs, bool delta, bool out,
                            const char* what = "") {
  using N = LayerNorm;
  const char* only = outputs == Outputs::kRows ? " rows" : outputs == Outputs::kColumns ? " columns" : "";
  auto& c = add_case<N>(
      to, cat("[", rows, ", ", cols, "] codes", only, delta ? " delta" : "", out ? " and out" : "", what, suffix(t)));
  c.in(&N::x, "x", {rows, cols}, normal(2, 0.5), t);
  if (delta) c.in(&N::delta, "delta", {rows, cols}, normal(), t).out(&N::sum, "sum", {rows, cols}, t);
  c.in(&N::gamma, "gamma", {cols}, normal(0.3, 1)).in(&N::beta, "beta", {cols}, normal(0.3));
  if (out) c.out(&N::out, "out", {rows, cols}, t);
  c.out(&N::mean, "mean", {rows}).out(&N::rstd, "rstd", {rows});
  c.in(&Fp8Out::amax, "amax", {1}, values({3.7}));
  if (outputs != Outputs::kColumns) c.out(&Fp8Out::rowwise, "rowwise", {rows, cols}, DType::kF8E4M3);
  if (outputs != Outputs::kRows) c.out(&Fp8Out::columnwise, "columnwise", {cols, rows}, DType::kF8E4M3);
  c.out(&Fp8Out::scale_inv, "scale_inv", {1});
  if (outputs != Outputs::kColumns)
    c.inout(&Fp8Out::step_amax, "step_amax", {1}, values({outputs == Outputs::kBoth ? 0.5 : 1e3}));
  c.tolerance = 8e-3;  // a 16-bit rounding error moves one quantized value in thousands to its neighbour
  c.flops = static_cast<double>(8 * rows * cols);
  return c;
}

void add_norms(OpCases& to) {
  // 48 KB of FP8 data: before wider rows, for which the same kernels' shared memory limit is raised permanently.
  for (const int64_t cols : {3072, 6144}) add_norm(to, 16, cols, DType::kBF16, Outputs::kBoth, true, false);
  for (const DType t : {DType::kBF16, DType::kF16})
    for (const int64_t cols : {32, 512, 768, 1024, 1536, 4096, 8192})
      for (const bool delta : {false, true}) add_norm(to, 48, cols, t, Outputs::kBoth, delta, false);
  for (const Outputs w : {Outputs::kRows, Outputs::kColumns}) {
    add_norm(to, 32, 2048, DType::kBF16, w, false, false);
    add_norm(to, 32, 256, DType::kF16, w, true, true);
  }
  add_norm(to, 37, 256, DType::kBF16, Outputs::kBoth, true, false);  // columns not a multiple of a pack
  add_norm(to, 37, 2048, DType::kBF16, Outputs::kBoth, true, true);
  add_norm(to, 20, 90, DType::kBF16, Outputs::kBoth, true, false);  // rows not a multiple of a pack
  add_norm(to, 20, 64, DType::kF32, Outputs::kBoth, true, false);
  add_norm(to, 16, 128, DType::kBF16, Outputs::kBoth, true, false, " from unaligned addresses").skew = 1;
  for (const DType t : {DType::kBF16, DType::kF32}) {  // `current` scaling: a plain norm with amax
    auto& c = add_case<LayerNorm>(to, cat("[24, 512] amax only", suffix(t)));
    using N = LayerNorm;
    c.in(&N::x, "x", {24, 512}, normal(2, 0.5), t).in(&N::gamma, "gamma", {512}).in(&N::beta, "beta", {512});
    c.out(&N::out, "out", {24, 512}, t).out(&N::rstd, "rstd", {24}).out(&N::mean, "mean", {24});
    c.out(&Fp8Out::step_amax, "step_amax", {1});
    c.args.fp8.overwrite_amax = true;
    c.tolerance = unit_of(t);
  }
  auto& c = add_norm(to, 32, 64, DType::kBF16, Outputs::kBoth, true, false, " dropout");
  c.args.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .rows = {.seq = 16}};
}

// A norm backward with FP8 data of delta's gradient, which dx is the sum of too.
CaseOf<LayerNormGrad>& add_norm_grad(OpCases& to, int64_t rows, int64_t cols, DType t, Outputs outputs,
                                     const char* what = "", bool drops = false) {
  using G = LayerNormGrad;
  const Shape s{rows, cols};
  const char* only = outputs == Outputs::kRows ? " rows" : outputs == Outputs::kColumns ? " columns" : "";
  auto& c = add_case<G>(to, cat("[", rows, ", ", cols, "] codes", only, drops ? " dropout" : "", what, suffix(t)));
  c.in(&G::x, "x", s, normal(2, 0.5), t).in(&G::gamma, "gamma", {cols}, normal(0.3, 1));
  c.in(&G::mean, "mean", {rows}).in(&G::rstd, "rstd", {rows}, positive());
  c.in(&G::dout, "dout", s, normal(), t).inout(&G::dsum, "dsum", s, normal(), t).alias(&G::dx, &G::dsum);
  if (drops) {
    c.out(&G::ddelta, "ddelta", s, t);
    c.args.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .rows = {.seq = 16}};
  }
  c.out(&G::dgamma, "dgamma", {cols}).out(&G::dbeta, "dbeta", {cols});
  if (outputs == Outputs::kBoth) c.out(&G::dbias, "dbias", {cols});
  c.in(&Fp8Out::amax, "amax", {1}, values({7.9}));
  if (outputs != Outputs::kColumns) c.out(&Fp8Out::rowwise, "rowwise", s, DType::kF8E5M2);
  if (outputs != Outputs::kRows) c.out(&Fp8Out::columnwise, "columnwise", {cols, rows}, DType::kF8E5M2);
  c.out(&Fp8Out::scale_inv, "scale_inv", {1});
  if (outputs != Outputs::kColumns)
    c.inout(&Fp8Out::step_amax, "step_amax", {1}, values({outputs == Outputs::kBoth ? 0.5 : 1e3}));
  c.tolerance = 8e-3;  // as for norms
  c.flops = static_cast<double>(16 * rows * cols);
  return c;
}

void add_norm_grads(OpCases& to) {
  for (const DType t : {DType::kBF16, DType::kF16})
    for (const int64_t cols : {64, 512, 768, 1024, 1600, 3072, 6400})
      add_norm_grad(to, cols == 1600 ? 64 : 48, cols, t, Outputs::kBoth);
  add_norm_grad(to, 6416, 64, DType::kBF16, Outputs::kBoth);  // more groups of 16 rows than blocks
  for (const Outputs w : {Outputs::kRows, Outputs::kColumns}) add_norm_grad(to, 32, 2048, DType::kBF16, w);
  for (const int64_t cols : {256, 4096}) add_norm_grad(to, 32, cols, DType::kBF16, Outputs::kBoth, "", true);
  add_norm_grad(to, 37, 1600, DType::kBF16, Outputs::kBoth);  // columns not a multiple of a pack
  add_norm_grad(to, 37, 2048, DType::kF16, Outputs::kRows);   // rows not a multiple of a block
  add_norm_grad(to, 20, 90, DType::kBF16, Outputs::kBoth);    // rows not a multiple of a pack
  add_norm_grad(to, 20, 64, DType::kF32, Outputs::kBoth);
  add_norm_grad(to, 16, 128, DType::kBF16, Outputs::kBoth, " from unaligned addresses").skew = 1;
  for (const DType t : {DType::kBF16, DType::kF32}) {  // `current` scaling: amax of what is stored
    using G = LayerNormGrad;
    auto& c = add_case<G>(to, cat("[24, 512] amax only", suffix(t)));
    c.in(&G::x, "x", {24, 512}, normal(2, 0.5), t).in(&G::gamma, "gamma", {512}).in(&G::mean, "mean", {24});
    c.in(&G::rstd, "rstd", {24}, positive()).in(&G::dout, "dout", {24, 512}, normal(), t);
    c.out(&G::dx, "dx", {24, 512}, t).out(&Fp8Out::step_amax, "step_amax", {1});
    c.args.fp8.overwrite_amax = true;
    c.tolerance = unit_of(t);
  }
}

CaseOf<GemmFp8>& gemm_via_f32(OpCases& to, int64_t m, int64_t n, int64_t k, DType a, DType b, DType out,
                              bool accumulate = false, const char* what = "") {
  using G = GemmFp8;
  auto& c = add_case<G>(to, cat(m, "x", n, "x", k, ' ', name_of(a), ' ', name_of(b), " to ", name_of(out),
                                accumulate ? " accumulate" : "", what));
  c.in(&G::a, "a", {m, k}, normal(a == DType::kF8E5M2 ? 300 : 100), a);
  c.in(&G::b, "b", {n, k}, normal(b == DType::kF8E5M2 ? 300 : 100), b);
  c.in(&G::a_scale, "a_scale", {1}, values({0.0078})).in(&G::b_scale, "b_scale", {1}, values({0.013}));
  c.result(&G::out, "out", {m, n}, accumulate, out);
  c.args.accumulate = accumulate;
  // Tensor cores keep about 14 bits when accumulating FP8 products: each addend, 32 at a time, is truncated 13 bits
  // below the largest one. Simulated in software, that changes the cases here by 1e-4 to 2e-4 (k = 64, 272), with f32
  // outputs too. GPUs that promote to f32 periodically do so after 128 addends or more. Emulation and CPU are exact.
  c.tolerance = unit_of(out) + 1e-3;
  c.flops = 2.0 * static_cast<double>(m * n * k);
  return c;
}

CaseOf<AmaxHistory>& add_history(OpCases& to, int64_t n, int64_t steps, int64_t at, const char* what = "") {
  using H = AmaxHistory;
  auto& c = add_case<H>(to, cat(n, " of ", steps, " steps, column ", at, what));
  c.in(&H::step_amax, "step_amax", {n}, positive()).inout(&H::history, "history", {n, steps}, positive());
  c.out(&H::amax, "amax", {n});
  c.args.at = at;
  c.tolerance = 0;
  c.flops = static_cast<double>(n * steps);
  return c;
}

void add_big(OpCases& to) {
  const size_t first = to.size();
  add_quantize(to, 8192, 2048, DType::kBF16, DType::kF8E4M3, 4, Outputs::kBoth, " big");
  gemm_via_f32(to, 8192, 8192, 2048, DType::kF8E4M3, DType::kF8E4M3, DType::kBF16, false, " big");
  add_history(to, 384, 1024, 17, " big");
  for (size_t i = first; i < to.size(); ++i) to[i]->big = true;
}

}  // namespace

void add_fp8_cases(OpCases& to) {
  for (const DType codes : kFp8) {
    for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
      for (const Outputs w : {Outputs::kBoth, Outputs::kRows, Outputs::kColumns})
        for (const int64_t cols : {1, 30, 64, 132}) add_quantize(to, 67, cols, t, codes, 3.1, w);
    add_quantize(to, 128, 256, DType::kBF16, codes, 3.1, Outputs::kBoth);
    add_quantize(to, 64, 64, DType::kF32, codes, 0.7, Outputs::kBoth, " beyond the range");
    add_quantize(to, 20, 64, DType::kF32, codes, 0, Outputs::kBoth);
    add_quantize(to, 20, 64, DType::kF32, codes, 1e-41, Outputs::kBoth);
    add_quantize(to, 20, 64, DType::kF32, codes, 1e7, Outputs::kBoth);  // values below the smallest normal number
    add_quantize(to, 33, 64, DType::kBF16, codes, 3.1, Outputs::kBoth, " from unaligned addresses");
    to.back()->skew = 1;
    add_quantize(to, 0, 64, DType::kF32, codes, 3.1, Outputs::kBoth, " empty");
  }
  for (const Fp8Source of : {Fp8Source::kPlain, Fp8Source::kGelu, Fp8Source::kGeluGrad}) {
    for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType codes : kFp8) add_made(to, 80, 144, t, codes, of, codes == DType::kF8E5M2, DType::kF32);
      add_made(to, 67, 131, t, DType::kF8E4M3, of, false, DType::kBF16);
      add_amax(to, 70, 72, t, of);
    }
    add_made(to, 200, 16, DType::kBF16, DType::kF8E5M2, of, true, DType::kBF16);
    add_made(to, 64, 128, DType::kBF16, DType::kF8E4M3, of, false, DType::kF32).skew = 1;
    to.back()->name += " from unaligned addresses";
  }
  add_norms(to);
  add_norm_grads(to);
  constexpr DType kX = DType::kF8E4M3, kGrad = DType::kF8E5M2;
  for (const auto& [a, b] : {std::pair{kX, kX}, {kGrad, kX}, {kX, kGrad}})
    for (const DType out : {DType::kF32, DType::kBF16, DType::kF16})
      for (const bool accumulate : {false, true}) gemm_via_f32(to, 48, 80, 64, a, b, out, accumulate);
  for (const DType h : k16BitDtypes) {
    gemm_via_f32(to, 32, 144, 272, kX, kX, h, false, " bias").in(&GemmFp8::bias, "bias", {144}, normal(), h);
    auto& c = gemm_via_f32(to, 32, 144, 272, kX, kX, h, false, " unaligned bias");
    c.in(&GemmFp8::bias, "bias", {144}, normal(), h).skew = 1;
    c.skewed = "bias";
  }
  gemm_via_f32(to, 0, 16, 16, kX, kX, DType::kBF16, false, " empty");
  for (const int64_t steps : {1, 7, 1024}) add_history(to, 5, steps, steps - 1);
  add_history(to, 0, 1024, 3);
  add_history(to, 3, 300, 0, " from unaligned addresses").skew = 1;
  auto& c = add_case<AmaxHistory>(to, "an overflow is not remembered");
  c.in(&AmaxHistory::step_amax, "step_amax", {3}, values({HUGE_VAL, 2, 0}));
  c.inout(&AmaxHistory::history, "history", {3, 2}, values({5, 0.5, 7, 0.25, 9, 0}));
  c.out(&AmaxHistory::amax, "amax", {3}).tolerance = 0;
  add_big(to);
}

}  // namespace gt::test
