// Parameter gradients in bf16: accumulated in f32, including the existing value, and rounded once. Each case adds
// 1 + 2^-8 to 256, whose neighbours are 2 apart. The result 258 is unique to this order of roundings: 1 + 2^-8 rounded
// alone is 1, and 257 rounds back to 256.
#include <vector>

#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

constexpr DType kB = DType::kBF16;

void add_one(OpCases& to, DType t) {
  const std::string name = cat("256 and one and a bit,", suffix(t), grad_suffix(kB));
  constexpr int64_t cols = 40;
  const auto pair = [](int64_t count, double first, double second) {  // two rows
    std::vector<double> v(static_cast<size_t>(count), first);
    v.insert(v.end(), static_cast<size_t>(count), second);
    return values(v);
  };
  auto& product = add_case<Gemm>(to, name);
  product.args.trans_a = product.args.accumulate = true;
  product.in(&Gemm::a, "a", {2, 24}, pair(24, 1, 0x1p-4), t).in(&Gemm::b, "b", {2, cols}, pair(cols, 1, 0x1p-4), t);
  product.inout(&Gemm::out, "out", {24, cols}, values({256}), kB).tolerance = 0;

  auto& bias = add_case<ColumnSums>(to, name);
  bias.args.accumulate = true;
  bias.in(&ColumnSums::x, "x", {2, cols}, pair(cols, 1, 0x1p-8), t);
  bias.inout(&ColumnSums::out, "out", {cols}, values({256}), kB).tolerance = 0;

  using N = LayerNormGrad;
  auto& norm = add_case<N>(to, name);  // a deferred pass: without dx. (x - mean) rstd is 1
  norm.args.accumulate_dw = true;
  norm.in(&N::x, "x", {2, cols}, values({2}), t).in(&N::gamma, "gamma", {cols}, values({1}), t);
  norm.in(&N::mean, "mean", {2}, values({1})).in(&N::rstd, "rstd", {2}, values({1}));
  norm.in(&N::dout, "dout", {2, cols}, pair(cols, 1, 0x1p-8), t);
  norm.inout(&N::dgamma, "dgamma", {cols}, values({256}), kB).inout(&N::dbeta, "dbeta", {cols}, values({256}), kB);
  norm.tolerance = 0;

  using E = EmbeddingGrad;
  auto& table = add_case<E>(to, name);
  table.args.accumulate = true;
  table.in(&E::tokens, "tokens", {2}, values({1}), DType::kI32);
  table.in(&E::dout, "dout", {2, cols}, pair(cols, 1, 0x1p-8), t);
  table.inout(&E::dtable, "dtable", {3, cols}, values({256}), kB).tolerance = 0;

  using P = PositionGrad;
  auto& positions = add_case<P>(to, name);
  positions.args.accumulate = true, positions.args.rows = {.seq = 1, .first = 2};
  positions.in(&P::dout, "dout", {2, cols}, pair(cols, 1, 0x1p-8), t);
  positions.inout(&P::dpos, "dpos", {4, cols}, values({256}), kB).tolerance = 0;

  auto& shard = add_case<Axpy>(to, name);  // f32 input: sums over ranks
  if (t == DType::kF32)
    shard.in(&Axpy::x, "x", {cols}, values({1 + 0x1p-8}), t);
  else
    shard.in(&Axpy::x, "x", {cols}, values({1}), t);
  shard.inout(&Axpy::y, "y", {cols}, values({256}), kB).tolerance = 0;
}

}  // namespace

void add_gradient_cases(OpCases& to) {
  for (const DType t : {DType::kF32, kB, DType::kF16}) add_one(to, t);
}

}  // namespace gt::test
