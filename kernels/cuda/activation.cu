// Activations of feed-forward layers, gated or not, and their gradients. Each thread processes one 16-byte pack of
// every operand.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256;

// Offset of output element i [n, cols] in x. Ungated: i. Gated, x [n, 2 cols]: the gate; its up projection is `cols`
// further.
__device__ inline int64_t gate_at(int64_t i, int64_t cols, bool gated) { return gated ? i + i / cols * cols : i; }

// Requires: V divides cols.
template <Activation A, int V, class T>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(const T* x, T* out, int64_t packs, int64_t cols, bool gated) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    const int64_t in = gate_at(i * V, cols, gated);
    float gate[V], up[V];
    load<V>(x + in, gate);
    if (gated) load<V>(x + in + cols, up);
#pragma unroll
    for (int j = 0; j < V; ++j) gate[j] = value_of<A>(gate[j]) * (gated ? up[j] : 1.0f);
    store<V>(out + i * V, gate);
  }
}

// dx may alias x: each thread writes only elements that it alone has read.
template <Activation A, int V, class T>
__global__ void __launch_bounds__(kThreads)
    activate_grad_kernel(const T* x, const T* dout, T* dx, int64_t packs, int64_t cols, bool gated) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    const int64_t in = gate_at(i * V, cols, gated);
    float gate[V], up[V], d[V], dup[V];
    load<V>(x + in, gate);
    if (gated) load<V>(x + in + cols, up);
    load<V>(dout + i * V, d);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      dup[j] = d[j] * value_of<A>(gate[j]);
      gate[j] = d[j] * (gated ? up[j] : 1.0f) * slope_of<A>(gate[j]);
    }
    store<V>(dx + in, gate);
    if (gated) store<V>(dx + in + cols, dup);
  }
}

void validate(const char* op, const Tensor& x, const Tensor& out, bool gated) {
  GT_CHECK(out.shape.cols() * (gated ? 2 : 1) == x.shape.cols() && out.shape.rows() == x.shape.rows(), op, ": x ",
           to_string(x.shape), gated ? ", gated" : "", ", out ", to_string(out.shape));
}

// Calls f(std::integral_constant<int, V>, blocks, packs) with the widest pack that size and alignment allow.
template <class T, class F>
void by_pack(const Tensor& out, bool aligned, F&& f) {
  const auto launch = [&](auto v) {
    const int64_t packs = out.numel() / decltype(v)::value;
    f(v, static_cast<unsigned>(std::min<int64_t>(ceil_div(packs, kThreads), 1 << 20)), packs);
  };
  if (aligned && out.shape.cols() % kPack<T> == 0)
    launch(std::integral_constant<int, kPack<T>>{});
  else
    launch(std::integral_constant<int, 1>{});
}

}  // namespace

void activate(const Activate& a, Stream s) {
  constexpr const char* kOp = "activate";
  validate(kOp, a.x, a.out, a.gated);
  require_dtype(kOp, "out", a.out, a.x.dtype);
  if (a.out.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    by_activation(kOp, a.kind, [&](auto kind) {
      by_pack<T>(a.out, aligned16({a.x.data, a.out.data}), [&](auto v, unsigned blocks, int64_t packs) {
        activate_kernel<decltype(kind)::value, decltype(v)::value, T>
            <<<blocks, kThreads, 0, c.stream>>>(a.x.as<T>(), a.out.as<T>(), packs, a.out.shape.cols(), a.gated);
      });
    });
  });
  leave(c, kOp);
}

void activate_grad(const ActivateGrad& a, Stream s) {
  constexpr const char* kOp = "activate_grad";
  validate(kOp, a.x, a.dout, a.gated);
  GT_CHECK(a.dx.numel() == a.x.numel(), kOp, ": x ", to_string(a.x.shape), " dx ", to_string(a.dx.shape));
  require_dtype(kOp, "dout", a.dout, a.x.dtype);
  require_dtype(kOp, "dx", a.dx, a.x.dtype);
  if (a.dout.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    by_activation(kOp, a.kind, [&](auto kind) {
      by_pack<T>(a.dout, aligned16({a.x.data, a.dout.data, a.dx.data}), [&](auto v, unsigned blocks, int64_t packs) {
        activate_grad_kernel<decltype(kind)::value, decltype(v)::value, T><<<blocks, kThreads, 0, c.stream>>>(
            a.x.as<T>(), a.dout.as<T>(), a.dx.as<T>(), packs, a.dout.shape.cols(), a.gated);
      });
    });
  });
  leave(c, kOp);
}

}  // namespace gt::cuda
