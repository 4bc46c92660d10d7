// Elementwise ops of the CPU backend, column sums, and dtype conversions. 16-bit tensors are staged on the stack, one
// chunk at a time.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // minimum elements per thread
constexpr int64_t kChunk = 1024;   // elements staged on the stack

bool all_f32(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return t->dtype == DType::kF32; });
}

// Calls body(at, n) over [0, count), split among threads; at most kChunk elements at a time when staged.
template <class Body>
void each(Stream s, int64_t count, bool staged, Body body) {
  parallel_for(s, count, kGrain, [&](int64_t begin, int64_t end, int) {
    const int64_t step = staged ? kChunk : end - begin;
    for (int64_t i = begin; i < end; i += step) body(i, std::min(step, end - i));
  });
}

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, cols)); }

}  // namespace

void add(const Add& p, Stream s) {
  require_same_or_narrower("add", {"out", p.out}, {{"a", p.a}, {"b", p.b}});
  GT_REQUIRE(all_f32({&p.a, &p.b}) || p.a.dtype == p.b.dtype || all_f32({&p.a}) || all_f32({&p.b}), Exit::kUsage,
             "add on the CPU: a is ", name_of(p.a.dtype), ", b ", name_of(p.b.dtype), "; the same or f32 is supported");
  require_numel("add", p.out.numel(), {{"a", p.a}, {"b", p.b}});
  const Simd& f = simd();
  each(s, p.out.numel(), !all_f32({&p.a, &p.b, &p.out}), [&](int64_t i, int64_t n) {
    float a[kChunk], b[kChunk], out[kChunk];
    f.add(read(f, p.a, i, n, a), read(f, p.b, i, n, b), target(p.out, i, out), n);
    write(f, p.out, i, n, out);
  });
}

void axpy(const Axpy& p, Stream s) {
  require_float("axpy", {"x", p.x});
  require_float("axpy", {"y", p.y});
  require_numel("axpy", p.y.numel(), {{"x", p.x}});
  const Simd& f = simd();
  each(s, p.y.numel(), !all_f32({&p.x, &p.y}), [&](int64_t i, int64_t n) {
    float x[kChunk], scratch[kChunk];
    float* y = const_cast<float*>(read(f, p.y, i, n, scratch));
    f.axpy(p.alpha, read(f, p.x, i, n, x), y, n);
    write(f, p.y, i, n, y);
  });
}

void scale(const Scale& p, Stream s) {
  require_same("scale", {"x", p.x}, {{"out", p.out}});
  require_numel("scale", p.out.numel(), {{"x", p.x}});
  const Simd& f = simd();
  each(s, p.out.numel(), !all_f32({&p.x}), [&](int64_t i, int64_t n) {
    float x[kChunk], out[kChunk];
    f.scale(read(f, p.x, i, n, x), p.factor, target(p.out, i, out), n);
    write(f, p.out, i, n, out);
  });
}

void normalize(const Normalize& p, Stream s) {
  require_f32("normalize", {{"x", p.x}});
  require_dtype("normalize", DType::kF64, {{"squares", p.squares}});
  require_float("normalize", {"out", p.out});
  require_numel("normalize", p.out.numel(), {{"x", p.x}});
  require_numel("normalize", 1, {{"squares", p.squares}});
  const auto factor = static_cast<float>(1 / (std::sqrt(*p.squares.as<double>()) + double{p.eps}));
  const Simd& f = simd();
  each(s, p.out.numel(), !all_f32({&p.out}), [&](int64_t i, int64_t n) {
    float out[kChunk];
    f.scale(p.x.as<float>() + i, factor, target(p.out, i, out), n);
    write(f, p.out, i, n, out);
  });
}

void soft_cap(const SoftCap& p, Stream s) {
  require_same("soft_cap", {"x", p.x}, {{"out", p.out}});
  require_numel("soft_cap", p.out.numel(), {{"x", p.x}});
  GT_CHECK(p.cap > 0, "soft_cap: cap ", p.cap);
  const Simd& f = simd();
  each(s, p.out.numel(), !all_f32({&p.x}), [&](int64_t i, int64_t n) {
    float x[kChunk], out[kChunk];
    f.soft_cap(read(f, p.x, i, n, x), p.cap, target(p.out, i, out), n);
    write(f, p.out, i, n, out);
  });
}

void copy(const Copy& p, Stream s) {
  GT_CHECK(p.src.dtype == p.dst.dtype && p.src.numel() == p.dst.numel(), "copy: src ", to_string(p.src.shape), ' ',
           name_of(p.src.dtype), ", dst ", to_string(p.dst.shape), ' ', name_of(p.dst.dtype));
  parallel_for(s, p.src.bytes(), 4 * kGrain, [&](int64_t begin, int64_t end, int) {
    std::memmove(p.dst.data + begin, p.src.data + begin, static_cast<size_t>(end - begin));
  });
}

