// Fake quantization on the CPU: rows split into chunks, 16-bit data staged on the stack.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kGrain = 16384, kChunk = 1024;  // elements: minimum per thread, maximum on the stack

// Calls body(row, at, n) for every chunk of at most kChunk elements of every row.
template <class Body>
void each_part(Stream s, int64_t count, int64_t cols, Body body) {
  parallel_for(s, count, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin, n = 0; i < end; i += n) {
      n = std::min({kChunk, end - i, cols - i % cols});
      body(i / cols, i, n);
    }
  });
}

// Elements per row; limits, or scales, has one value per row.
int64_t cols_of(const char* op, const Tensor& x, const Tensor& limits, const char* name = "limits") {
  require_f32(op, {{name, limits}});
  const int64_t rows = limits.numel();
  GT_CHECK(rows > 0 && x.numel() % rows == 0, op, ": ", to_string(x.shape), " in ", rows, " rows");
  return std::max<int64_t>(1, x.numel() / rows);
}

}  // namespace

void fake_quant(const FakeQuant& p, Stream s) {
  require_same("fake_quant", {"x", p.x}, {{"out", p.out}});
  require_numel("fake_quant", p.x.numel(), {{"out", p.out}});
  if (p.x.numel() == 0) return;
  const float* limits = p.limits.as<float>();
  each_part(s, p.x.numel(), cols_of("fake_quant", p.x, p.limits), [&, &f = simd()](int64_t row, int64_t i, int64_t n) {
    float in[kChunk], out[kChunk];
    if (limits[row] == 0) {
      const int64_t bytes = size_of(p.x.dtype);
      std::memmove(p.out.data + i * bytes, p.x.data + i * bytes, static_cast<size_t>(n * bytes));
      return;
    }
    f.fake_quant(read(f, p.x, i, n, in), limits[row], target(p.out, i, out), n);
    write(f, p.out, i, n, out);
  });
}

void fake_quant_grad(const FakeQuantGrad& p, Stream s) {
  require_same("fake_quant_grad", {"x", p.x}, {{"dout", p.dout}, {"dx", p.dx}});
  require_numel("fake_quant_grad", p.x.numel(), {{"dout", p.dout}, {"dx", p.dx}});
  if (p.x.numel() == 0) return;
  const float* limits = p.limits.as<float>();
  const int64_t cols = cols_of("fake_quant_grad", p.x, p.limits);
  each_part(s, p.x.numel(), cols, [&, &f = simd()](int64_t row, int64_t i, int64_t n) {
    float x[kChunk], dout[kChunk], old[kChunk], out[kChunk];
    const float limit = limits[row] == 0 ? __builtin_inff() : limits[row];
    f.fake_quant_grad(read(f, p.x, i, n, x), limit, read(f, p.dout, i, n, dout), out, n);
    if (p.accumulate) f.add(read(f, p.dx, i, n, old), out, out, n);
    if (p.dx.dtype == DType::kF32) std::copy(out, out + n, p.dx.as<float>() + i);
    write(f, p.dx, i, n, out);
  });
}

void quantize_int8(const QuantizeInt8& p, Stream s) {
  require_float("quantize_int8", {"x", p.x});
  GT_CHECK(p.out.dtype == DType::kI8, "quantize_int8: out is ", name_of(p.out.dtype));
  require_numel("quantize_int8", p.x.numel(), {{"out", p.out}});
  if (p.x.numel() == 0) return;
  const float* scales = p.scales.as<float>();
  const int64_t cols = cols_of("quantize_int8", p.x, p.scales, "scales");
  each_part(s, p.x.numel(), cols, [&, &f = simd()](int64_t row, int64_t i, int64_t n) {
    float in[kChunk];
    int8_t* out = p.out.as<int8_t>() + i;
    if (scales[row] == 0) return static_cast<void>(std::fill_n(out, n, int8_t{0}));
    f.quantize_int8(read(f, p.x, i, n, in), scales[row], out, n);
  });
}

void dequantize_int8(const DequantizeInt8& p, Stream s) {
  require_float("dequantize_int8", {"out", p.out});
  GT_CHECK(p.x.dtype == DType::kI8, "dequantize_int8: x is ", name_of(p.x.dtype));
  require_numel("dequantize_int8", p.x.numel(), {{"out", p.out}});
  if (p.x.numel() == 0) return;
  const float* scales = p.scales.as<float>();
  const int64_t cols = cols_of("dequantize_int8", p.x, p.scales, "scales");
  each_part(s, p.x.numel(), cols, [&, &f = simd()](int64_t row, int64_t i, int64_t n) {
    float out[kChunk];
    f.dequantize_int8(p.x.as<int8_t>() + i, scales[row], target(p.out, i, out), n);
    write(f, p.out, i, n, out);
  });
}

// A maximum is independent of order, so rows are split among threads anywhere.
void max_abs(const MaxAbs& p, Stream s) {
  require_float("max_abs", {"x", p.x});
  require_f32("max_abs", {{"out", p.out}});
  const int64_t rows = p.out.numel();
  GT_CHECK(rows == 0 || p.x.numel() % rows == 0, "max_abs: ", to_string(p.x.shape), " in ", rows, " rows");
  if (rows == 0) return;
  const int64_t cols = p.x.numel() / rows, parts = std::max<int64_t>(1, cols / (4 * kGrain));
  const int64_t part = (cols + parts - 1) / parts;
  float* partial = cpu_context(s).scratch<float>(rows * parts);
  parallel_for(s, rows * parts, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, part)),
               [&, &f = simd()](int64_t begin, int64_t end, int) {
                 float scratch[kChunk];
                 for (int64_t k = begin; k < end; ++k) {
                   const int64_t from = k / parts * cols + k % parts * part,
                                 to = std::min(from + part, (k / parts + 1) * cols);
                   float most = 0;
                   for (int64_t i = from; i < to; i += kChunk) {
                     const int64_t n = std::min(kChunk, to - i);
                     most = std::max(most, f.max_abs(read(f, p.x, i, n, scratch), n));
                   }
                   partial[k] = most;
                 }
               });
  float* out = p.out.as<float>();
  for (int64_t r = 0; r < rows; ++r) {
    const float most = *std::max_element(partial + r * parts, partial + (r + 1) * parts);
    out[r] = p.accumulate ? std::max(out[r], most) : most;
  }
}

}  // namespace gt::cpu
