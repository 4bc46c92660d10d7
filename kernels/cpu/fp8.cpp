// Numbers of 8 bits on the CPU, which multiplies none: codes are looked up in a table of 256 and multiplied as f32, so
// products and sums are those of the tensor cores up to the order of addition.
#include "kernels/core/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kTile = 64, kGrain = 16384;

constexpr std::array<float, 256> values_of(Fp8Format f) {
  std::array<float, 256> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = fp8_decode(static_cast<uint8_t>(i), f);
  return out;
}
constexpr std::array<float, 256> kValuesE4M3 = values_of(fp8_format(DType::kF8E4M3)),
                                 kValuesE5M2 = values_of(fp8_format(DType::kF8E5M2));

void require_codes(const char* op, std::initializer_list<Named> tensors) {
  for (const Named& n : tensors)
    GT_REQUIRE(!n.tensor || is_fp8(n.tensor.dtype), Exit::kUsage, op, " on the CPU: ", n.name, ' ',
               to_string(n.tensor.shape), " is ", name_of(n.tensor.dtype), "; f8e4m3 or f8e5m2 is supported");
}

// One tile of x: its codes to `rows` and `columns`, where these are wanted. Returns the largest |x|.
float encode_tile(const QuantizeFp8& p, float scale, int64_t r0, int64_t c0) {
  const int64_t rows = p.x.shape.rows(), cols = p.x.shape.cols();
  const int64_t height = std::min(kTile, rows - r0), width = std::min(kTile, cols - c0);
  const Fp8Format format = fp8_format(p.rows ? p.rows.dtype : p.columns.dtype);
  const Simd& f = simd();
  float room[kTile], most = 0;
  uint8_t codes[kTile][kTile];
  for (int64_t r = 0; r < height; ++r) {
    const int64_t at = (r0 + r) * cols + c0;
    const float* x = read(f, p.x, at, width, room);
    if (p.seen) most = std::max(most, f.max_abs(x, width));
    for (int64_t c = 0; c < width; ++c) codes[r][c] = fp8_encode(x[c] * scale, format);
    if (p.rows) std::copy_n(codes[r], width, p.rows.as<uint8_t>() + at);
  }
  if (!p.columns) return most;
  for (int64_t c = 0; c < width; ++c) {
    uint8_t* to = p.columns.as<uint8_t>() + (c0 + c) * rows + r0;
    for (int64_t r = 0; r < height; ++r) to[r] = codes[r][c];
  }
  return most;
}

const float* decoded(const Tensor& t, float* to, Stream s) {
  const std::array<float, 256>& values = t.dtype == DType::kF8E5M2 ? kValuesE5M2 : kValuesE4M3;
  const uint8_t* codes = t.as<uint8_t>();
  parallel_for(s, t.numel(), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) to[i] = values[codes[i]];
  });
  return to;
}

void validate(const GemmFp8& g, int64_t m, int64_t n, int64_t k) {
  constexpr const char* kOp = "gemm_fp8";
  require_codes(kOp, {{"a", g.a}, {"b", g.b}});
  GT_CHECK(g.a.dtype == DType::kF8E4M3 || g.b.dtype == DType::kF8E4M3, kOp, ": a and b are both f8e5m2");
  GT_CHECK(g.a.numel() == m * k && g.b.shape.cols() == k && g.b.numel() == n * k && (!g.bias || g.bias.numel() == n),
           kOp, ": a ", to_string(g.a.shape), ", b ", to_string(g.b.shape), ", bias ", to_string(g.bias.shape), ", out ",
           to_string(g.out.shape), " do not fit");
  GT_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0, kOp, ": m ", m, ", n ", n, ", k ", k, " are no multiples of 16");
  GT_CHECK(!g.bias || !g.accumulate, kOp, ": bias excludes accumulate");
  require_f32(kOp, {{"a_scale", g.a_scale}, {"b_scale", g.b_scale}});
  require_numel(kOp, 1, {{"a_scale", g.a_scale}, {"b_scale", g.b_scale}});
  require_same(kOp, {"out", g.out}, {{"bias", g.bias}});
}

}  // namespace

