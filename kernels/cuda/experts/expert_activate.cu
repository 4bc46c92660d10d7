// Activations of experts times the weight of each row's slot, and their gradients. The kind is chosen at run time:
// these kernels are bound by memory.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kRowThreads = 128;

// Values of V elements and, with kSlopes, derivatives.
template <bool kSlopes, int V>
__device__ inline void evaluate(Activation kind, const float (&x)[V], float (&value)[V], float (&slope)[V]) {
  const auto with = [&](auto a) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      value[j] = value_of<decltype(a)::value>(x[j]);
      if constexpr (kSlopes) slope[j] = slope_of<decltype(a)::value>(x[j]);
    }
  };
  switch (kind) {
    case Activation::kGelu: return with(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kSilu: return with(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGeluErf: return with(std::integral_constant<Activation, Activation::kGeluErf>{});
    case Activation::kTanh: return with(std::integral_constant<Activation, Activation::kTanh>{});
    default: return with(std::integral_constant<Activation, Activation::kRelu2>{});
  }
}

// Gate and, if gated, its up projection, `cols` further; otherwise 1.
template <int V, class T>
__device__ inline void load_both(const T* x, int64_t cols, bool gated, float (&gate)[V], float (&up)[V]) {
  load<V>(x, gate);
#pragma unroll
  for (int j = 0; j < V; ++j) up[j] = 1.0f;
  if (gated) load<V>(x + cols, up);
}

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    expert_activate_kernel(const T* x, const float* weights, const int32_t* slots, T* out, int64_t packs, int64_t cols,
                           bool gated, Activation kind) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t row = i * V / cols;
  float gate[V], up[V], value[V], none[V];
  load_both<V>(x + i * V + (gated ? row * cols : 0), cols, gated, gate, up);
  evaluate<false>(kind, gate, value, none);
  const float weight = weights[slots[row]];
#pragma unroll
  for (int j = 0; j < V; ++j) value[j] = value[j] * up[j] * weight;
  store<V>(out + i * V, value);
}

// A block per row. dx may alias x: each thread writes only elements that it alone has read.
template <int V, class T>
__global__ void __launch_bounds__(kRowThreads)
    expert_activate_grad_kernel(const T* x, const float* weights, const int32_t* slots, const T* dout, T* dx,
                                float* dweights, int64_t cols, bool gated, Activation kind) {
  __shared__ float shared[kRowThreads / 32];
  const int64_t row = blockIdx.x, first = row * (gated ? 2 * cols : cols);
  const int32_t slot = slots[row];
  const float weight = weights[slot];
  float sum = 0;
  for (int64_t c = int64_t{threadIdx.x} * V; c < cols; c += kRowThreads * V) {
    float gate[V], up[V], d[V], value[V], slope[V];
    load_both<V>(x + first + c, cols, gated, gate, up);
    load<V>(dout + row * cols + c, d);
    evaluate<true>(kind, gate, value, slope);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      sum += value[j] * up[j] * d[j];
      d[j] *= weight;
      value[j] *= d[j];
      slope[j] *= d[j] * up[j];
    }
    store<V>(dx + first + c, slope);
    if (gated) store<V>(dx + first + cols + c, value);
  }
  sum = group_sum<kRowThreads / 32>(sum, shared);
  if (threadIdx.x == 0) dweights[slot] = sum;
}

void validate(const char* op, const Tensor& x, const Tensor& out, const Tensor& weights, const Tensor& slots,
              bool gated) {
  require_dtype(op, "out", out, x.dtype);
  require_dtype(op, "weights", weights, DType::kF32);
  require_dtype(op, "slots", slots, DType::kI32);
  GT_CHECK(out.shape.cols() * (gated ? 2 : 1) == x.shape.cols() && out.shape.rows() == x.shape.rows() &&
               weights.numel() == out.shape.rows() && slots.numel() == out.shape.rows(),
           op, ": x ", to_string(x.shape), gated ? ", gated" : "", ", out ", to_string(out.shape), ", weights ",
           to_string(weights.shape), ", slots ", to_string(slots.shape));
}

}  // namespace

void expert_activate(const ExpertActivate& a, Stream s) {
  constexpr const char* kOp = "expert_activate";
  validate(kOp, a.x, a.out, a.weights, a.slots, a.gated);
  if (a.out.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const int64_t cols = a.out.shape.cols();
    const bool wide = cols % kPack<T> == 0 && aligned16({a.x.data, a.out.data});
    const int64_t packs = a.out.numel() / (wide ? kPack<T> : 1);
    auto* kernel = wide ? expert_activate_kernel<kPack<T>, T> : expert_activate_kernel<1, T>;
    kernel<<<static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0, c.stream>>>(
        a.x.as<T>(), a.weights.as<float>(), a.slots.as<int32_t>(), a.out.as<T>(), packs, cols, a.gated, a.kind);
  });
  leave(c, kOp);
}

void expert_activate_grad(const ExpertActivateGrad& a, Stream s) {
  constexpr const char* kOp = "expert_activate_grad";
  validate(kOp, a.x, a.dout, a.weights, a.slots, a.gated);
  require_dtype(kOp, "dx", a.dx, a.x.dtype);
  require_dtype(kOp, "dweights", a.dweights, DType::kF32);
  GT_CHECK(a.dx.numel() == a.x.numel() && a.dweights.numel() == a.weights.numel(), kOp, ": x ", to_string(a.x.shape),
           ", dx ", to_string(a.dx.shape), ", dweights ", to_string(a.dweights.shape));
  if (a.dout.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    const int64_t cols = a.dout.shape.cols();
    const bool wide = cols % kPack<T> == 0 && aligned16({a.x.data, a.dout.data, a.dx.data});
    auto* kernel = wide ? expert_activate_grad_kernel<kPack<T>, T> : expert_activate_grad_kernel<1, T>;
    kernel<<<static_cast<unsigned>(a.dout.shape.rows()), kRowThreads, 0, c.stream>>>(
        a.x.as<T>(), a.weights.as<float>(), a.slots.as<int32_t>(), a.dout.as<T>(), a.dx.as<T>(), a.dweights.as<float>(),
        cols, a.gated, a.kind);
  });
  leave(c, kOp);
}

}  // namespace gt::cuda
