// Sums of squares that CPU ops record with what they write: which ops do, what a second writer does to them, and what
// sum_squares makes of them. Those of products by tiles: bf16_products_test.cpp, split_gemm_test.cpp.
#include <limits>

#include "kernels/core/open_stream.h"
#include "tests/kernels/every_isa.h"
#include "tests/kernels/host_table.h"

namespace gt::test {
namespace {

double squares_of(const Tensor& x) {
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += double{x.as<float>()[i]} * x.as<float>()[i];
  return sum;
}

const OpTable& ops() { return *cpu_backend().ops; }

}  // namespace

TEST_CASE("recorded sums of squares replace the gradients of their segments") {
  Tensors t;
  HostTables tables;
  const Tensor x = t.f32({70'001}), y = t.f32({5000}), z = t.f32({3});
  const SegmentTable table = tables.table({{.grad = x, .group = 0}, {.grad = y, .group = 0}, {.grad = z, .group = 1}});
  const Tensor known = t.raw({3}, DType::kF64), out = t.raw({2}, DType::kF64);
  const auto sums = [&](double first, double second, double third) {
    const double all[] = {first, second, third};
    std::copy_n(all, 3, known.as<double>());
    ops().sum_squares({.table = table, .out = out, .known = known}, {});
    return std::pair(out.as<double>()[0], out.as<double>()[1]);
  };
  const double a = squares_of(x), b = squares_of(y), c = squares_of(z);
  CHECK(sums(-1, -1, -1).first == Approx(a + b).epsilon(1e-12));
  CHECK(sums(100, -1, 7) == std::pair(100 + sums(0, -1, 0).first, 7.0));
  CHECK(sums(-1, 100, -1).first == Approx(a + 100).epsilon(1e-12));
  CHECK(sums(-1, -1, -1).second == Approx(c).epsilon(1e-12));
  CHECK(std::isnan(sums(NAN, -1, -1).first));
  CHECK(std::isinf(sums(-1, std::numeric_limits<double>::infinity(), -1).first));
  const Tensor short_list = known.slice(0, 2);
  CHECK_THROWS_WITH(ops().sum_squares({.table = table, .out = out, .known = short_list}, {}),
                    Catch::Contains("sum_squares: known [2] has to have 3 elements"));
}

TEST_CASE("a token table's gradient keeps the sum of its squares up to date") {
  Tensors t;
  const int64_t rows = 50, cols = 1500, tokens = 40;
  const Tensor ids = t.ids(tokens, 3, 60), dout = t.f32({tokens, cols}), table = t.f32({rows, cols});
  const Tensor squares = t.raw({1}, DType::kF64);
  double& sum = *squares.as<double>();
  on_every_isa([&] {
    const OpenStream one(*cpu_backend().device, 0, 1), three(*cpu_backend().device, 0, 3);
    const auto add = [&](bool accumulate, Stream s) {
      ops().embedding_grad({.tokens = ids, .dout = dout, .dtable = table, .accumulate = accumulate, .squares = squares},
                           s);
    };
    sum = 12345;
    add(false, one);  // writes every row
    CHECK(sum == Approx(squares_of(table)).epsilon(1e-12));
    const double written = sum;
    add(false, three);
    CHECK(sum == written);
    add(true, one);
    CHECK(sum == Approx(squares_of(table)).epsilon(1e-12));
    sum = -1;
    add(true, one);
    CHECK(sum == -1);
    for (int64_t i = 0; i < dout.numel(); ++i) dout.as<float>()[i] = -dout.as<float>()[i];
    add(true, one), add(true, one);  // back to what was written
    add(false, one);
    add(true, one), add(true, one);
    CHECK(sum >= 0);
  });
  const Tensor narrow = t.raw({rows, cols}, DType::kBF16);
  CHECK_THROWS_WITH(ops().embedding_grad(
                        {.tokens = ids, .dout = dout, .dtable = narrow, .accumulate = false, .squares = squares}, {}),
                    Catch::Contains("dtable"));
}

TEST_CASE("a GEMM without squares records -1 and refuses to sum those of what is no weight gradient") {
  Tensors t;
  const Tensor a = t.f32({8, 16}), b = t.f32({8, 32}), out = t.f32({16, 32}), squares = t.raw({1}, DType::kF64);
  double& sum = *squares.as<double>();
  const Gemm g{.a = a, .b = b, .out = out, .trans_a = true, .squares = squares};
  on_every_isa([&] {
    sum = 5;
    ops().gemm(g, {});
    CHECK(sum == -1);
  });
  sum = 5;
  Gemm none = g;
  none.a = t.f32({0, 16}), none.b = t.f32({0, 32});
  ops().gemm(none, {});
  CHECK(sum == -1);
  Gemm forward{.a = t.f32({16, 8}), .b = b, .out = out, .squares = squares};
  CHECK_THROWS_WITH(ops().gemm(forward, {}), Catch::Contains("gemm squares [1] for a [16, 8]"));
  Gemm narrow = g;
  narrow.squares = t.f32({1});
  CHECK_THROWS_WITH(ops().gemm(narrow, {}), Catch::Contains("squares"));
}

}  // namespace gt::test
