// Gemm::row_independent, which generation relies on.
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "tests/support/test.h"

namespace gt {
namespace {

struct Matrix {
  std::vector<std::byte> bytes;
  Tensor tensor;
  Matrix(int64_t rows, int64_t cols, DType t, uint32_t seed) : bytes(static_cast<size_t>(rows * cols * size_of(t))) {
    tensor = {bytes.data(), {rows, cols}, t, {}};
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float x = normal(random);
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      if (t == DType::kF32)
        tensor.as<float>()[i] = x;
      else
        tensor.as<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);
    }
  }
  double at(int64_t i) const {
    if (tensor.dtype == DType::kF32) return static_cast<double>(tensor.as<float>()[i]);
    const uint32_t bits = uint32_t{tensor.as<uint16_t>()[i]} << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return static_cast<double>(x);
  }
};

void expect_rows_alone(DType t, int64_t n, int64_t k, bool gelu) {
  constexpr int64_t kRows = 70;
  const Matrix a(kRows, k, t, 1), b(n, k, t, 2), bias(1, n, t, 3);
  const OpTable& ops = *cpu_backend().ops;
  const OpenStream two(*cpu_backend().device, 0, 2);
  const auto product = [&](int64_t first, int64_t rows, bool row_independent, Matrix& out, Stream s) {
    Matrix aux(rows, n, t, 5);
    Gemm g{.a = a.tensor.slice(first, rows), .b = b.tensor, .bias = bias.tensor.view({n}), .out = out.tensor};
    g.trans_b = true, g.row_independent = row_independent;
    if (gelu) g.aux = aux.tensor, g.epilogue = Epilogue::kGelu;
    ops.gemm(g, s);
  };
  Matrix all(kRows, n, t, 4), usual(kRows, n, t, 4);
  product(0, kRows, true, all, two);
  product(0, kRows, false, usual, two);
  double worst = 0;
  for (int64_t i = 0; i < kRows * n; ++i)
    worst = std::max(worst, std::abs(all.at(i) - usual.at(i)) / (1 + std::abs(usual.at(i))));
  CHECK(worst < (t == DType::kF32 ? 1e-4 : 2e-2));
  for (const int64_t rows : {1, 2, 3, 6, 7, 64, 65}) {
    Matrix some(rows, n, t, 6);
    product(kRows - rows, rows, true, some, {});
    INFO(rows << " rows, n " << n << ", k " << k);
    const size_t bytes = some.bytes.size();
    CHECK(std::memcmp(some.bytes.data(), all.bytes.data() + (all.bytes.size() - bytes), bytes) == 0);
  }
}

}  // namespace

TEST_CASE("gemm by rows: a row is bitwise independent of the number of rows, on every instruction set") {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAuto}) {
    try {
      set_cpu_isa(isa);
    } catch (const Error&) { continue; }  // not supported by this processor
    INFO(name_of(isa));
    for (const DType t : {DType::kF32, DType::kBF16})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {64, 32}, {100, 300}, {129, 17}, {96, 520}})
        for (const bool gelu : {false, true}) expect_rows_alone(t, n, k, gelu);
  }
  set_cpu_isa(CpuIsa::kAuto);
}

}  // namespace gt
