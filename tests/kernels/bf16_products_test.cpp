// Products of bf16: those of every instruction set that this processor has, and attention (simd_attention_bf16.h) and
// GEMMs with them. Where the processor multiplies no bf16, f32 operations in the same order take its place, and
// emulated tiles those of AMX.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/gemm/gemm_pairs.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/simd.h"
#if defined(__x86_64__)
#include "tests/kernels/amx_emulated.h"
#endif
#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/packed_attention.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::cpu {
// pair_gemm_amx.cpp on emulated tiles (pair_gemm_amx_emulated.cpp).
void pair_gemm_amx_emulated(int64_t m, int64_t n, int64_t pairs, const uint16_t* a, int64_t lda, const uint32_t* b,
                            int64_t panel, float* c, int64_t ldc, bool more, Upcoming* next);
}  // namespace gt::cpu

namespace gt::test {
namespace {

// Calls f(product) for every product of bf16, with the instruction set whose table suits it.
template <class F>
void for_every_product(F f) {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa > cpu::best_isa()) break;
    set_cpu_isa(isa);
    if (isa < CpuIsa::kAvx512Bf16) cpu::substitute_pair_gemm(cpu::simd().pair_gemm);
    INFO(name_of(isa));
    f(cpu::native_pair_gemm());
    cpu::substitute_pair_gemm(nullptr);
  }
#if defined(__x86_64__)
  if (cpu::best_isa() >= CpuIsa::kAvx512) {
    set_cpu_isa(CpuIsa::kAvx512);
    cpu::substitute_pair_gemm(cpu::pair_gemm_amx_emulated);
    INFO("emulated tiles");
    f(cpu::native_pair_gemm());
    cpu::substitute_pair_gemm(nullptr);
  }
#endif
  set_cpu_isa(CpuIsa::kAuto);
}

float widened(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Operands of a product, the left one with rows that have a few elements more.
struct Operands {
  int64_t m, n, pairs, lda;
  std::vector<uint16_t> a;
  std::vector<uint32_t> b;
  Operands(int64_t m, int64_t n, int64_t pairs)
      : m(m),
        n(n),
        pairs(pairs),
        lda(2 * pairs + 6),
        a(static_cast<size_t>(m * lda)),
        b(static_cast<size_t>(n / cpu::kPairColumns * panel())) {
    const uint64_t key = stream_key(3, cat("pairs ", m, ' ', n, ' ', pairs));
    const auto draw = [&](uint64_t i) {
      uint16_t x;
      const auto value = static_cast<float>(philox_normal(key, i));
      cpu::simd().f32_to_bf16(&value, &x, 1);
      return x;
    };
    for (size_t i = 0; i < a.size(); ++i) a[i] = draw(i);
    for (size_t i = 0; i < b.size(); ++i)
      b[i] = draw(1'000'000 + 2 * i) | static_cast<uint32_t>(draw(1'000'001 + 2 * i)) << 16;
  }
  int64_t panel() const { return (pairs + 2) * cpu::kPairColumns; }  // with a gap
  std::vector<float> multiply(cpu::PairGemm product, int64_t rows, int64_t columns, int64_t depth, bool more) const {
    std::vector<float> c(static_cast<size_t>(m * n), 0.5f);
    product(rows, columns, depth, a.data(), lda, b.data(), panel(), c.data(), n, more, nullptr);
    return c;
  }
  double exact(int64_t row, int64_t column, bool more) const {
    double sum = more ? 0.5 : 0;
    for (int64_t k = 0; k < 2 * pairs; ++k) {
      const uint32_t pair = b[static_cast<size_t>(cpu::pair_at(k / 2, column, panel()))];
      sum += double{widened(a[static_cast<size_t>(row * lda + k)])} *
             widened(static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16));
    }
    return sum;
  }
};

}  // namespace

