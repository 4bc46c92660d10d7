// Elementwise cases: add, axpy, scale, normalize, copy, bias, column sums, cast, GELU.
#include <cmath>
#include <limits>

#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

constexpr int64_t kSizes[][2] = {{1, 1}, {1, 7}, {1, 129}, {5, 33}, {7, 1}, {67, 129}, {0, 33}};

std::string describe(Shape s, DType t, const std::string& what = "") {
  return cat(to_string(s), t == DType::kF32 ? "" : " ", t == DType::kF32 ? "" : name_of(t), what);
}

void add_adds(OpCases& to, Shape s, DType t, int skew = 0) {
  const std::string at = skew ? " unaligned" : "";
  auto& plain = add_case<Add>(to, describe(s, t, at));
  plain.in(&Add::a, "a", s, normal(), t).in(&Add::b, "b", s, normal(), t).out(&Add::out, "out", s, t);
  auto& onto_a = add_case<Add>(to, describe(s, t, " out is a" + at));
  onto_a.inout(&Add::a, "a", s, normal(), t).alias(&Add::out, &Add::a).in(&Add::b, "b", s, normal(), t);
  auto& onto_b = add_case<Add>(to, describe(s, t, " out is b" + at));
  onto_b.in(&Add::a, "a", s, normal(), t).inout(&Add::b, "b", s, normal(), t).alias(&Add::out, &Add::b);
  auto& axpy = add_case<Axpy>(to, describe(s, t, at));
  axpy.args.alpha = -0.37f;
  axpy.in(&Axpy::x, "x", s, normal(), t).inout(&Axpy::y, "y", s, normal(), t);
  auto& scaled = add_case<Scale>(to, describe(s, t, at));
  scaled.in(&Scale::x, "x", s, normal(), t).out(&Scale::out, "out", s, t);
  auto& in_place = add_case<Scale>(to, describe(s, t, " out is x" + at));
  in_place.inout(&Scale::x, "x", s, normal(), t).alias(&Scale::out, &Scale::x);
  scaled.args.factor = in_place.args.factor = 0.37f;
  auto& capped = add_case<SoftCap>(to, describe(s, t, at));
  capped.in(&SoftCap::x, "x", s, normal(3), t).out(&SoftCap::out, "out", s, t).args.cap = 2.5f;
  auto& capped_in_place = add_case<SoftCap>(to, describe(s, t, " out is x" + at));
  capped_in_place.inout(&SoftCap::x, "x", s, normal(30), t).alias(&SoftCap::out, &SoftCap::x).args.cap = 30;
  for (OpCase* c : {static_cast<OpCase*>(&plain), static_cast<OpCase*>(&onto_a), static_cast<OpCase*>(&onto_b),
                    static_cast<OpCase*>(&axpy), static_cast<OpCase*>(&scaled), static_cast<OpCase*>(&in_place),
                    static_cast<OpCase*>(&capped), static_cast<OpCase*>(&capped_in_place)}) {
    c->tolerance = unit_of(t);
    c->skew = skew;
  }
}

void add_biases(OpCases& to, Shape s, DType t) {
  auto& plain = add_case<AddBias>(to, describe(s, t));
  plain.in(&AddBias::x, "x", s, normal(), t).in(&AddBias::bias, "bias", {s.cols()}, normal(), t);
  plain.out(&AddBias::out, "out", s, t).tolerance = unit_of(t);
  auto& onto = add_case<AddBias>(to, describe(s, t, " out is x"));
  onto.inout(&AddBias::x, "x", s, normal(), t).alias(&AddBias::out, &AddBias::x);
  onto.in(&AddBias::bias, "bias", {s.cols()}, normal(), t).tolerance = unit_of(t);
  for (const bool accumulate : {false, true}) {
    for (const DType grad : kGradients) {
      auto& sum = add_case<ColumnSums>(to, describe(s, t, (accumulate ? " accumulate" : "") + grad_suffix(grad)));
      sum.args.accumulate = accumulate;
      sum.in(&ColumnSums::x, "x", s, normal(1, 0.1), t).result(&ColumnSums::out, "out", {s.cols()}, accumulate, grad);
      sum.tolerance = unit_of(grad);
    }
  }
}

