// Rotary embedding against transformers 4.45, and its defining property: scores depend on distances only.
#include "kernels/core/rope.h"

#include <cmath>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

void expect_close(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  // transformers computes in f32: where llama3 interpolates two frequencies, a difference is rounded (4e-7 of the f64
  // value).
  for (size_t i = 0; i < expected.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(5e-7));
}

Tensor tensor(std::vector<float>& v, Shape s) { return {reinterpret_cast<std::byte*>(v.data()), s, DType::kF32, {}}; }

// Dot product of q and k of one head of `dim` channels, rotated to these positions.
double score(int64_t dim, int64_t q_position, int64_t k_position) {
  std::vector<float> qkv(static_cast<size_t>(3 * dim)), table(static_cast<size_t>(200 * dim));
  philox_normals(stream_key(3, "test/rope"), 0, 3 * dim, 1, qkv.data());
  fill_rope_table(rope_inverse_frequencies(dim, 1e4), 1, 200, table.data());
  std::vector<float> turned[2] = {qkv, qkv};
  for (const int k : {0, 1})
    cpu_backend().ops->rope({.x = tensor(turned[k], {1, 3 * dim}),
                             .table = tensor(table, {200, dim}),
                             .heads = 2,
                             .head_dim = dim,
                             .rows = {.first = k == 0 ? q_position : k_position}},
                            {});
  double sum = 0;
  for (int64_t i = 0; i < dim; ++i)
    sum += double{turned[0][static_cast<size_t>(i)]} * turned[1][static_cast<size_t>(dim + i)];
  return sum;
}

}  // namespace

TEST_CASE("rope: inverse frequencies of every scaling are those of transformers") {
  expect_close(rope_inverse_frequencies(16, 1e4),
               {1.0, 0.3162277638912201, 0.10000000149011612, 0.03162277862429619, 0.009999999776482582,
                0.003162277862429619, 0.0010000000474974513, 0.0003162277862429619});
  expect_close(rope_inverse_frequencies(16, 1e4, {.kind = RopeKind::kLinear, .factor = 4}),
               {0.25, 0.07905694097280502, 0.02500000037252903, 0.007905694656074047, 0.0024999999441206455,
                0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05});
  expect_close(rope_inverse_frequencies(16, 5e5, {.kind = RopeKind::kLlama3, .factor = 8}),
               {1.0, 0.193922758102417, 0.03760603070259094, 0.00729266507551074, 0.0005248460220173001,
                3.428102354519069e-05, 6.647869668086059e-06, 1.289173155782919e-06});
  const RopeScaling yarn{.kind = RopeKind::kYarn, .factor = 4, .original_positions = 4096};
  expect_close(rope_inverse_frequencies(16, 1e4, yarn),
               {1.0, 0.3162277638912201, 0.10000000149011612, 0.025693506002426147, 0.00624999962747097,
                0.0013834965648129582, 0.0002500000118743628, 7.905694656074047e-05});
  CHECK(rope_attention_factor(yarn) == Approx(1.138629436111989).epsilon(1e-12));
  const RopeScaling steep{.kind = RopeKind::kYarn,
                          .factor = 40,
                          .beta_fast = 16,
                          .beta_slow = 2,
                          .attention_factor = 1.25,
                          .original_positions = 4096};
  expect_close(rope_inverse_frequencies(16, 1e4, steep),
               {1.0, 0.3162277638912201, 0.10000000149011612, 0.03162277862429619, 0.006749999243766069,
                0.0011067971354350448, 2.499999936844688e-05, 7.905694474175107e-06});
  CHECK(rope_attention_factor(steep) == 1.25);
  CHECK(rope_attention_factor({.kind = RopeKind::kLinear, .factor = 4}) == 1);
}

TEST_CASE("rope: a score depends only on the distance of its positions") {
  for (const int64_t dim : {6, 64}) {
    const double near = score(dim, 9, 4), same = score(dim, 0, 0);
    CHECK(score(dim, 9 + 137, 4 + 137) == Approx(near).epsilon(1e-4));
    CHECK(score(dim, 137, 137) == Approx(same).epsilon(1e-4));
    CHECK(std::abs(near - score(dim, 10, 4)) > 1e-2);
  }
}

TEST_CASE("rope: rows of a chunk, of a batch and at explicit positions are rotated alike, and back") {
  constexpr int64_t kSeq = 5, kRows = 10, kHeads = 3, kDim = 8, kWidth = 4 * kDim;  // a query, 2 keys, a value
  std::vector<float> table(kSeq * kDim), whole(kRows * kWidth);
  philox_normals(stream_key(4, "test/rope"), 0, kRows * kWidth, 1, whole.data());
  fill_rope_table(rope_inverse_frequencies(kDim, 1e4), 1, kSeq, table.data());
  const std::vector<float> before = whole;
  std::vector<float> rows = whole, single = whole;
  Rope args{.x = tensor(whole, {kRows, kWidth}),
            .table = tensor(table, {kSeq, kDim}),
            .heads = kHeads,
            .head_dim = kDim,
            .rows = {.seq = kSeq}};
  const auto turn = [](const Rope& r) { cpu_backend().ops->rope(r, {}); };
  turn(args);
  for (int64_t first = 0; first < kRows; first += 4) {  // as ranks of a sequence-parallel layer would
    Rope chunk = args;
    chunk.rows.first_row = first;
    chunk.x = tensor(rows, {kRows, kWidth}).slice(first, std::min<int64_t>(4, kRows - first));
    turn(chunk);
  }
  CHECK(rows == whole);
  std::vector<int32_t> positions(kRows);
  for (int32_t r = 0; r < kRows; ++r) positions[static_cast<size_t>(r)] = r % kSeq;
  Rope by_row = args;
  by_row.x = tensor(single, {kRows, kWidth}), by_row.rows = {};
  by_row.positions = {reinterpret_cast<std::byte*>(positions.data()), {kRows}, DType::kI32, {}};
  turn(by_row);
  CHECK(single == whole);
  args.backward = true;
  turn(args);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == Approx(before[i]).margin(1e-6));
  CHECK_THROWS_WITH(
      turn({.x = args.x, .table = args.table, .heads = kHeads, .head_dim = kDim, .rows = {.seq = kSeq, .first = 1}}),
      Catch::Contains("in a table of 5"));
  positions[3] = kSeq;
  CHECK_THROWS_WITH(turn(by_row), Catch::Contains("position 5 in a table of 5"));
}

}  // namespace gt::test
