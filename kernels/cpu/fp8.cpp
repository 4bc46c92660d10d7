// FP8 on the CPU, which has no FP8 arithmetic: values are decoded by a table of 256 and multiplied as f32, so results
// match tensor cores up to the order of addition. For tests and small runs.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/fp8_tile.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kGrain = 16384;

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

// A row of h (x, or what p.of derives from it), rounded to the dtype of x.
const float* values(const Simd& f, const QuantizeFp8& p, int64_t at, int64_t n, float* scratch) {
  if (p.of == Fp8Source::kPlain) return read(f, p.x, at, n, scratch);
  float other[kCodeTile];
  if (p.of == Fp8Source::kGelu) {
    gelu(f, read(f, p.x, at, n, other), scratch, n);
  } else {
    const float* x = read(f, p.x, at, n, scratch);
    if (x != scratch) std::copy_n(x, n, scratch);
    gelu_grad(f, read(f, p.pre, at, n, other), scratch, n);
  }
  if (p.x.dtype == DType::kF32) return scratch;
  uint16_t rounded[kCodeTile];
  narrow(f, p.x.dtype, scratch, rounded, n);
  widen(f, p.x.dtype, rounded, scratch, n);
  return scratch;
}

// Quantizes one tile of h and computes its column sums by blocks of rows (`sums` covers all of h). Returns max |h|.
float quantize_tile(const QuantizeFp8& p, const Fp8Dest& to, int64_t r0, int64_t c0, float* sums) {
  const int64_t height = std::min(kCodeTile, to.height - r0), width = std::min(kCodeTile, to.width - c0);
  const Simd& f = simd();
  float h[kCodeTile * kCodeTile], most = 0;
  for (int64_t r = 0; r < height; ++r) {
    float* row = h + r * kCodeTile;
    const float* x = values(f, p, (r0 + r) * to.width + c0, width, row);
    if (x != row) std::copy_n(x, width, row);
    if (p.fp8.step_amax) most = std::max(most, f.max_abs(row, width));
  }
  if (to) to.put(h, kCodeTile, r0, c0, height, width);
  static_assert(kCodeTile % kSumBlock == 0);
  for (int64_t r = 0; sums != nullptr && r < height; r += kSumBlock)
    f.column_sums(h + r * kCodeTile, kCodeTile, std::min(kSumBlock, height - r),
                  sums + (r0 + r) / kSumBlock * to.width + c0, width, false);
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
           kOp, ": a ", to_string(g.a.shape), ", b ", to_string(g.b.shape), ", bias ", to_string(g.bias.shape),
           ", out ", to_string(g.out.shape), " do not fit");
  GT_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0, kOp, ": m ", m, ", n ", n, ", k ", k,
           " are not all multiples of 16");
  GT_CHECK(!g.bias || !g.accumulate, kOp, ": bias excludes accumulate");
  require_f32(kOp, {{"a_scale", g.a_scale}, {"b_scale", g.b_scale}});
  require_numel(kOp, 1, {{"a_scale", g.a_scale}, {"b_scale", g.b_scale}});
  require_same(kOp, {"out", g.out}, {{"bias", g.bias}});
}

}  // namespace

Fp8Dest prepare_quantize(const char* op, const QuantizeFp8& p) {
  require_same(op, {"x", p.x}, {{"pre", p.pre}});
  require_codes(op, {{"rowwise", p.fp8.rowwise}, {"columnwise", p.fp8.columnwise}});
  require_f32(op, {{"amax", p.fp8.amax}, {"scale_inv", p.fp8.scale_inv}, {"step_amax", p.fp8.step_amax}});
  require_gradient(op, {{"sums", p.sums}});
  Fp8Dest to{p.fp8.rowwise, p.fp8.columnwise, 1, p.x.shape.rows(), p.x.shape.cols()};
  GT_CHECK(p.fp8 || p.sums, op, ": none of FP8 data, amax and column sums is requested");
  GT_CHECK(!to.rowwise || !to.columnwise || to.rowwise.dtype == to.columnwise.dtype, op,
           ": rowwise and columnwise data must have one format");
  GT_CHECK(
      (!to.rowwise || to.rowwise.numel() == p.x.numel()) && (!to.columnwise || to.columnwise.numel() == p.x.numel()),
      op, ": x ", to_string(p.x.shape), ", rows ", to_string(to.rowwise.shape), ", columns ",
      to_string(to.columnwise.shape));
  GT_CHECK(p.of != Fp8Source::kGeluGrad || p.pre.numel() == p.x.numel(), op, ": x ", to_string(p.x.shape), ", pre ",
           to_string(p.pre.shape));
  if (p.sums) require_numel(op, to.width, {{"sums", p.sums}});
  if (!to) return to;
  require_numel(op, 1, {{"amax", p.fp8.amax}, {"scale_inv", p.fp8.scale_inv}});
  to.scale = fp8_scale(*p.fp8.amax.as<float>(), to.format());
  *p.fp8.scale_inv.as<float>() = 1 / to.scale;
  return to;
}