void add_gelus(OpCases& to, Shape s, DType t) {
  auto& forward = add_case<Gelu>(to, describe(s, t));
  forward.in(&Gelu::x, "x", s, normal(2), t).out(&Gelu::out, "out", s, t).tolerance = unit_of(t);
  auto& onto = add_case<Gelu>(to, describe(s, t, " out is x"));
  onto.inout(&Gelu::x, "x", s, normal(2), t).alias(&Gelu::out, &Gelu::x).tolerance = unit_of(t);
  for (const bool accumulate : {false, true}) {
    auto& grad = add_case<GeluGrad>(to, describe(s, t, accumulate ? " accumulate" : ""));
    grad.args.accumulate = accumulate;
    grad.in(&GeluGrad::x, "x", s, normal(2), t).in(&GeluGrad::dout, "dout", s, normal(), t);
    grad.result(&GeluGrad::dx, "dx", s, accumulate, t).tolerance = unit_of(t);
  }
}

// f32 beside 16-bit, as in the residual stream and GELU of AMP O1 and the norm weights of O2.
void add_mixes(OpCases& to, Shape s, DType h) {
  constexpr DType kF = DType::kF32;
  for (const auto& [a, b] : {std::pair{kF, h}, {h, kF}}) {
    auto& sum = add_case<Add>(to, cat(to_string(s), ' ', name_of(a), " + ", name_of(b), " to f32"));
    sum.in(&Add::a, "a", s, normal(), a).in(&Add::b, "b", s, normal(), b).out(&Add::out, "out", s);
    auto& bias = add_case<AddBias>(to, cat(to_string(s), ' ', name_of(a), " with bias ", name_of(b)));
    bias.in(&AddBias::x, "x", s, normal(), a).in(&AddBias::bias, "bias", {s.cols()}, normal(), b);
    bias.out(&AddBias::out, "out", s, a).tolerance = unit_of(a);
    auto& gelu = add_case<Gelu>(to, cat(to_string(s), ' ', name_of(a), " to ", name_of(b)));
    gelu.in(&Gelu::x, "x", s, normal(2), a).out(&Gelu::out, "out", s, b).tolerance = unit_of(b);
    for (const bool accumulate : {false, true}) {
      auto& grad = add_case<GeluGrad>(
          to, cat(to_string(s), " of ", name_of(a), " in ", name_of(b), accumulate ? " accumulate" : ""));
      grad.args.accumulate = accumulate;
      grad.in(&GeluGrad::x, "x", s, normal(2), a).in(&GeluGrad::dout, "dout", s, normal(), b);
      grad.result(&GeluGrad::dx, "dx", s, accumulate, b).tolerance = unit_of(b);
    }
  }
  auto& onto = add_case<Add>(to, cat(to_string(s), " f32 + ", name_of(h), " out is a"));
  onto.inout(&Add::a, "a", s).alias(&Add::out, &Add::a).in(&Add::b, "b", s, normal(), h);
  auto& axpy = add_case<Axpy>(to, cat(to_string(s), ' ', name_of(h), " onto f32"));
  axpy.args.alpha = 0.7f;
  axpy.in(&Axpy::x, "x", s, normal(), h).inout(&Axpy::y, "y", s);
  for (const DType x : {kF, DType::kBF16, DType::kF16}) {
    if (x == h) continue;
    auto& onto_16bit = add_case<Axpy>(to, cat(to_string(s), ' ', name_of(x), " onto ", name_of(h)));
    onto_16bit.args.alpha = -0.7f;
    onto_16bit.in(&Axpy::x, "x", s, normal(), x).inout(&Axpy::y, "y", s, normal(), h).tolerance = unit_of(h);
  }
}

// Sizes where thread ranges begin and end anywhere; sums overflow f16 only.
void add_16bit(OpCases& to, DType h) {
  for (const auto& [rows, cols] : kSizes) {
    const Shape s{rows, cols};
    add_adds(to, s, h);
    add_biases(to, s, h);
    add_gelus(to, s, h);
    if (s.numel() != 1) add_mixes(to, s, h);  // a single gradient may be near a zero of gelu': rounding error only
  }
  add_adds(to, {1000}, h, 1);
  add_adds(to, {3, 30000}, h);
  add_mixes(to, {3, 12000}, h);
  add_biases(to, {1501, 33}, h);
  add_biases(to, {2, 3000}, h);
  add_gelus(to, {3, 30000}, h);
  auto& large = add_case<Add>(to, cat("[9] overflow ", name_of(h)));
  large.in(&Add::a, "a", {9}, values({65504, -65504, 1, 60000, 3e-5}), h).non_finite = true;
  large.in(&Add::b, "b", {9}, values({65504, -65504, 2, 100, -2e-5}), h).out(&Add::out, "out", {9}, h);
  large.tolerance = 0;
}

