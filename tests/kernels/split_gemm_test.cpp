// GEMMs of f32 in parts of bf16 (gemm_split.h): with the processor's tiles where it has them, and with emulated ones.
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/simd.h"
#include "tests/kernels/cases/op_cases.h"
#include "tests/support/test.h"

namespace gt::cpu {
// split_gemm_amx.cpp on emulated tiles (split_gemm_amx_emulated.cpp).
void split_gemm_amx_emulated(int64_t m, int64_t n, int64_t steps, const uint32_t* a, int64_t a_tile, const uint32_t* b,
                             int64_t b_tile, float* c, int64_t ldc, Upcoming* next);
}  // namespace gt::cpu

namespace gt::test {
namespace {

// Calls f() with every way to multiply f32 in parts.
template <class F>
void for_every_split(F f) {
  if (cpu::best_isa() == CpuIsa::kAmx) {
    INFO("tiles");
    f();
  }
#if defined(__x86_64__)
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (isa > cpu::best_isa()) break;
#ifdef GPT_SANITIZED  // emulation takes minutes there
    if (isa != std::min(cpu::best_isa(), CpuIsa::kAvx512)) continue;
#endif
    set_cpu_isa(isa);
    cpu::substitute_split_gemm(cpu::split_gemm_amx_emulated);
    INFO("emulated tiles, operands by " << name_of(isa));
    f();
    cpu::substitute_split_gemm(nullptr);
  }
#endif
  set_cpu_isa(CpuIsa::kAuto);
}

using Floats = std::vector<float>;

Floats normals(int64_t count, uint64_t key) {
  Floats x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(philox_normal(stream_key(8, "split"), key + i));
  return x;
}

Tensor view(Floats& x, int64_t rows, int64_t cols) {
  return {reinterpret_cast<std::byte*>(x.data()), {rows, cols}, DType::kF32, Device{}};
}

Floats turned(const Floats& x, int64_t rows, int64_t cols) {
  Floats y(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) y[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
  return y;
}

// a [m, k] b [k, n], with one element more, which stays -1.
Floats product(Floats a, Floats b, int64_t m, int64_t n, int64_t k, Stream s = {}, bool trans_a = false,
               bool trans_b = false) {
  if (trans_a) a = turned(a, m, k);
  if (trans_b) b = turned(b, k, n);
  Floats c(static_cast<size_t>(m * n + 1), -1.0f);
  cpu_backend().ops->gemm({.a = trans_a ? view(a, k, m) : view(a, m, k),
                           .b = trans_b ? view(b, n, k) : view(b, k, n),
                           .out = view(c, m, n),
                           .trans_a = trans_a,
                           .trans_b = trans_b},
                          s);
  return c;
}

// Root mean square of c - a b, and the largest |c - a b|.
struct Error {
  double rms = 0, most = 0;
};
Error error(const Floats& c, const Floats& a, const Floats& b, int64_t m, int64_t n, int64_t k) {
  Error e;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += double{a[static_cast<size_t>(i * k + p)]} * b[static_cast<size_t>(p * n + j)];
      const double off = std::abs(c[static_cast<size_t>(i * n + j)] - sum);
      e.rms += off * off, e.most = std::max(e.most, off);
    }
  e.rms = std::sqrt(e.rms / static_cast<double>(m * n));
  return e;
}

}  // namespace

