// Vector functions of one argument and casts, on every instruction set: their error, special values, every 16-bit
// value.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/open_stream.h"
#include "kernels/cpu/simd/simd.h"
#include "tests/kernels/every_isa.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::test {

TEST_CASE("cpu simd: exp is within 2e-7 relative over its range, 0 below it, and passes NaN") {
  std::vector<float> x, y;
  for (double v = -87.3; v < 88.2; v += 0.0007) x.push_back(static_cast<float>(v));
  y.resize(x.size());
  on_every_isa([&] {
    cpu::simd().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, std::fabs(y[i] / std::exp(static_cast<double>(x[i])) - 1));
    }
    CHECK(worst < 2e-7);
    const float inf = std::numeric_limits<float>::infinity();
    const float special[] = {-inf, -90, -1000, 0, NAN};
    float out[5];
    cpu::simd().exp(special, out, 5);
    CHECK((out[0] == 0 && out[1] == 0 && out[2] == 0 && out[3] == 1 && std::isnan(out[4])));
  });
}

TEST_CASE("cpu simd: tanh is within 3e-7 relative everywhere, and passes NaN") {
  std::vector<float> x, y;
  for (double v = -12; v < 12; v += 0.00037) x.push_back(static_cast<float>(v));
  for (double v = 1e-30; v < 1e30; v *= 1.7) x.push_back(static_cast<float>(v)), x.push_back(-static_cast<float>(v));
  y.resize(x.size());
  on_every_isa([&] {
    cpu::simd().tanh(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::fabs(y[i] / std::tanh(static_cast<double>(x[i])) - 1));
    CHECK(worst < 3e-7);
    const float inf = std::numeric_limits<float>::infinity();
    const float special[] = {-inf, inf, 0, NAN};
    float out[4];
    cpu::simd().tanh(special, out, 4);
    CHECK((out[0] == -1 && out[1] == 1 && out[2] == 0 && std::isnan(out[3])));
  });
}

namespace {

// Bits of values, one bit pattern for all NaNs.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float v : values) bits.push_back(std::isnan(v) ? ~0u : std::bit_cast<uint32_t>(v));
  return bits;
}

// Erf GELU and its gradient of x, in chunks of `chunk` elements, onto the inputs: value or dgate, then dup.
std::vector<uint32_t> gelu_erf_in_chunks(const std::vector<float>& x, bool gated, bool grad, size_t chunk) {
  const auto kind = static_cast<size_t>(Activation::kGeluErf);
  std::vector<float> gate = x, up = x, dout = x;
  for (size_t i = 0; i < x.size(); ++i)
    up[i] = 0.5f - static_cast<float>(i % 7), dout[i] = static_cast<float>(i % 5) - 1.5f;
  for (size_t i = 0; i < x.size(); i += chunk) {
    float* ups = gated ? &up[i] : nullptr;
    const auto n = static_cast<int64_t>(std::min(chunk, x.size() - i));
    if (grad) {
      cpu::simd().activate_grad[kind](&gate[i], ups, &dout[i], &dout[i], ups, n);
    } else {
      cpu::simd().activate[kind](&gate[i], ups, &gate[i], n);
    }
  }
  std::vector<float> all = grad ? dout : gate;
  all.insert(all.end(), up.begin(), up.end());
  return bits_of(all);
}

}  // namespace

TEST_CASE("cpu simd: erf GELU of an element does not depend on the elements beside it") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float spread : {0.3f, 1.5f, 6.0f}) {  // erf's tail for none, a few and most elements
    std::vector<float> x;
    for (int i = 0; i < 2600; ++i) x.push_back(spread * static_cast<float>((i * 7919 + i / 3) % 1000 - 500) / 250.0f);
    for (const size_t i : {3u, 40u, 1030u})
      x[i] = NAN, x[i + 1] = inf, x[i + 2] = -inf, x[i + 3] = -0.0f, x[i + 4] = 30;
    on_every_isa([&] {
      for (const bool gated : {false, true})
        for (const bool grad : {false, true}) {
          INFO("spread " << spread << (gated ? ", gated" : "") << (grad ? ", gradient" : ""));
          const std::vector<uint32_t> alone = gelu_erf_in_chunks(x, gated, grad, 1);
          for (const size_t chunk : {15u, 16u, 37u, 1023u, 1024u, 1025u, 2600u}) {
            INFO("chunks of " << chunk);
            CHECK(gelu_erf_in_chunks(x, gated, grad, chunk) == alone);
          }
        }
    });
  }
}