TEST_CASE("products of bf16 pairs are exact to the rounding of f32 sums with every instruction set") {
  for_every_product([](cpu::PairGemm product) {
    for (const int64_t m : {1, 15, 16, 17, 31, 32, 48, 63, 64, 80})
      for (const int64_t n : {16, 32, 48, 64})
        for (const int64_t pairs : {1, 7, 8, 16, 17, 32, 40}) {
          INFO(m << " x " << n << ", " << pairs << " pairs");
          const Operands of(m, n, pairs);
          for (const bool more : {false, true}) {
            const std::vector<float> c = of.multiply(product, m, n, pairs, more);
            double worst = 0;
            for (int64_t i = 0; i < m * n; ++i)
              worst = std::max(worst, std::abs(c[static_cast<size_t>(i)] - of.exact(i / n, i % n, more)));
            CHECK(worst < 1e-5 * std::sqrt(static_cast<double>(2 * pairs)) + 1e-6);
          }
        }
  });
}

TEST_CASE("a sum of bf16 pairs depends on its row and its column alone, and pairs of zeros do not change it") {
  for_every_product([](cpu::PairGemm product) {
    const int64_t m = 64, n = 64, pairs = 40;
    Operands of(m, n, pairs);
    const std::vector<float> whole = of.multiply(product, m, n, pairs, true);
    for (const int64_t rows : {1, 5, 16, 33})
      for (const int64_t columns : {16, 48}) {
        const std::vector<float> part = of.multiply(product, rows, columns, pairs, true);
        for (int64_t r = 0; r < rows; ++r)
          CHECK(std::memcmp(&part[static_cast<size_t>(r * n)], &whole[static_cast<size_t>(r * n)],
                            static_cast<size_t>(columns) * sizeof(float)) == 0);
      }
    for (const int64_t depth : {3, 19}) {  // the pairs behind are zero
      Operands zeros(m, n, pairs);
      for (int64_t p = depth; p < pairs; ++p)
        for (int64_t j = 0; j < n; ++j) zeros.b[static_cast<size_t>(cpu::pair_at(p, j, zeros.panel()))] = 0;
      CHECK(zeros.multiply(product, m, n, pairs, false) == zeros.multiply(product, m, n, depth, false));
    }
  });
}

#if defined(__x86_64__)
TEST_CASE("tiles stay configured between products of a shape while they are held and no longer") {
  const EmulatedTiles& tiles = emulated_tiles();
  const Operands x(32, 32, 32), fewer(8, 16, 16);
  std::vector<float> c(32 * 32);
  const auto multiply = [&](const Operands& of) {
    const int before = tiles.configurations();
    cpu::pair_gemm_amx_emulated(of.m, of.n, of.pairs, of.a.data(), of.lda, of.b.data(), of.panel(), c.data(), of.n,
                                false, nullptr);
    return tiles.configurations() - before;
  };
  CHECK(multiply(x) == 1);
  CHECK(multiply(x) == 1);
  CHECK_FALSE(tiles.configured());
  {
    const cpu::HeldTiles held;
    CHECK(multiply(x) == 1);
    CHECK(multiply(x) == 0);
    {
      const cpu::HeldTiles again;
      CHECK(multiply(fewer) == 1);
    }
    CHECK(multiply(fewer) == 0);
    CHECK(multiply(x) == 1);
    CHECK(tiles.configured());
  }
  CHECK_FALSE(tiles.configured());
}
#endif

TEST_CASE("attention and GEMMs in bf16 products agree with the reference on one thread and three") {
  const std::vector<std::string> ops{"attention", "attention_grad", "cached_attention", "gemm"};
  OpCases cases;
  for (auto& c : op_cases()) {
    const bool multiplies = std::find(ops.begin(), ops.end(), c->op) != ops.end();
    if (multiplies && !c->big && c->name.find("bf16") != std::string::npos) cases.push_back(std::move(c));
  }
  REQUIRE(cases.size() > 40);
  for (auto& c : cases) c->prepare(11);
  for_every_product([&](cpu::PairGemm) {
    const OpenStream one(*cpu_backend().device, 0, 1), three(*cpu_backend().device, 0, 3);
    for (const auto& c : cases) {
      INFO(c->op << ' ' << c->name);
      const Images alone = c->run(cpu_backend(), one), shared = c->run(cpu_backend(), three);
      CHECK(c->compare(alone) == "");
      const bool same_bits = alone == shared;
      CHECK(same_bits);
    }
  });
}