void quantize_fp8(const QuantizeFp8& p, Stream s) {
  constexpr const char* kOp = "quantize_fp8";
  require_float(kOp, {"x", p.x});
  require_codes(kOp, {{"rows", p.rows}, {"columns", p.columns}});
  require_f32(kOp, {{"amax", p.amax}, {"inverse", p.inverse}, {"seen", p.seen}});
  require_numel(kOp, 1, {{"amax", p.amax}, {"inverse", p.inverse}});
  GT_CHECK((p.rows || p.columns) && (!p.rows || !p.columns || p.rows.dtype == p.columns.dtype), kOp,
           ": codes of one format are wanted");
  GT_CHECK((!p.rows || p.rows.numel() == p.x.numel()) && (!p.columns || p.columns.numel() == p.x.numel()), kOp, ": x ",
           to_string(p.x.shape), ", rows ", to_string(p.rows.shape), ", columns ", to_string(p.columns.shape));
  const float scale = fp8_scale(*p.amax.as<float>(), fp8_format(p.rows ? p.rows.dtype : p.columns.dtype));
  *p.inverse.as<float>() = 1 / scale;
  if (p.x.numel() == 0) return;
  const int64_t down = (p.x.shape.rows() + kTile - 1) / kTile, across = (p.x.shape.cols() + kTile - 1) / kTile;
  float* most = cpu_context(s).scratch<float>(down * across);
  parallel_for(s, down * across, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) most[i] = encode_tile(p, scale, i / across * kTile, i % across * kTile);
  });
  if (p.seen) *p.seen.as<float>() = std::max(*p.seen.as<float>(), *std::max_element(most, most + down * across));
}

void gemm_fp8(const GemmFp8& g, Stream s) {
  const int64_t m = g.out.shape.rows(), n = g.out.shape.cols(), k = g.a.shape.cols();
  if (g.out.numel() == 0) return;
  validate(g, m, n, k);
  float* room = cpu_context(s).scratch<float>(m * k + n * k + m * n);  // GEMM uses other memory
  float *a = room, *b = a + m * k, *sums = b + n * k;
  decoded(g.a, a, s);
  decoded(g.b, b, s);
  const auto tensor = [](float* p, int64_t rows, int64_t cols) {
    return Tensor{reinterpret_cast<std::byte*>(p), {rows, cols}, DType::kF32, {}};
  };
  gemm({.a = tensor(a, m, k), .b = tensor(b, n, k), .out = tensor(sums, m, n), .trans_b = true}, s);
  const float a_scale = *g.a_scale.as<float>(), b_scale = *g.b_scale.as<float>();  // their product may leave f32
  parallel_for(s, m, std::max<int64_t>(1, kGrain / n), [&, &f = simd()](int64_t begin, int64_t end, int) {
    constexpr int64_t kPiece = 1024;
    float bias[kPiece], old[kPiece];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < n; c += kPiece) {
        const int64_t count = std::min(kPiece, n - c), at = r * n + c;
        float* z = sums + at;
        for (int64_t i = 0; i < count; ++i) z[i] = z[i] * a_scale * b_scale;
        if (g.bias) f.add(z, read(f, g.bias, c, count, bias), z, count);
        if (g.accumulate) f.add(read(f, g.out, at, count, old), z, z, count);
        if (g.out.dtype == DType::kF32) std::copy_n(z, count, g.out.as<float>() + at);
        write(f, g.out, at, count, z);
      }
    }
  });
}

void amax_history(const AmaxHistory& p, Stream s) {
  constexpr const char* kOp = "amax_history";
  require_f32(kOp, {{"seen", p.seen}, {"history", p.history}, {"amax", p.amax}});
  const int64_t n = p.amax.numel(), steps = p.history.shape.cols();
  require_numel(kOp, n, {{"seen", p.seen}});
  require_numel(kOp, n * steps, {{"history", p.history}});
  if (n == 0) return;
  GT_CHECK(p.at >= 0 && p.at < steps, kOp, ": column ", p.at, " of ", steps);
  parallel_for(s, n, std::max<int64_t>(1, kGrain / steps), [&, &f = simd()](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = p.history.as<float>() + i * steps;
      const float seen = p.seen.as<float>()[i];
      row[p.at] = std::isfinite(seen) ? seen : 0;
      p.amax.as<float>()[i] = f.max_abs(row, steps);
    }
  });
}

}  // namespace gt::cpu
