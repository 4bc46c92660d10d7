// FP8 formats: every code, every midpoint between neighbours, both ends of the range.
#include "kernels/core/fp8.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

constexpr DType kFormats[] = {DType::kF8E4M3, DType::kF8E5M2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Value of a code according to the reference, which shares no code with fp8.h.
double value_of(uint8_t code, DType t) { return get({reinterpret_cast<std::byte*>(&code), {1}, t, {}}, 0); }

uint8_t e4m3(float x) { return fp8_encode(x, fp8_format(DType::kF8E4M3)); }
uint8_t e5m2(float x) { return fp8_encode(x, fp8_format(DType::kF8E5M2)); }

}  // namespace

TEST_CASE("fp8: all 256 values of both formats decode and encode to themselves") {
  for (const DType t : kFormats) {
    const Fp8Format f = fp8_format(t);
    int numbers = 0;
    for (int i = 0; i < 256; ++i) {
      const auto code = static_cast<uint8_t>(i);
      const float x = fp8_decode(code, f);
      const double expected = value_of(code, t);
      INFO(name_of(t) << " code " << i << " is " << x << ", expected " << expected);
      CHECK(std::isnan(x) == std::isnan(expected));
      if (std::isnan(expected)) {
        CHECK(fp8_encode(x, f) == 0x7F);
        continue;
      }
      CHECK(double{x} == expected);
      CHECK(std::signbit(x) == (i >= 128));
      if (std::isinf(x)) continue;
      ++numbers;
      CHECK(fp8_encode(x, f) == code);
    }
    CHECK(numbers == (t == DType::kF8E4M3 ? 254 : 248));
  }
}

TEST_CASE("fp8: rounding is to nearest, ties to even") {
  for (const DType t : kFormats) {
    const Fp8Format f = fp8_format(t);
    for (int i = 0; i < f.largest_code; ++i) {
      const auto low = static_cast<uint8_t>(i), high = static_cast<uint8_t>(i + 1);
      const float a = fp8_decode(low, f), b = fp8_decode(high, f), middle = (a + b) / 2;
      INFO(name_of(t) << " between codes " << i << " and " << i + 1 << ": " << a << ", " << b);
      CHECK(fp8_encode(middle, f) == (i % 2 ? high : low));
      CHECK(fp8_encode(std::nextafter(middle, 0.f), f) == low);
      CHECK(fp8_encode(std::nextafter(middle, b), f) == high);
      CHECK(fp8_encode(-middle, f) == (0x80 | (i % 2 ? high : low)));
    }
  }
}

TEST_CASE("fp8: reference values, saturation and NaN") {
  CHECK(e4m3(448) == 0x7E);
  CHECK(e4m3(0.1f) == 0x1D);
  CHECK(e4m3(17) == 0x58);  // 16: a tie, to even
  CHECK(e5m2(57344) == 0x7B);
  for (const float beyond : {449.f, 465.f, 1e30f, kInfinity}) {
    CHECK(e4m3(beyond) == 0x7E);
    CHECK(e4m3(-beyond) == 0xFE);
  }
  for (const float beyond : {57345.f, 61440.f, 1e30f, kInfinity}) {
    CHECK(e5m2(beyond) == 0x7B);
    CHECK(e5m2(-beyond) == 0xFB);
  }
  for (const float nan : {std::nanf(""), -std::nanf("1")}) {
    CHECK(e4m3(nan) == 0x7F);
    CHECK(e5m2(nan) == 0x7F);
  }
  CHECK(e4m3(-0.f) == 0x80);
  CHECK(e4m3(1e-40f) == 0);  // below the smallest normal f32
}

TEST_CASE("fp8: the scale maps amax to the largest FP8 value, and is never infinite") {
  for (const DType t : kFormats) {
    const Fp8Format f = fp8_format(t);
    CHECK(fp8_scale(0, f) == 1);
    for (const float amax : {1e-45f, 1e-41f, 1e-30f, 0.37f, 3.1f, 1e20f, 3e38f}) {
      const float scale = fp8_scale(amax, f);
      INFO(name_of(t) << " amax " << amax << " scale " << scale);
      CHECK(std::isnormal(scale));
      CHECK(std::isnormal(1 / scale));
      if (amax > 1e-30f) CHECK(fp8_encode(amax * scale, f) == f.largest_code);
    }
    CHECK(fp8_encode(kInfinity * fp8_scale(kInfinity, f), f) == 0x7F);  // an overflow stays visible
    CHECK(fp8_encode(1 * fp8_scale(kInfinity, f), f) == 0);
  }
}

}  // namespace gt::test