// Copies and casts are exact.
CaseOf<Cast>& cast_case(OpCases& to, Shape s, DType from, DType into, Fill fill, std::string what = "") {
  auto& c = add_case<Cast>(to, cat(to_string(s), " ", name_of(from), " to ", name_of(into), what));
  c.in(&Cast::src, "src", s, std::move(fill), from).out(&Cast::dst, "dst", s, into).tolerance = 0;
  return c;
}

void add_casts(OpCases& to) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> ties = {
      1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 1 + 0x3p-11, -1 - 0x1p-8, 1 + 0x1p-8 + 0x1p-20, 1 + 0x1p-11 + 0x1p-20, 0.1,
      -0.1,       255.5,      2047.5,      2049,        1.9999999};
  const std::vector<double> extremes = {0.0, -0.0, inf, -inf, 65504, 65519, 65520, -65520, 1e30, -3.4e38, 3.4028234e38};
  const std::vector<double> tiny = {0x1p-14, 0x1.8p-15, 0x1p-24, 0x1p-25, 0x1.8p-25, -0x1p-20, 0x1p-126, 1e-30};
  for (const auto& [rows, cols] : kSizes) {
    const Shape s{rows, cols};
    auto& bytes = add_case<Copy>(to, describe(s, DType::kF32));
    bytes.in(&Copy::src, "src", s).out(&Copy::dst, "dst", s).tolerance = 0;
    for (const DType type : k16BitDtypes) {
      cast_case(to, s, DType::kF32, type, normal(3));
      cast_case(to, s, type, DType::kF32, normal(3));
    }
  }
  for (const DType type : k16BitDtypes) {
    cast_case(to, {77}, DType::kF32, type, values(ties), " ties");
    cast_case(to, {77}, DType::kF32, type, values(tiny), " subnormal");
    cast_case(to, {77}, DType::kF32, type, values(extremes), " extremes").non_finite = true;
    cast_case(to, {77}, type, DType::kF32, values(extremes), " extremes").non_finite = true;
    cast_case(to, {1000}, DType::kF32, type, normal(), " unaligned").skew = 1;
    const DType other = type == DType::kBF16 ? DType::kF16 : DType::kBF16;
    cast_case(to, {5000}, type, other, normal(3));
    cast_case(to, {77}, type, other, values(extremes), " extremes").non_finite = true;
  }
  auto& copied = add_case<Copy>(to, "[1000] i32, unaligned");
  copied.in(&Copy::src, "src", {1000}, ids(-5, 70000), DType::kI32).out(&Copy::dst, "dst", {1000}, DType::kI32);
  copied.tolerance = 0, copied.skew = 1;
  auto& copied_16bit = add_case<Copy>(to, "[77] bf16");
  copied_16bit.in(&Copy::src, "src", {77}, normal(), DType::kBF16).out(&Copy::dst, "dst", {77}, DType::kBF16);
  copied_16bit.tolerance = 0;
}

void add_normalizations(OpCases& to) {
  constexpr DType kOut[] = {DType::kF32, DType::kBF16, DType::kF16};
  const auto one = [&](Shape s, DType t, double squares, const char* what) -> auto& {
    auto& c = add_case<Normalize>(to, describe(s, t, what));
    c.args.eps = 1e-7f;
    c.in(&Normalize::x, "x", s).in(&Normalize::squares, "squares", {1}, values({squares}), DType::kF64);
    c.out(&Normalize::out, "out", s, t).tolerance = unit_of(t);
    return c;
  };
  for (const DType t : kOut) {
    for (const auto& [rows, cols] : kSizes) one({rows, cols}, t, 7.25, "");
    one({1000}, t, 7.25, " unaligned").skew = 1;
    one({3, 70000}, t, 2.1e5, "");
    one({4096, 1024}, t, 4e6, "").big = true;
  }
  one({5, 33}, DType::kF32, 1e-20, " a norm below eps");
  auto& in_place = add_case<Normalize>(to, "[67, 129] out is x");
  in_place.inout(&Normalize::x, "x", {67, 129}).alias(&Normalize::out, &Normalize::x);
  in_place.in(&Normalize::squares, "squares", {1}, values({0.3}), DType::kF64);
}

