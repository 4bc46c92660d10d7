// Ops of one pass over elements. Each thread processes 16 bytes of every operand.
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

// Op::at<V>(i) processes elements i .. i+V-1. Elements left over after whole packs are processed one by one.
template <int V, class Op>
__global__ void __launch_bounds__(kThreads) each_kernel(Op op, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  const int64_t packs = n / V;
  for (int64_t i = first; i < packs; i += step) op.template at<V>(i * V);
  if (packs * V + first < n) op.template at<1>(packs * V + first);
}

template <int V, class Op>
void each(const Context& c, const Op& op, int64_t n, bool aligned) {
  if (aligned) {
    const int64_t blocks = std::min<int64_t>(ceil_div(ceil_div(n, V), kThreads), 1 << 20);
    each_kernel<V, Op><<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(op, n);
  } else {
    const int64_t blocks = std::min<int64_t>(ceil_div(n, kThreads), 1 << 20);
    each_kernel<1, Op><<<static_cast<unsigned>(blocks), kThreads, 0, c.stream>>>(op, n);
  }
}

template <class A, class B, class T>
struct AddOp {
  const A* a;
  const B* b;
  T* out;
  template <int V>
  __device__ void at(int64_t i) const {
    float x[V], y[V];
    load<V>(a + i, x);
    load<V>(b + i, y);
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] += y[j];
    store<V>(out + i, x);
  }
};

template <class T, class U>
struct AxpyOp {
  const T* x;
  U* y;
  float alpha;
  template <int V>
  __device__ void at(int64_t i) const {
    float a[V], b[V];
    load<V>(x + i, a);
    load<V>(y + i, b);
#pragma unroll
    for (int j = 0; j < V; ++j) b[j] += alpha * a[j];
    store<V>(y + i, b);
  }
};

template <class T>
struct ScaleOp {
  const T* x;
  T* out;
  float factor;
  template <int V>
  __device__ void at(int64_t i) const {
    float a[V];
    load<V>(x + i, a);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] *= factor;
    store<V>(out + i, a);
  }
};

template <class T>
struct NormalizeOp {
  const float* x;
  const double* squares;
  T* out;
  float eps;
  template <int V>
  __device__ void at(int64_t i) const {
    const float factor = 1.0f / (static_cast<float>(sqrt(*squares)) + eps);
    float a[V];
    load<V>(x + i, a);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] *= factor;
    store<V>(out + i, a);
  }
};

template <class T>
struct SoftCapOp {
  const T* x;
  T* out;
  float cap;
  template <int V>
  __device__ void at(int64_t i) const {
    float a[V];
    load<V>(x + i, a);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] = soft_cap_of(a[j], cap);
    store<V>(out + i, a);
  }
};

template <class T, class U>
struct CastOp {
  const T* src;
  U* dst;
  template <int V>
  __device__ void at(int64_t i) const {
    float x[V];
    load<V>(src + i, x);
    store<V>(dst + i, x);
  }
};

template <class X, class T>
struct GeluOp {
  const X* x;
  T* out;
  template <int V>
  __device__ void at(int64_t i) const {
    float a[V];
    load<V>(x + i, a);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] = gelu_of(a[j]);
    store<V>(out + i, a);
  }
};

template <class X, class T>
struct GeluGradOp {
  const X* x;
  const T* dout;
  T* dx;
  bool accumulate;
  template <int V>
  __device__ void at(int64_t i) const {
    float a[V], d[V], r[V];
    load<V>(x + i, a);
    load<V>(dout + i, d);
    if (accumulate) load<V>(dx + i, r);
#pragma unroll
    for (int j = 0; j < V; ++j) r[j] = d[j] * gelu_slope(a[j]) + (accumulate ? r[j] : 0.0f);
    store<V>(dx + i, r);
  }
};

// Each thread holds V bias values in registers and iterates over the rows.
template <int V, class T, class B>
__global__ void __launch_bounds__(128) add_bias_kernel(const T* x, const B* bias, T* out, int64_t rows, int64_t cols) {
  const int64_t col = (int64_t{blockIdx.x} * 128 + threadIdx.x) * V;
  if (col >= cols) return;
  float b[V];
  load<V>(bias + col, b);
  for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    float a[V];
    load<V>(x + r * cols + col, a);
#pragma unroll
    for (int j = 0; j < V; ++j) a[j] += b[j];
    store_at_once<V>(out + r * cols + col, a);
  }
}

