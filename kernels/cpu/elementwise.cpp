// Elementwise ops of the CPU backend, sums over rows, and conversions between number formats.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements a thread at least
constexpr int64_t kChunk = 1024;   // elements that are staged on the stack

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)); }

}  // namespace

void add(const Add& p, Stream s) {
  require_f32("add", {{"a", p.a}, {"b", p.b}, {"out", p.out}});
  require_numel("add", p.out.numel(), {{"a", p.a}, {"b", p.b}});
  const float *a = p.a.as<float>(), *b = p.b.as<float>();
  float* out = p.out.as<float>();
  parallel_for(s, p.out.numel(), kGrain, [=, &f = simd()](int64_t begin, int64_t end, int) {
    f.add(a + begin, b + begin, out + begin, end - begin);
  });
}

void axpy(const Axpy& p, Stream s) {
  require_f32("axpy", {{"x", p.x}, {"y", p.y}});
  require_numel("axpy", p.y.numel(), {{"x", p.x}});
  const float *x = p.x.as<float>(), alpha = p.alpha;
  float* y = p.y.as<float>();
  parallel_for(s, p.y.numel(), kGrain,
               [=, &f = simd()](int64_t begin, int64_t end, int) { f.axpy(alpha, x + begin, y + begin, end - begin); });
}

void copy(const Copy& p, Stream s) {
  GT_CHECK(p.src.dtype == p.dst.dtype && p.src.numel() == p.dst.numel(), "copy: src ", to_string(p.src.shape), ' ',
           name_of(p.src.dtype), ", dst ", to_string(p.dst.shape), ' ', name_of(p.dst.dtype));
  parallel_for(s, p.src.bytes(), 4 * kGrain, [&](int64_t begin, int64_t end, int) {
    std::memmove(p.dst.data + begin, p.src.data + begin, static_cast<size_t>(end - begin));
  });
}

void add_bias(const AddBias& p, Stream s) {
  require_f32("add_bias", {{"x", p.x}, {"bias", p.bias}, {"out", p.out}});
  const int64_t cols = p.bias.numel(), rows = cols ? p.x.numel() / cols : 0;
  require_numel("add_bias", rows * cols, {{"x", p.x}, {"out", p.out}});
  const float *x = p.x.as<float>(), *bias = p.bias.as<float>();
  float* out = p.out.as<float>();
  parallel_for(s, rows, row_grain(cols), [=, &f = simd()](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) f.add(x + r * cols, bias, out + r * cols, cols);
  });
}

void sum_rows(const SumRows& p, Stream s) {
  require_f32("sum_rows", {{"x", p.x}, {"out", p.out}});
  const int64_t cols = p.out.numel(), rows = cols ? p.x.numel() / cols : 0;
  require_numel("sum_rows", rows * cols, {{"x", p.x}});
  const float* x = p.x.as<float>();
  float* out = p.out.as<float>();
  parallel_for(s, cols, 128, [=, &f = simd()](int64_t begin, int64_t end, int) {  // each thread owns columns
    f.sum_rows(x + begin, cols, rows, out + begin, end - begin, p.accumulate);
  });
}

void gelu(const Gelu& p, Stream s) {
  require_f32("gelu", {{"x", p.x}, {"out", p.out}});
  require_numel("gelu", p.out.numel(), {{"x", p.x}});
  const float* x = p.x.as<float>();
  float* out = p.out.as<float>();
  parallel_for(s, p.out.numel(), kGrain, [=, f = epilogue_rows()](int64_t begin, int64_t end, int) {
    f.gelu(x + begin, out + begin, end - begin);  // what GEMM fuses: the same bits
  });
}

void gelu_grad(const GeluGrad& p, Stream s) {
  require_f32("gelu_grad", {{"x", p.x}, {"dout", p.dout}, {"dx", p.dx}});
  require_numel("gelu_grad", p.dx.numel(), {{"x", p.x}, {"dout", p.dout}});
  const float *x = p.x.as<float>(), *dout = p.dout.as<float>();
  float* dx = p.dx.as<float>();
  parallel_for(s, p.dx.numel(), kGrain, [&, f = epilogue_rows(), &v = simd()](int64_t begin, int64_t end, int) {
    float staged[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      std::memcpy(staged, dout + i, static_cast<size_t>(n) * 4);
      f.gelu_grad(x + i, staged, n);
      if (p.accumulate) {
        v.add(dx + i, staged, dx + i, n);
      } else {
        std::memcpy(dx + i, staged, static_cast<size_t>(n) * 4);
      }
    }
  });
}

namespace {

bool is_half(DType t) { return t == DType::kBF16 || t == DType::kF16; }

void from_half(const Simd& f, DType t, const uint16_t* from, float* to, int64_t n) {
  (t == DType::kBF16 ? f.bf16_to_f32 : f.f16_to_f32)(from, to, n);
}
void to_half(const Simd& f, DType t, const float* from, uint16_t* to, int64_t n) {
  (t == DType::kBF16 ? f.f32_to_bf16 : f.f32_to_f16)(from, to, n);
}

}  // namespace

void cast(const Cast& p, Stream s) {
  const DType from = p.src.dtype, to = p.dst.dtype;
  require_numel("cast", p.dst.numel(), {{"src", p.src}});
  if (from == to) return copy({p.src, p.dst}, s);
  GT_REQUIRE((from == DType::kF32 || is_half(from)) && (to == DType::kF32 || is_half(to)), Exit::kUsage,
             "cast on the CPU: src is ", name_of(from), ", dst ", name_of(to),
             "; it converts between f32, bf16 and f16");
  parallel_for(s, p.dst.numel(), kGrain, [&, &f = simd()](int64_t begin, int64_t end, int) {
    const int64_t n = end - begin;
    if (from == DType::kF32) return to_half(f, to, p.src.as<float>() + begin, p.dst.as<uint16_t>() + begin, n);
    const uint16_t* src = p.src.as<uint16_t>();
    if (to == DType::kF32) return from_half(f, from, src + begin, p.dst.as<float>() + begin, n);
    float staged[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      from_half(f, from, src + i, staged, std::min(kChunk, end - i));
      to_half(f, to, staged, p.dst.as<uint16_t>() + i, std::min(kChunk, end - i));
    }
  });
}

}  // namespace gt::cpu
