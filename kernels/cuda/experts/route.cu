// Routing: the experts of each token, their weights and the gradient of the logits. A warp per token; a lane has every
// 32nd expert.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/experts/scores.cuh"
#include "kernels/cuda/table.h"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kTokens = kThreads / 32;

struct Choice {
  float value = -INFINITY;
  int expert = -1;  // none yet
  // Whether it comes before another: a larger logit, or of equal ones the lower index.
  __device__ bool before(const Choice& o) const {
    return expert >= 0 && (o.expert < 0 || value > o.value || (value == o.value && expert < o.expert));
  }
};

// The first of the experts behind `last`, for all lanes. Logits that are not numbers come last, so each is chosen once.
__device__ inline Choice next_choice(const float* z, int count, const Choice& last) {
  Choice best;
  for (int e = threadIdx.x % 32; e < count; e += 32) {
    const Choice mine{z[e] == z[e] ? z[e] : -INFINITY, e};
    if ((last.expert < 0 || last.before(mine)) && mine.before(best)) best = mine;
  }
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) {
    const float value = __shfl_xor_sync(kAllLanes, best.value, m);
    const int expert = __shfl_xor_sync(kAllLanes, best.expert, m);
    const Choice other{value, expert};
    if (other.before(best)) best = other;
  }
  return best;
}

__global__ void __launch_bounds__(kThreads)
    route_kernel(const float* logits, int32_t* experts, float* weights, int64_t tokens, int count, int k, Gate gate) {
  const int64_t t = int64_t{blockIdx.x} * kTokens + threadIdx.x / 32;
  if (t >= tokens) return;
  const int lane = threadIdx.x % 32;
  const float* z = logits + t * count;
  Choice last;
  float most = 0, divisor = 0;
  for (int j = 0; j < k; ++j) {
    last = next_choice(z, count, last);
    const float logit = z[last.expert];
    if (j == 0) most = logit;
    divisor += score_of(gate.kind, logit, most);
    if (lane == 0) experts[t * k + j] = last.expert;
  }
  if (!gate.normalize) divisor = gate.kind == GateKind::kSigmoid ? 1 : sum_of_scores(gate.kind, z, count, most);
  __syncwarp();  // lanes read what lane 0 wrote
  for (int j = lane; j < k; j += 32)
    weights[t * k + j] = gate.scale * (score_of(gate.kind, z[experts[t * k + j]], most) / divisor);
}

// With s_j the score of choice j over the sum by which it is divided, d_j its gradient, m = sum_j d_j s_j where scores
// are normalized or a softmax: scale (d_j - m) s_j' / sum to the chosen, s' = s of a softmax and s (1 - s) of sigmoids;
// of a softmax over all experts, scale d_j s_j to the chosen less scale m s_e to all.
__global__ void __launch_bounds__(kThreads)
    route_grad_kernel(const float* logits, const int32_t* experts, const float* dweights, float* dlogits,
                      int64_t tokens, int count, int k, Gate gate, bool accumulate) {
  const int64_t t = int64_t{blockIdx.x} * kTokens + threadIdx.x / 32;
  if (t >= tokens) return;
  const bool softmax = gate.kind == GateKind::kSoftmax, all = softmax && !gate.normalize;
  const float *z = logits + t * count, *dw = dweights + t * k;
  const int32_t* chosen = experts + t * k;
  const float most = z[chosen[0]];
  float sum = 0, mean = 0;
  for (int j = 0; j < k; ++j) sum += score_of(gate.kind, z[chosen[j]], most);
  if (all) sum = sum_of_scores(gate.kind, z, count, most);
  if (!softmax && !gate.normalize) sum = 1;
  if (softmax || gate.normalize)
    for (int j = 0; j < k; ++j) mean += dw[j] * (score_of(gate.kind, z[chosen[j]], most) / sum);
  for (int e = threadIdx.x % 32; e < count; e += 32) {
    float* to = dlogits + t * count + e;
    float d = accumulate ? *to : 0.0f;
    const float score = score_of(gate.kind, z[e], most);
    if (all) d -= gate.scale * mean * (score / sum);
    for (int j = 0; j < k; ++j)
      if (chosen[j] == e)
        d += gate.scale * (all ? dw[j] : dw[j] - mean) * (score / sum) * (softmax ? 1.0f : 1.0f - score);
    *to = d;
  }
}

unsigned blocks_of(int64_t tokens) { return static_cast<unsigned>(ceil_div(tokens, kTokens)); }

}  // namespace

void route(const Route& r, Stream s) {
  constexpr const char* kOp = "route";
  check_routing(kOp, r.logits, r.experts);
  require_dtype(kOp, "weights", r.weights, DType::kF32);
  if (r.logits.numel() == 0) return;
  Context& c = enter(s, kOp);
  const int64_t tokens = r.logits.shape.rows();
  route_kernel<<<blocks_of(tokens), kThreads, 0, c.stream>>>(
      r.logits.as<float>(), r.experts.as<int32_t>(), r.weights.as<float>(), tokens,
      static_cast<int>(r.logits.shape.cols()), static_cast<int>(r.experts.shape.cols()), r.gate);
  leave(c, kOp);
}

void route_grad(const RouteGrad& r, Stream s) {
  constexpr const char* kOp = "route_grad";
  check_routing(kOp, r.logits, r.experts);
  require_dtype(kOp, "dweights", r.dweights, DType::kF32);
  require_dtype(kOp, "dlogits", r.dlogits, DType::kF32);
  if (r.logits.numel() == 0) return;
  Context& c = enter(s, kOp);
  const int64_t tokens = r.logits.shape.rows();
  route_grad_kernel<<<blocks_of(tokens), kThreads, 0, c.stream>>>(
      r.logits.as<float>(), r.experts.as<int32_t>(), r.dweights.as<float>(), r.dlogits.as<float>(), tokens,
      static_cast<int>(r.logits.shape.cols()), static_cast<int>(r.experts.shape.cols()), r.gate, r.accumulate);
  leave(c, kOp);
}

}  // namespace gt::cuda