// Column sums of one chunk of rows. Block (32, 8) covers 32 * V columns; threadIdx.y = y adds rows y, y + 8, ...; the 8
// partial sums are added in order.
template <int V, class T>
__global__ void __launch_bounds__(256)
    column_sums_kernel(const T* x, float* partial, int64_t rows, int64_t cols, int64_t chunk) {
  const int64_t col = (int64_t{blockIdx.x} * 32 + threadIdx.x) * V;
  const int64_t end = min(rows, (int64_t{blockIdx.y} + 1) * chunk);
  float s[V] = {};
  if (col < cols) {
#pragma unroll 4
    for (int64_t r = int64_t{blockIdx.y} * chunk + threadIdx.y; r < end; r += 8) {
      float a[V];
      load<V>(x + r * cols + col, a);
#pragma unroll
      for (int j = 0; j < V; ++j) s[j] += a[j];
    }
  }
  __shared__ float lane[8][32 * V + 1];
#pragma unroll
  for (int j = 0; j < V; ++j) lane[threadIdx.y][threadIdx.x * V + j] = s[j];
  __syncthreads();
  for (int t = threadIdx.y * 32 + threadIdx.x; t < 32 * V; t += 256) {
    const int64_t c = int64_t{blockIdx.x} * 32 * V + t;
    if (c >= cols) continue;
    float sum = lane[0][t];
    for (int y = 1; y < 8; ++y) sum += lane[y][t];
    partial[blockIdx.y * cols + c] = sum;
  }
}

template <class G>
__global__ void __launch_bounds__(256) combine_kernel(const float* partial, int parts, int64_t columns, int64_t written,
                                                      int64_t split, G* out, G* out2, bool accumulate) {
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float s = 0;
  constexpr int kAhead = 16;  // loads in flight, those of the last iteration included; sums are added in chunk order
  for (int first = threadIdx.y; c < written && first < parts; first += 8 * kAhead) {
    float ahead[kAhead];
    const float* from = partial + first * columns + c;
#pragma unroll
    for (int i = 0; i < kAhead; ++i, from += 8 * columns)
      if (first + 8 * i < parts) ahead[i] = *from;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + 8 * i < parts) s += ahead[i];
  }
  __shared__ float lane[8][32];
  lane[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.y != 0 || c >= written) return;
  for (int y = 1; y < 8; ++y) s += lane[y][threadIdx.x];
  G* to = c < split ? out + c : out2 + (c - split);
  *to = from_float<G>(accumulate ? to_float(*to) + s : s);
}

}  // namespace

void combine_partials(Context& c, const float* partial, int parts, int64_t columns, int64_t split, const Tensor& out,
                      const Tensor& out2, bool accumulate, const char* op) {
  const int64_t written = out2 ? columns : split;
  by_gradient(op, "a sum over rows", out.dtype, [&](auto g) {
    using G = decltype(g);
    combine_kernel<G><<<static_cast<unsigned>(ceil_div(written, 32)), dim3(32, 8), 0, c.stream>>>(
        partial, parts, columns, written, split, out.as<G>(), out2.as<G>(), accumulate);
  });
}

namespace {

// Calls f(A{}, B{}) for tensors of equal type or with one of them f32.
template <class F>
void by_two(const char* op, const char* name_a, DType type_a, const char* name_b, DType type_b, F&& f) {
  by_dtype(op, name_a, type_a, [&](auto a) {
    if (type_b == type_a) return f(a, a);
    if (type_b == DType::kF32) return f(a, float{});
    GT_REQUIRE(type_a == DType::kF32, Exit::kUsage, "cuda ", op, ": ", name_a, " is ", name_of(type_a), " and ", name_b,
               ' ', name_of(type_b), "; the same, or one of them f32 is supported");
    by_dtype(op, name_b, type_b, [&](auto b) { f(float{}, b); });
  });
}

}  // namespace