TEST_CASE("f32 products in parts of bf16 err less than chains of f32 arithmetic") {
  for (const int64_t k : {7, 64, 768, 3072}) {
    const int64_t m = 32, n = 48;
    const Floats a = normals(m * k, 1), b = normals(k * n, 1'000'000'000);
    set_cpu_isa(std::min(cpu::best_isa(), CpuIsa::kAvx512));
    const Error plain = error(product(a, b, m, n, k), a, b, m, n, k);
    set_cpu_isa(CpuIsa::kAuto);
    for_every_split([&] {
      const Error e = error(product(a, b, m, n, k), a, b, m, n, k);
      CAPTURE(k, e.rms, plain.rms, e.most, plain.most);
      CHECK(e.rms < 0.9 * plain.rms);
    });
  }
}

TEST_CASE("bits of f32 products in parts depend on no size, orientation or number of threads") {
  const int64_t m = 70, n = 200, k = 1700;
  const Floats a = normals(m * k, 5), b = normals(k * n, 2'000'000'000);
  const OpenStream one(*cpu_backend().device, 0, 1), three(*cpu_backend().device, 0, 3);
  Floats first;
  for_every_split([&] {
    const Floats whole = product(a, b, m, n, k, one);
    if (first.empty()) first = whole;
    CHECK((whole == first));
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) CHECK((product(a, b, m, n, k, three, trans_a, trans_b) == whole));
    for (const int64_t rows : {1, 15, 16, 17, 33, 64}) {
      const Floats part = product(Floats(a.begin(), a.begin() + rows * k), b, rows, n, k, three);
      CHECK((std::memcmp(part.data(), whole.data(), static_cast<size_t>(rows * n) * sizeof(float)) == 0));
      CHECK(part.back() == -1);
    }
    Floats x = a, y = b, bias = normals(n, 7), sum(whole.size());  // added once, though the sums are made in blocks
    cpu_backend().ops->gemm({.a = view(x, m, k), .b = view(y, k, n), .bias = view(bias, 1, n), .out = view(sum, m, n)},
                            three);
    for (int64_t i = 0; i < m * n; ++i) {
      const auto at = static_cast<size_t>(i);
      if (sum[at] != whole[at] + bias[static_cast<size_t>(i % n)]) FAIL_CHECK("a bias at " << i);
    }
    const Floats bt = turned(b, k, n);
    for (const int64_t columns : {1, 15, 16, 17, 33, 131}) {
      const Floats some = turned(Floats(bt.begin(), bt.begin() + columns * k), columns, k);
      const Floats part = product(a, some, m, columns, k, three, true);
      int64_t wrong = part.back() != -1;
      for (int64_t i = 0; i < m * columns; ++i)
        wrong += part[static_cast<size_t>(i)] != whole[static_cast<size_t>(i / columns * n + i % columns)];
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("squares of a weight gradient in f32 parts are those of what is stored, by any number of threads") {
  for (const auto [m, n, k] : {std::array<int64_t, 3>{200, 112, 40}, {33, 500, 800}, {700, 40, 9}}) {
    Floats a = normals(k * m, 5), b = normals(k * n, 2'000'000'000);
    for_every_split([&, m = m, n = n, k = k] {
      INFO(m << " x " << n << " x " << k);
      for (const bool accumulate : {false, true}) {
        double squares[2] = {}, sum = 0;
        Floats c;
        for (int i = 0; i < 2; ++i) {
          const OpenStream stream(*cpu_backend().device, 0, 1 + 2 * i);
          c.assign(static_cast<size_t>(m * n), 0.5f);
          cpu_backend().ops->gemm({.a = view(a, k, m),
                                   .b = view(b, k, n),
                                   .out = view(c, m, n),
                                   .trans_a = true,
                                   .accumulate = accumulate,
                                   .squares = {reinterpret_cast<std::byte*>(squares + i), {1}, DType::kF64, Device{}}},
                                  stream);
        }
        for (const float x : c) sum += double{x} * x;
        CHECK(squares[0] == Approx(sum).epsilon(1e-12));
        CHECK(squares[0] == squares[1]);
      }
    });
  }
}

TEST_CASE("f32 products in parts keep what is not finite, and err little on tiny and huge numbers") {
  const int64_t m = 20, n = 18, k = 40;
  const Floats a = normals(m * k, 9), b = normals(k * n, 3'000'000'000);
  const auto bits = [](uint32_t x) {
    float f;
    std::memcpy(&f, &x, sizeof f);
    return f;
  };
  const float odd[] = {std::numeric_limits<float>::infinity(),
                       bits(0xFF800000),
                       bits(0x7FC00000),
                       bits(0x7FFFFFFF),
                       bits(0xFFFFFFFF),
                       bits(0x7FA00001),
                       bits(0x7F800001),
                       FLT_MAX};
  for_every_split([&] {
    const Floats before = product(a, b, m, n, k);
    for (const float x : odd) {
      Floats left = a, right = b;
      left[3 * k + 17] = x, right[17 * n + 5] = x;
      const Floats rows = product(left, b, m, n, k), columns = product(a, right, m, n, k);
      for (int64_t i = 0; i < m * n; ++i) {
        const auto at = static_cast<size_t>(i);
        CAPTURE(x, i / n, i % n);
        const bool same_row = i / n != 3 ? rows[at] == before[at] : !std::isfinite(rows[at]);
        const bool same_column = i % n != 5 ? columns[at] == before[at] : !std::isfinite(columns[at]);
        if (!same_row || !same_column) FAIL_CHECK("wrong");
      }
    }
    const auto scaled = [](Floats x, float by) {
      for (float& f : x) f *= by;
      return x;
    };
    for (const float by : {1e-38f, 1e-30f, 1e-20f, 1e18f, 1e37f}) {
      const Floats left = scaled(a, by);
      const Error e = error(product(left, b, m, n, k), left, b, m, n, k);
      CAPTURE(by, e.most);
      CHECK(e.most < 1e-5 * double{by} + 1e-36);
    }
  });
}

TEST_CASE("f32 GEMMs in parts agree with the reference on one thread and three") {
  OpCases cases;
  for (auto& c : op_cases())
    if (c->op == "gemm" && !c->big && c->name.find("16") == std::string::npos) cases.push_back(std::move(c));
  REQUIRE(cases.size() > 20);
  for (auto& c : cases) c->prepare(12);
  const OpenStream one(*cpu_backend().device, 0, 1), three(*cpu_backend().device, 0, 3);
  for_every_split([&] {
    for (const auto& c : cases) {
      INFO(c->op << ' ' << c->name);
      const Images alone = c->run(cpu_backend(), one), shared = c->run(cpu_backend(), three);
      CHECK(c->compare(alone) == "");
      CHECK((alone == shared));
    }
  });
}

}  // namespace gt::test
