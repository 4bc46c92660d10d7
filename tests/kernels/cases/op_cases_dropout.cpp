// Dropout cases, alone and fused into norm and attention: slices of a microbatch's rows, rows that begin and end inside
// a counter, heads of a later TP rank.
#include <cmath>

#include "kernels/core/rng.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

DropMask mask_of(double p) {
  DropMask m = drop_mask(stream_key(1234, "dropout/test"), p);
  m.first_sample = (int64_t{1} << 32) - 2;  // ordinals on both sides of 2^32
  return m;
}

DropMask only_scale(float scale) {
  DropMask m = mask_of(0);
  m.scale = scale;
  return m;
}

std::string describe(Shape s, const RowDrop& d, DType t) {
  const char* scaled = d && d.mask.threshold == 0 ? " scaled" : "";
  const std::string columns = d.width > 0 ? cat(" columns from ", d.first_column, " of ", d.width) : "";
  const std::string runs = d.rows.gap > 0 ? cat(", ", d.rows.gap, " after ", d.rows.run) : "";
  return cat(to_string(s), " rows from ", d.rows.first_row, " of ", d.rows.seq, runs, columns, scaled,
             t == DType::kF32 ? "" : " ", t == DType::kF32 ? "" : name_of(t));
}

void add_rows(OpCases& to, Shape s, RowDrop d, DType t = DType::kF32, bool big = false, int skew = 0) {
  const std::string name = describe(s, d, t) + (skew ? " unaligned" : "");
  auto& plain = add_case<Dropout>(to, name);
  plain.in(&Dropout::x, "x", s, normal(), t).out(&Dropout::out, "out", s, t);
  auto& onto = add_case<Dropout>(to, name + " out is x");
  onto.inout(&Dropout::x, "x", s, normal(), t).alias(&Dropout::out, &Dropout::x);
  for (auto* c : {&plain, &onto}) {
    c->args.drop = d;
    c->tolerance = t == DType::kF32 ? 0 : unit_of(t);  // a single f32 multiplication: bitwise identical everywhere
    c->flops = static_cast<double>(s.numel());
    c->big = big;
    c->skew = skew;
  }
}

// t: dtype of the rows; w: of the dropped branch.
void add_norms(OpCases& to, Shape s, RowDrop d, DType t = DType::kF32, DType w = DType::kF32, bool big = false) {
  const std::string name = describe(s, d, t) + (w == t ? "" : cat(" branch ", name_of(w))) + " dropout";
  const int64_t rows = s.rows(), cols = s.cols();
  for (const bool onto : {false, true}) {
    if (onto && w != t) continue;
    auto& c = add_case<LayerNorm>(to, name + (onto ? ", sum is delta" : ""));
    c.in(&LayerNorm::x, "x", s, normal(2, 0.5), t);
    if (onto) {
      c.inout(&LayerNorm::delta, "delta", s, normal(), t).alias(&LayerNorm::sum, &LayerNorm::delta);
    } else {
      c.in(&LayerNorm::delta, "delta", s, normal(), w).out(&LayerNorm::sum, "sum", s, t);
    }
    c.in(&LayerNorm::gamma, "gamma", {cols}, normal(0.3, 1), t).in(&LayerNorm::beta, "beta", {cols}, normal(), t);
    c.out(&LayerNorm::out, "out", s, t).out(&LayerNorm::mean, "mean", {rows}).out(&LayerNorm::rstd, "rstd", {rows});
    c.args.drop = d, c.tolerance = std::max(unit_of(t), unit_of(w)), c.big = big;
  }
  using G = LayerNormGrad;
  for (const bool onto : {false, true}) {
    if (onto && w != t) continue;
    auto& c = add_case<G>(to, name + (onto ? ", ddelta is dout, dx is dsum" : ""));
    c.in(&G::x, "x", s, normal(2, 0.5), t).in(&G::gamma, "gamma", {cols}, normal(0.3, 1), t);
    c.in(&G::mean, "mean", {rows}).in(&G::rstd, "rstd", {rows}, positive());
    if (onto) {
      c.inout(&G::dout, "dout", s, normal(), t).alias(&G::ddelta, &G::dout);
      c.inout(&G::dsum, "dsum", s, normal(), t).alias(&G::dx, &G::dsum);
    } else {
      c.in(&G::dout, "dout", s, normal(), t).out(&G::ddelta, "ddelta", s, w).out(&G::dx, "dx", s, t);
    }
    c.out(&G::dgamma, "dgamma", {cols}).out(&G::dbeta, "dbeta", {cols}).out(&G::dbias, "dbias", {cols});
    c.args.drop = d, c.tolerance = std::max(unit_of(t), unit_of(w)), c.big = big;
  }
}

}  // namespace

void add_dropout_cases(OpCases& to) {
  for (const int64_t cols : {1, 7, 30, 64, 129, 768})
    for (const int64_t first : {0, 5}) add_rows(to, {11, cols}, {mask_of(0.1), {4, first}});
  add_rows(to, {5, 64}, {mask_of(0.999), {3, 0}});
  for (const DType t : {DType::kF32, DType::kBF16})
    for (const int64_t first : {0, 64, 30}) add_rows(to, {5, 64}, {mask_of(0.5), {3, 1}, first, 128}, t);
  add_rows(to, {5, 65}, {mask_of(0), {4, 0}});  // without dropout: a copy
  add_rows(to, {0, 33}, {mask_of(0.1), {4, 0}});
  add_rows(to, {5, 64}, {mask_of(0.5), {2, 1}}, DType::kF32, false, 1);
  for (const int64_t cols : {7, 64}) {  // two runs of a sequence's positions
    add_rows(to, {11, cols}, {mask_of(0.1), {4, 5, 6, 3, 20}});
    add_norms(to, {11, cols}, {mask_of(0.1), {4, 5, 6, 3, 20}});
  }
  for (const int64_t cols : {7, 129, 768, 1280}) add_norms(to, {67, cols}, {mask_of(0.2), {16, 32}});
  for (const int64_t cols : {7, 768}) {  // nothing dropped, all scaled
    add_rows(to, {11, cols}, {only_scale(1.25f), {4, 5}});
    add_norms(to, {67, cols}, {only_scale(1.25f), {16, 32}});
  }
  for (const DType t : k16BitDtypes) {
    add_rows(to, {11, 64}, {mask_of(0.1), {4, 3}}, t);
    add_rows(to, {11, 33}, {mask_of(0.1), {4, 3}}, t);
    add_rows(to, {700, 129}, {mask_of(0.1), {64, 0}}, t);
    for (const int64_t cols : {7, 768, 1280}) {
      add_norms(to, {67, cols}, {mask_of(0.2), {16, 32}}, t, t);
      add_norms(to, {67, cols}, {mask_of(0.2), {16, 32}}, DType::kF32, t);
    }
  }
  add_rows(to, {4096, 1024}, {mask_of(0.1), {1024, 0}}, DType::kF32, true);
  add_norms(to, {4096, 1024}, {mask_of(0.1), {1024, 0}}, DType::kF32, DType::kF32, true);
}

}  // namespace gt::test