TEST_CASE("tiles of a bf16 product are equal work for two threads, whatever its width") {
  for_every_product([](cpu::PairGemm) {
    for (const int64_t m : {64, 512, 1024})
      for (const int64_t n : {384, 480, 512, 544, 576, 768, 1024, 1088, 2048, 2304, 4096}) {
        INFO(m << " x " << n);
        const Tensor a{nullptr, {m, 256}, DType::kBF16, {}}, b{nullptr, {256, n}, DType::kBF16, {}};
        const auto p = cpu::PairedGemm::of({.a = a, .b = b}, m, n, 256, 2);
        REQUIRE(p);
        const int64_t across = (n + p->tile_columns - 1) / p->tile_columns;
        const int64_t tiles = (m + p->tile_rows - 1) / p->tile_rows * across;
        int64_t first = 0;  // elements of the tiles of the first thread
        for (int64_t i = 0; i < tiles / 2; ++i)
          first += std::min(p->tile_rows, m - i / across * p->tile_rows) *
                   std::min(p->tile_columns, n - i % across * p->tile_columns);
        CHECK(static_cast<double>(first) / static_cast<double>(m * n) == Approx(0.5).margin(0.05));
      }
  });
}

TEST_CASE("a large weight gradient, written past the caches, is bitwise its sum with zeros") {
  const int64_t rows = 20, m = 1040, n = 1056;  // more than 2^20 elements, and a last tile of other size
  std::vector<std::vector<std::byte>> memory;
  const auto make = [&](Shape s, DType t) {  // at a cache line
    memory.emplace_back(static_cast<size_t>(s.numel() * size_of(t)) + 64);
    return Tensor{memory.back().data() + 63 - (reinterpret_cast<uintptr_t>(memory.back().data()) + 63) % 64, s, t,
                  Device{}};
  };
  const Tensor a = make({rows, m}, DType::kBF16), b = make({rows, n}, DType::kBF16);
  const Tensor streamed = make({m, n}, DType::kF32), added = make({m, n}, DType::kF32);
  for (int64_t i = 0; i < a.numel(); ++i) set(a, i, philox_normal(8, static_cast<uint64_t>(i)));
  for (int64_t i = 0; i < b.numel(); ++i) set(b, i, philox_normal(7, static_cast<uint64_t>(i)));
  for_every_product([&](cpu::PairGemm) {
    const OpenStream stream(*cpu_backend().device, 0, 2);
    std::fill_n(streamed.as<float>(), m * n, 7.f);
    std::fill_n(added.as<float>(), m * n, 0.f);
    cpu_backend().ops->gemm({.a = a, .b = b, .out = streamed, .trans_a = true}, stream);
    cpu_backend().ops->gemm({.a = a, .b = b, .out = added, .trans_a = true, .accumulate = true}, stream);
    const bool same = std::equal(streamed.as<float>(), streamed.as<float>() + m * n, added.as<float>());
    CHECK(same);
  });
}

TEST_CASE("squares of a weight gradient in bf16 products are those of what is stored, by any number of threads") {
  struct Size {
    int64_t k, m, n;
  };
  for (const Size size : {Size{20, 1040, 1056}, {7, 200, 112}, {64, 33, 16}}) {  // the first one is streamed
    INFO(size.m << " x " << size.n << ", " << size.k << " rows");
    std::vector<std::vector<std::byte>> memory;
    const auto make = [&](Shape s, DType t) {
      memory.emplace_back(static_cast<size_t>(s.numel() * size_of(t)) + 64);
      return Tensor{memory.back().data() + 63 - (reinterpret_cast<uintptr_t>(memory.back().data()) + 63) % 64, s, t,
                    Device{}};
    };
    const Tensor a = make({size.k, size.m}, DType::kBF16), b = make({size.k, size.n}, DType::kBF16);
    const Tensor out = make({size.m, size.n}, DType::kF32), squares = make({2}, DType::kF64);
    for (int64_t i = 0; i < a.numel(); ++i) set(a, i, philox_normal(8, static_cast<uint64_t>(i)));
    for (int64_t i = 0; i < b.numel(); ++i) set(b, i, philox_normal(7, static_cast<uint64_t>(i)));
    for_every_product([&](cpu::PairGemm) {
      for (const bool accumulate : {false, true}) {
        INFO((accumulate ? "added" : "written"));
        for (int threads = 1; threads <= 3; threads += 2) {
          const OpenStream stream(*cpu_backend().device, 0, threads);
          std::fill_n(out.as<float>(), out.numel(), 0.5f);
          const Gemm g{.a = a,
                       .b = b,
                       .out = out,
                       .trans_a = true,
                       .accumulate = accumulate,
                       .squares = squares.slice(threads / 2, 1)};
          cpu_backend().ops->gemm(g, stream);
        }
        double sum = 0;
        for (int64_t i = 0; i < out.numel(); ++i) sum += double{out.as<float>()[i]} * out.as<float>()[i];
        CHECK(squares.as<double>()[0] == Approx(sum).epsilon(1e-12));
        CHECK(squares.as<double>()[0] == squares.as<double>()[1]);
      }
    });
  }
}