void add_benchmarks(OpCases& to) {
  const Shape s{4096, 1024};
  const size_t first = to.size();
  const double n = static_cast<double>(s.numel());
  add_case<Add>(to, describe(s, DType::kF32)).in(&Add::a, "a", s).in(&Add::b, "b", s).out(&Add::out, "out", s).flops =
      n;
  add_case<Axpy>(to, describe(s, DType::kF32)).in(&Axpy::x, "x", s).inout(&Axpy::y, "y", s).flops = 2 * n;
  add_case<Scale>(to, describe(s, DType::kF32)).in(&Scale::x, "x", s).out(&Scale::out, "out", s).flops = n;
  add_case<SoftCap>(to, describe(s, DType::kF32)).in(&SoftCap::x, "x", s).out(&SoftCap::out, "out", s).flops = n;
  add_case<Copy>(to, describe(s, DType::kF32)).in(&Copy::src, "src", s).out(&Copy::dst, "dst", s);
  add_case<AddBias>(to, describe(s, DType::kF32))
      .in(&AddBias::x, "x", s)
      .in(&AddBias::bias, "bias", {s.cols()})
      .out(&AddBias::out, "out", s)
      .flops = n;
  add_case<ColumnSums>(to, describe(s, DType::kF32))
      .in(&ColumnSums::x, "x", s)
      .out(&ColumnSums::out, "out", {s.cols()})
      .flops = n;
  cast_case(to, s, DType::kF32, DType::kBF16, normal());
  cast_case(to, s, DType::kBF16, DType::kF32, normal());
  constexpr DType h = DType::kBF16;
  add_case<Add>(to, describe(s, h))
      .in(&Add::a, "a", s, normal(), h)
      .in(&Add::b, "b", s, normal(), h)
      .out(&Add::out, "out", s, h)
      .flops = n;
  add_case<ColumnSums>(to, describe(s, h))
      .in(&ColumnSums::x, "x", s, normal(), h)
      .out(&ColumnSums::out, "out", {s.cols()})
      .flops = n;
  add_case<Gelu>(to, describe(s, DType::kF32)).in(&Gelu::x, "x", s).out(&Gelu::out, "out", s).flops = 10 * n;
  add_case<GeluGrad>(to, describe(s, DType::kF32))
      .in(&GeluGrad::x, "x", s)
      .in(&GeluGrad::dout, "dout", s)
      .out(&GeluGrad::dx, "dx", s)
      .flops = 18 * n;
  for (size_t i = first; i < to.size(); ++i) to[i]->big = true;
}

}  // namespace

void add_elementwise_cases(OpCases& to) {
  for (const auto& [rows, cols] : kSizes) {
    add_adds(to, {rows, cols}, DType::kF32);
    add_biases(to, {rows, cols}, DType::kF32);
    add_gelus(to, {rows, cols}, DType::kF32);
  }
  add_adds(to, {1000}, DType::kF32, 1);
  add_adds(to, {3, 70000}, DType::kF32);  // several blocks of any split
  add_biases(to, {1500, 33}, DType::kF32);
  add_biases(to, {2, 3000}, DType::kF32);
  add_gelus(to, {3, 30000}, DType::kF32);
  auto& wide = add_case<Gelu>(to, "[9] far from zero");  // tanh saturates, x^3 grows
  wide.in(&Gelu::x, "x", {9}, values({-30, -12, -6, -1e-4, 1e-4, 3, 6, 12, 1e6})).out(&Gelu::out, "out", {9});
  auto& wide_grad = add_case<GeluGrad>(to, "[9] far from zero");
  wide_grad.in(&GeluGrad::x, "x", {9}, values({-30, -12, -6, -1e-4, 1e-4, 3, 6, 12, 1e6}));
  wide_grad.in(&GeluGrad::dout, "dout", {9}).out(&GeluGrad::dx, "dx", {9});
  for (const DType h : k16BitDtypes) add_16bit(to, h);
  add_casts(to);
  add_normalizations(to);
  add_benchmarks(to);
}

}  // namespace gt::test