float quantize_rows(const QuantizeFp8& p, const Fp8Dest& to, int64_t r0) {
  float most = 0;
  for (int64_t c = 0; c < to.width; c += kCodeTile) most = std::max(most, quantize_tile(p, to, r0, c, nullptr));
  return most;
}

void quantize_fp8(const QuantizeFp8& p, Stream s) {
  const Fp8Dest to = prepare_quantize("quantize_fp8", p);
  float* step_amax = p.fp8.step_amax.as<float>();
  if (step_amax != nullptr && p.fp8.overwrite_amax) *step_amax = 0;
  if (p.x.numel() == 0) return;
  const int64_t down = (to.height + kCodeTile - 1) / kCodeTile, across = (to.width + kCodeTile - 1) / kCodeTile;
  const int64_t blocks = (to.height + kSumBlock - 1) / kSumBlock;
  float* most = cpu_context(s).scratch<float>(down * across + (p.sums ? blocks * to.width : 0));
  float* sums = p.sums ? most + down * across : nullptr;
  parallel_for(s, down * across, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      most[i] = quantize_tile(p, to, i / across * kCodeTile, i % across * kCodeTile, sums);
  });
  if (step_amax != nullptr) *step_amax = std::max(*step_amax, *std::max_element(most, most + down * across));
  if (sums == nullptr) return;
  // Sums of this tensor first, then added to existing values: the same order as sums made by one op and added by
  // another.
  const Simd& f = simd();
  constexpr int64_t kChunk = 1024;
  for (int64_t c = 0; c < to.width; c += kChunk) {
    float all[kChunk];
    const int64_t n = std::min(kChunk, to.width - c);
    f.column_sums(sums + c, to.width, blocks, all, n, false);
    edit(f, p.sums, c, n, p.accumulate, [&](float* out, int64_t at, int64_t count) {
      if (p.accumulate)
        f.add(out, all + at, out, count);
      else
        std::copy_n(all + at, count, out);
    });
  }
}

void gemm_fp8(const GemmFp8& g, Stream s) {
  const int64_t m = g.out.shape.rows(), n = g.out.shape.cols(), k = g.a.shape.cols();
  if (g.out.numel() == 0) return;
  validate(g, m, n, k);
  float* scratch = cpu_context(s).scratch<float>(m * k + n * k + m * n);  // GEMM uses other memory
  float *a = scratch, *b = a + m * k, *sums = b + n * k;
  decoded(g.a, a, s);
  decoded(g.b, b, s);
  const auto tensor = [](float* p, int64_t rows, int64_t cols) {
    return Tensor{reinterpret_cast<std::byte*>(p), {rows, cols}, DType::kF32, {}};
  };
  gemm({.a = tensor(a, m, k), .b = tensor(b, n, k), .out = tensor(sums, m, n), .trans_b = true}, s);
  const float a_scale = *g.a_scale.as<float>(),
              b_scale = *g.b_scale.as<float>();  // their product may leave the f32 range
  parallel_for(s, m, std::max<int64_t>(1, kGrain / n), [&, &f = simd()](int64_t begin, int64_t end, int) {
    constexpr int64_t kChunk = 1024;
    float bias[kChunk], old[kChunk];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < n; c += kChunk) {
        const int64_t count = std::min(kChunk, n - c), at = r * n + c;
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
  require_f32(kOp, {{"step_amax", p.step_amax}, {"history", p.history}, {"amax", p.amax}});
  const int64_t n = p.amax.numel(), steps = p.history.shape.cols();
  require_numel(kOp, n, {{"step_amax", p.step_amax}});
  require_numel(kOp, n * steps, {{"history", p.history}});
  if (n == 0) return;
  GT_CHECK(p.at >= 0 && p.at < steps, kOp, ": column ", p.at, " of ", steps);
  parallel_for(s, n, std::max<int64_t>(1, kGrain / steps), [&, &f = simd()](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = p.history.as<float>() + i * steps;
      const float step_amax = p.step_amax.as<float>()[i];
      row[p.at] = std::isfinite(step_amax) ? step_amax : 0;
      p.amax.as<float>()[i] = f.max_abs(row, steps);
    }
  });
}

}  // namespace gt::cpu