void add(const Add& a, Stream s) {
  if (a.out.numel() == 0) return;
  Context& c = enter(s, "add");
  require_dtype("add", "out", a.out, a.a.dtype == a.b.dtype ? a.a.dtype : DType::kF32);
  by_two("add", "a", a.a.dtype, "b", a.b.dtype, [&](auto x, auto y) {
    using A = decltype(x);
    using B = decltype(y);
    using T = std::conditional_t<std::is_same_v<A, B>, A, float>;
    each<std::max(kPack<A>, kPack<B>)>(c, AddOp<A, B, T>{a.a.as<A>(), a.b.as<B>(), a.out.as<T>()}, a.out.numel(),
                                       aligned16({a.a.data, a.b.data, a.out.data}));
  });
  leave(c, "add");
}

void axpy(const Axpy& a, Stream s) {
  if (a.y.numel() == 0) return;
  Context& c = enter(s, "axpy");
  by_dtype("axpy", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    by_dtype("axpy", "y", a.y.dtype, [&](auto u) {
      using U = decltype(u);
      each<std::max(kPack<T>, kPack<U>)>(c, AxpyOp<T, U>{a.x.as<T>(), a.y.as<U>(), a.alpha}, a.y.numel(),
                                         aligned16({a.x.data, a.y.data}));
    });
  });
  leave(c, "axpy");
}

void scale(const Scale& a, Stream s) {
  GT_CHECK(a.out.numel() == a.x.numel(), "scale: ", to_string(a.x.shape), " to ", to_string(a.out.shape));
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "scale");
  require_dtype("scale", "out", a.out, a.x.dtype);
  by_dtype("scale", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    each<kPack<T>>(c, ScaleOp<T>{a.x.as<T>(), a.out.as<T>(), a.factor}, a.x.numel(), aligned16({a.x.data, a.out.data}));
  });
  leave(c, "scale");
}

void normalize(const Normalize& a, Stream s) {
  GT_CHECK(a.out.numel() == a.x.numel() && a.squares.numel() == 1, "normalize: ", to_string(a.x.shape), " to ",
           to_string(a.out.shape));
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "normalize");
  require_dtype("normalize", "x", a.x, DType::kF32);
  require_dtype("normalize", "squares", a.squares, DType::kF64);
  by_dtype("normalize", "out", a.out.dtype, [&](auto t) {
    using T = decltype(t);
    each<std::max(kPack<float>, kPack<T>)>(
        c, NormalizeOp<T>{a.x.as<float>(), a.squares.as<double>(), a.out.as<T>(), a.eps}, a.x.numel(),
        aligned16({a.x.data, a.out.data}));
  });
  leave(c, "normalize");
}

void soft_cap(const SoftCap& a, Stream s) {
  GT_CHECK(a.out.numel() == a.x.numel() && a.cap > 0, "soft_cap: ", to_string(a.x.shape), " to ",
           to_string(a.out.shape), ", cap ", a.cap);
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "soft_cap");
  require_dtype("soft_cap", "out", a.out, a.x.dtype);
  by_dtype("soft_cap", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    each<kPack<T>>(c, SoftCapOp<T>{a.x.as<T>(), a.out.as<T>(), a.cap}, a.x.numel(), aligned16({a.x.data, a.out.data}));
  });
  leave(c, "soft_cap");
}

void copy(const Copy& a, Stream s) {
  GT_CHECK(a.src.dtype == a.dst.dtype && a.src.numel() == a.dst.numel(), "copy: ", name_of(a.src.dtype), ' ',
           to_string(a.src.shape), " to ", name_of(a.dst.dtype), ' ', to_string(a.dst.shape));
  if (a.src.numel() == 0 || a.src.data == a.dst.data) return;
  Context& c = enter(s, "copy");
  check(cudaMemcpyAsync(a.dst.data, a.src.data, static_cast<size_t>(a.src.bytes()), cudaMemcpyDefault, c.stream),
        "copy");
  leave(c, "copy");
}

void cast(const Cast& a, Stream s) {
  GT_CHECK(a.src.numel() == a.dst.numel(), "cast: ", to_string(a.src.shape), " to ", to_string(a.dst.shape));
  if (a.src.numel() == 0) return;
  Context& c = enter(s, "cast");
  by_dtype("cast", "src", a.src.dtype, [&](auto t) {
    by_dtype("cast", "dst", a.dst.dtype, [&](auto u) {
      using T = decltype(t);
      using U = decltype(u);
      each<std::max(kPack<T>, kPack<U>)>(c, CastOp<T, U>{a.src.as<T>(), a.dst.as<U>()}, a.src.numel(),
                                         aligned16({a.src.data, a.dst.data}));
    });
  });
  leave(c, "cast");
}