TEST_CASE("cpu simd: casts agree with the reference on every 16-bit value and around every rounding point") {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    INFO(name_of(type));
    Tensors t;
    const Tensor all = t.raw({65536}, type), wide = t.raw({65536}, DType::kF32), back = t.raw({65536}, type);
    for (int i = 0; i < 65536; ++i) all.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    // Each 16-bit value, its midpoint to the next one, and one f32 step to both sides of that.
    std::vector<float> points;
    for (int i = 0; i < 65536; ++i) {
      const double v = get(all, i);
      if (!std::isfinite(v)) continue;
      const double next = get(all, i + ((i & 0x7FFF) + 1 < 32768 ? 1 : 0));
      const auto middle = static_cast<float>(std::isfinite(next) ? (v + next) / 2 : v * (1 + 1.0 / 4096));
      for (const float p :
           {static_cast<float>(v), middle, std::nextafter(middle, 1e38f), std::nextafter(middle, -1e38f)}) {
        points.push_back(p);
      }
    }
    for (const float p : {65504.0f, 65519.9f, 65520.0f, -65520.0f, 3.4e38f, 1e-30f, -0.0f, 5.9e-8f, 2.9e-8f}) {
      points.push_back(p);
    }
    points.push_back(std::numeric_limits<float>::infinity());
    const auto n = static_cast<int64_t>(points.size());
    const Tensor src{reinterpret_cast<std::byte*>(points.data()), {n}, DType::kF32, {}};
    const Tensor got = t.raw({n}, type), expected = t.raw({n}, type);
    for (int64_t i = 0; i < n; ++i) set(expected, i, points[static_cast<size_t>(i)]);
    on_every_isa([&] {
      const OpenStream stream(*cpu_backend().device, 0, 2);
      cpu_backend().ops->cast({all, wide}, stream);
      cpu_backend().ops->cast({wide, back}, stream);
      int64_t wrong = 0;
      for (int i = 0; i < 65536; ++i) {
        const double v = get(all, i), w = wide.as<float>()[i];
        const bool same = std::isnan(v) ? std::isnan(w) && std::isnan(get(back, i))
                                        : v == w && all.as<uint16_t>()[i] == back.as<uint16_t>()[i];
        wrong += !same;
      }
      CHECK(wrong == 0);
      cpu_backend().ops->cast({src, got}, stream);
      int64_t rounded_wrong = 0;
      for (int64_t i = 0; i < n; ++i) rounded_wrong += got.as<uint16_t>()[i] != expected.as<uint16_t>()[i];
      CHECK(rounded_wrong == 0);
    });
  }
}

TEST_CASE("cpu simd: bf16 results past the caches and GELU in one pass are bitwise those of separate passes") {
  Tensors t;
  const Tensor x = t.f32({137}, -12, 12), d = t.f32({137});
  const float* z = x.as<float>();
  const float odd[] = {1e-40f, -1e-39f, std::numeric_limits<float>::infinity(), 20.0f, -20.0f};
  std::copy(std::begin(odd), std::end(odd), x.as<float>() + 7);
  on_every_isa([&] {
    const cpu::Simd& f = cpu::simd();
    const auto gelu = static_cast<size_t>(Activation::kGelu);
    alignas(64) uint16_t got[192], kept[137], expected[137];
    for (int64_t n = 0; n <= 137; n = n < 70 ? n + 1 : n + 67) {
      INFO(n);
      float wide[137], of_gelu[137];
      f.f32_to_bf16(z, expected, n);
      for (const int64_t at : {0, 1, 15, 16, 31}) {
        std::fill_n(got, 192, uint16_t{7});
        f.stream_bf16(z, got + at, n);
        CHECK(std::equal(expected, expected + n, got + at));
        CHECK(std::count(got, got + 192, 7) >= 192 - n);
      }
      f.gelu_bf16(z, kept, got, n);
      CHECK(std::equal(expected, expected + n, kept));
      f.bf16_to_f32(kept, wide, n);
      f.activate[gelu](wide, nullptr, of_gelu, n);
      f.f32_to_bf16(of_gelu, expected, n);
      CHECK(std::equal(expected, expected + n, got));
      f.gelu_grad_bf16(kept, d.as<float>(), got, n);
      f.activate_grad[gelu](wide, nullptr, d.as<float>(), of_gelu, nullptr, n);
      f.f32_to_bf16(of_gelu, expected, n);
      CHECK(std::equal(expected, expected + n, got));
    }
  });
}

}  // namespace gt::test