void add_bias(const AddBias& p, Stream s) {
  require_same("add_bias", {"x", p.x}, {{"out", p.out}});
  require_float("add_bias", {"bias", p.bias});
  GT_REQUIRE(all_f32({&p.bias}) || all_f32({&p.x}) || p.bias.dtype == p.x.dtype, Exit::kUsage,
             "add_bias on the CPU: bias is ", name_of(p.bias.dtype), " beside x of ", name_of(p.x.dtype),
             "; f32 or the same is supported");
  const int64_t cols = p.bias.numel(), rows = cols ? p.x.numel() / cols : 0;
  require_numel("add_bias", rows * cols, {{"x", p.x}, {"out", p.out}});
  const Simd& f = simd();
  const int64_t step = all_f32({&p.x, &p.bias}) ? cols : kChunk;
  parallel_for(s, rows, row_grain(cols), [&](int64_t begin, int64_t end, int) {
    float x[kChunk], bias[kChunk], out[kChunk];
    for (int64_t c = 0; c < cols; c += step) {
      const int64_t n = std::min(step, cols - c);
      const float* b = read(f, p.bias, c, n, bias);
      for (int64_t at = begin * cols + c; at < end * cols; at += cols) {
        f.add(read(f, p.x, at, n, x), b, target(p.out, at, out), n);
        write(f, p.out, at, n, out);
      }
    }
  });
}

void column_sums(const ColumnSums& p, Stream s) {
  require_float("column_sums", {"x", p.x});
  require_gradient("column_sums", {{"out", p.out}});
  const int64_t cols = p.out.numel(), rows = cols ? p.x.numel() / cols : 0;
  require_numel("column_sums", rows * cols, {{"x", p.x}});
  parallel_for(s, cols, 128, [&, &f = simd()](int64_t begin, int64_t end, int) {  // each thread owns columns
    sum_row_blocks(f, p.x, begin, cols, rows, p.out, begin, end - begin, p.accumulate);
  });
}

void gelu(const Gelu& p, Stream s) {
  require_float("gelu", {"x", p.x});
  require_float("gelu", {"out", p.out});
  GT_REQUIRE(p.x.dtype == p.out.dtype || all_f32({&p.x}) || all_f32({&p.out}), Exit::kUsage, "gelu on the CPU: x is ",
             name_of(p.x.dtype), ", out ", name_of(p.out.dtype), "; the same, or one of them f32 is supported");
  require_numel("gelu", p.out.numel(), {{"x", p.x}});
  const Simd& v = simd();
  each(s, p.out.numel(), !all_f32({&p.x, &p.out}), [&](int64_t i, int64_t n) {
    float x[kChunk], out[kChunk];
    gelu(v, read(v, p.x, i, n, x), target(p.out, i, out), n);  // bitwise identical to the GEMM epilogue
    write(v, p.out, i, n, out);
  });
}

void gelu_grad(const GeluGrad& p, Stream s) {
  require_same("gelu_grad", {"dout", p.dout}, {{"dx", p.dx}});
  require_float("gelu_grad", {"x", p.x});
  GT_REQUIRE(p.x.dtype == p.dx.dtype || all_f32({&p.x}) || all_f32({&p.dx}), Exit::kUsage,
             "gelu_grad on the CPU: x is ", name_of(p.x.dtype), ", dx ", name_of(p.dx.dtype),
             "; the same, or one of them f32 is supported");
  require_numel("gelu_grad", p.dx.numel(), {{"x", p.x}, {"dout", p.dout}});
  const Simd& v = simd();
  each(s, p.dx.numel(), true, [&](int64_t i, int64_t n) {
    float staged[kChunk], scratch[kChunk];
    const float* dout = read(v, p.dout, i, n, staged);
    if (dout != staged) std::memcpy(staged, dout, static_cast<size_t>(n) * 4);
    gelu_grad(v, read(v, p.x, i, n, scratch), staged, n);
    if (p.accumulate) {
      v.add(read(v, p.dx, i, n, scratch), staged, target(p.dx, i, staged), n);
    } else if (p.dx.dtype == DType::kF32) {
      std::memcpy(p.dx.as<float>() + i, staged, static_cast<size_t>(n) * 4);
    }
    write(v, p.dx, i, n, staged);
  });
}

void cast(const Cast& p, Stream s) {
  const DType from = p.src.dtype, to = p.dst.dtype;
  require_numel("cast", p.dst.numel(), {{"src", p.src}});
  if (from == to) return copy({p.src, p.dst}, s);
  GT_REQUIRE((from == DType::kF32 || is_16bit(from)) && (to == DType::kF32 || is_16bit(to)), Exit::kUsage,
             "cast on the CPU: src is ", name_of(from), ", dst ", name_of(to),
             "; it converts between f32, bf16 and f16");
  const Simd& f = simd();
  each(s, p.dst.numel(), true, [&](int64_t i, int64_t n) {
    float scratch[kChunk];
    if (to == DType::kF32) {
      read(f, p.src, i, n, p.dst.as<float>() + i);
    } else {
      write(f, p.dst, i, n, read(f, p.src, i, n, scratch));
    }
  });
}

}  // namespace gt::cpu