void gelu(const Gelu& a, Stream s) {
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "gelu");
  by_two("gelu", "x", a.x.dtype, "out", a.out.dtype, [&](auto x, auto t) {
    using X = decltype(x);
    using T = decltype(t);
    each<std::max(kPack<X>, kPack<T>)>(c, GeluOp<X, T>{a.x.as<X>(), a.out.as<T>()}, a.x.numel(),
                                       aligned16({a.x.data, a.out.data}));
  });
  leave(c, "gelu");
}

void gelu_grad(const GeluGrad& a, Stream s) {
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "gelu_grad");
  require_dtype("gelu_grad", "dx", a.dx, a.dout.dtype);
  by_two("gelu_grad", "x", a.x.dtype, "dout", a.dout.dtype, [&](auto x, auto t) {
    using X = decltype(x);
    using T = decltype(t);
    each<std::max(kPack<X>, kPack<T>)>(c, GeluGradOp<X, T>{a.x.as<X>(), a.dout.as<T>(), a.dx.as<T>(), a.accumulate},
                                       a.x.numel(), aligned16({a.x.data, a.dout.data, a.dx.data}));
  });
  leave(c, "gelu_grad");
}

void add_bias(const AddBias& a, Stream s) {
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "add_bias");
  require_dtype("add_bias", "out", a.out, a.x.dtype);
  const int64_t cols = a.bias.numel(), rows = a.x.numel() / cols;
  GT_CHECK(rows * cols == a.x.numel(), "add_bias: x ", to_string(a.x.shape), " bias ", to_string(a.bias.shape));
  by_two("add_bias", "x", a.x.dtype, "bias", a.bias.dtype, [&](auto t, auto b) {
    using T = decltype(t);
    using B = decltype(b);
    constexpr int kV = kPack<T>;
    const bool wide = cols % kV == 0 && aligned16({a.x.data, a.bias.data, a.out.data});
    const dim3 grid(static_cast<unsigned>(ceil_div(cols, 128 * (wide ? kV : 1))),
                    static_cast<unsigned>(std::min<int64_t>(rows, 4096)));
    auto* kernel = wide ? add_bias_kernel<kV, T, B> : add_bias_kernel<1, T, B>;
    kernel<<<grid, 128, 0, c.stream>>>(a.x.as<T>(), a.bias.as<B>(), a.out.as<T>(), rows, cols);
  });
  leave(c, "add_bias");
}

void column_sums(const ColumnSums& a, Stream s) {
  const int64_t cols = a.out.numel();
  if (cols == 0) return;
  Context& c = enter(s, "column_sums");
  const int64_t rows = a.x.numel() / cols;
  GT_CHECK(rows * cols == a.x.numel(), "column_sums: x ", to_string(a.x.shape), " out ", to_string(a.out.shape));
  // The chunk size depends on the shape alone, so results are bitwise identical on all devices of a kind.
  const int64_t chunk = std::max<int64_t>(64, ceil_div(rows, 256)), parts = ceil_div(rows, chunk);
  auto* partial = reinterpret_cast<float*>(c.scratch(std::max<int64_t>(parts, 1) * cols * 4));
  by_dtype("column_sums", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int kV = kPack<T>;
    const bool wide = cols % kV == 0 && aligned16({a.x.data});
    const dim3 grid(static_cast<unsigned>(ceil_div(cols, 32 * (wide ? kV : 1))), static_cast<unsigned>(parts));
    auto* kernel = wide ? column_sums_kernel<kV, T> : column_sums_kernel<1, T>;
    if (parts > 0) kernel<<<grid, dim3(32, 8), 0, c.stream>>>(a.x.as<T>(), partial, rows, cols, chunk);
  });
  combine_partials(c, partial, static_cast<int>(parts), cols, cols, a.out, {}, a.accumulate, "column_sums");
  leave(c, "column_sums");
}

}  // namespace gt::cuda
