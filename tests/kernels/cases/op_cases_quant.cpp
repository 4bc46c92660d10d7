// Fake quantization cases: rows and whole tensors, limits below the maximum, 0 and tiny ones.
#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

std::string text(int64_t rows, int64_t cols, const char* what, DType t) {
  return cat("[", rows, ", ", cols, "]", what, suffix(t));
}

Fill some_limits() { return values({2.5, 1, 0, 3.7, 0.25, 1e-41}); }

void add_quant(OpCases& to, int64_t rows, int64_t cols, DType t, const Fill& limits, const char* what) {
  for (const bool in_place : {false, true}) {
    auto& c = add_case<FakeQuant>(to, text(rows, cols, in_place ? cat(what, " in place").c_str() : what, t));
    c.in(&FakeQuant::limits, "limits", {rows}, limits);
    if (in_place)
      c.inout(&FakeQuant::x, "x", {rows, cols}, normal(), t).alias(&FakeQuant::out, &FakeQuant::x);
    else
      c.in(&FakeQuant::x, "x", {rows, cols}, normal(), t).out(&FakeQuant::out, "out", {rows, cols}, t);
    c.tolerance = 0;
    c.flops = 6.0 * static_cast<double>(rows * cols);
  }
  using G = FakeQuantGrad;
  for (const bool accumulate : {false, true}) {
    auto& c = add_case<G>(to, text(rows, cols, accumulate ? cat(what, " accumulate").c_str() : what, t));
    c.in(&G::limits, "limits", {rows}, limits).in(&G::x, "x", {rows, cols}, normal(2), t);
    c.in(&G::dout, "dout", {rows, cols}, normal(), t).result(&G::dx, "dx", {rows, cols}, accumulate, t);
    c.args.accumulate = accumulate;
    c.tolerance = accumulate ? unit_of(t) : 0;
    c.flops = 2.0 * static_cast<double>(rows * cols);
  }
}

void add_max(OpCases& to, int64_t rows, int64_t cols, DType t) {
  for (const bool accumulate : {false, true}) {
    auto& c = add_case<MaxAbs>(to, text(rows, cols, accumulate ? " accumulate" : "", t));
    c.in(&MaxAbs::x, "x", {rows, cols}, normal(), t);
    if (accumulate)
      c.inout(&MaxAbs::out, "out", {rows}, values({3, 0, 0.5}));
    else
      c.out(&MaxAbs::out, "out", {rows});
    c.args.accumulate = accumulate;
    c.tolerance = 0;
    c.flops = static_cast<double>(rows * cols);
  }
}

// Scales of some rows clamp; that of one is 0.
void add_int8(OpCases& to, int64_t rows, int64_t cols, DType t) {
  const Fill scales = values({0.03, 0.0078125, 0, 1.5, 0.011});
  auto& q = add_case<QuantizeInt8>(to, text(rows, cols, "", t));
  q.in(&QuantizeInt8::x, "x", {rows, cols}, normal(), t).in(&QuantizeInt8::scales, "scales", {rows}, scales);
  q.out(&QuantizeInt8::out, "out", {rows, cols}, DType::kI8);
  auto& d = add_case<DequantizeInt8>(to, text(rows, cols, "", t));
  d.in(&DequantizeInt8::x, "x", {rows, cols}, ids(-127, 128), DType::kI8);
  d.in(&DequantizeInt8::scales, "scales", {rows}, scales).out(&DequantizeInt8::out, "out", {rows, cols}, t);
  q.tolerance = d.tolerance = 0;
  q.flops = 5.0 * static_cast<double>(rows * cols), d.flops = static_cast<double>(rows * cols);
}

// Shape of a weight quantized by row, for the benchmark.
void add_big(OpCases& to) {
  const size_t first = to.size();
  add_quant(to, 4096, 1024, DType::kF32, some_limits(), " big");
  add_max(to, 4096, 1024, DType::kF32);
  add_int8(to, 4096, 1024, DType::kBF16);
  for (size_t i = first; i < to.size(); ++i) to[i]->big = true;
}

}  // namespace

void add_quant_cases(OpCases& to) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t cols : {1, 7, 33, 1200}) {
      add_quant(to, 9, cols, t, some_limits(), " rows");
      add_max(to, 9, cols, t);
      add_int8(to, 9, cols, t);
    }
    add_quant(to, 1, 70001, t, values({1.75}), "");
    add_max(to, 1, 200001, t);
  }
  add_big(to);
  add_quant(to, 1, 0, DType::kF32, values({1}), "");
  add_max(to, 3, 0, DType::kF32);
  add_int8(to, 3, 0, DType::kF32);
  add_quant(to, 1, 40, DType::kF32, values({0}), " no limit yet");
}

}  // namespace gt::test