TEST_CASE("a token decoded from a bf16 KV cache is bitwise its row of the full op in bf16 products") {
  struct Rule {
    int64_t window;
    float softcap;
  };
  const int64_t seq = 200, heads = 4, kv = 2, dim = 40;
  const float scale = 0.2f;
  std::vector<std::vector<std::byte>> memory;
  const auto make = [&](Shape s, DType t) {
    memory.emplace_back(static_cast<size_t>(s.numel() * size_of(t)) + 8);
    return Tensor{memory.back().data(), s, t, Device{}};
  };
  const Tensor qkv = make({seq, (heads + 2 * kv) * dim}, DType::kBF16), out = make({seq, heads * dim}, DType::kBF16);
  const Tensor lse = make({1, heads, seq}, DType::kF32), got = make(out.shape, DType::kBF16);
  const Tensor keys = make({1, kv, seq, dim}, DType::kBF16), values = make(keys.shape, DType::kBF16);
  const Tensor sequences = make({seq}, DType::kI32), positions = make({seq}, DType::kI32);
  for (int64_t i = 0; i < qkv.numel(); ++i) set(qkv, i, 3 * philox_normal(5, static_cast<uint64_t>(i)));
  for (int64_t i = 0; i < seq; ++i) positions.as<int32_t>()[i] = static_cast<int32_t>(i);
  for_every_product([&](cpu::PairGemm) {
    const OpTable& ops = *cpu_backend().ops;
    for (const Rule r : {Rule{0, 0}, {1, 0}, {40, 0}, {64, 0}, {65, 3}, {131, 0}, {0, 2}, {300, 5}}) {
      INFO("window " << r.window << " softcap " << r.softcap);
      const AttentionSpec spec = whole_sequences(1, seq, heads, kv, dim, scale, r.window, r.softcap);
      ops.attention(packed_attention(qkv, out, lse, spec), {});
      const PackedQkv in = packed(qkv, spec);
      ops.store_kv({in.k, in.v, sequences, positions, keys, values}, {});
      ops.cached_attention({in.q, sequences, positions, keys, values, got, heads, scale, r.window, r.softcap}, {});
      CHECK(std::memcmp(got.data, out.data, static_cast<size_t>(out.bytes())) == 0);
      if (r.window == 0 || r.window >= seq) continue;  // keys outside the last token's window are not read
      for (const Tensor& t : {keys, values})
        for (int64_t head = 0; head < kv; ++head)
          for (int64_t i = 0; i < (seq - r.window) * dim; ++i) set(t, head * seq * dim + i, NAN);
      const Tensor last = qkv.slice(seq - 1, 1), one = got.slice(seq - 1, 1);
      ops.cached_attention({{last},
                            sequences.slice(0, 1),
                            positions.slice(seq - 1, 1),
                            keys,
                            values,
                            one,
                            heads,
                            scale,
                            r.window,
                            r.softcap},
                           {});
      CHECK(std::memcmp(one.data, out.slice(seq - 1, 1).data, static_cast<size_t>(one.bytes())) == 0);
    }
  });
}

}  // namespace gt::test
