// Routing: the experts of each token, their weights and the gradient of the logits. A warp per token; a lane has every
// 32nd expert.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/experts/scores.cuh"
#include "kernels/cuda/table.h"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kTokens = kThreads / 32;
constexpr float kLeastSum = 1e-20f;  // added to the sum that sigmoids are divided by: all may be 0

struct Choice {
  float value = -INFINITY;
  int expert = -1;  // none yet
  // Whether it comes before another: a larger logit, or of equal ones the lower index.
  __device__ bool before(const Choice& o) const {
    return expert >= 0 && (o.expert < 0 || value > o.value || (value == o.value && expert < o.expert));
  }
};

// Scores plus bias of a token's experts, by which they are chosen: [E], of this warp. sums: [groups], scratch. Experts
// of groups that are not among the `top_groups` with the largest sums of their two best scores, of equal ones those of
// lower index, get -infinity.
__device__ inline void scores_of_choice(const float* z, const float* bias, int count, const Gate& gate, float* scores,
                                        float* sums) {
  const int lane = threadIdx.x % 32, size = count / gate.groups;
  for (int e = lane; e < count; e += 32)
    scores[e] = score_of(GateKind::kSigmoid, z[e], 0) + (bias != nullptr ? bias[e] : 0.0f);
  __syncwarp();
  if (gate.groups == 1) return;
  for (int g = lane; g < gate.groups; g += 32) {
    float best = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = scores[e] > best ? best : fmaxf(second, scores[e]);
      best = fmaxf(best, scores[e]);
    }
    sums[g] = best + second;
  }
  __syncwarp();
  for (int g = lane; g < gate.groups; g += 32) {
    int better = 0;
    for (int h = 0; h < gate.groups; ++h) better += sums[h] > sums[g] || (sums[h] == sums[g] && h < g);
    for (int e = g * size; e < (g + 1) * size && better >= gate.top_groups; ++e) scores[e] = -INFINITY;
  }
  __syncwarp();
}

// The first of the experts behind `last`, for all lanes. Values that are not numbers come last, so each is chosen once.
__device__ inline Choice next_choice(const float* values, int count, const Choice& last) {
  Choice best;
  for (int e = threadIdx.x % 32; e < count; e += 32) {
    const Choice mine{values[e] == values[e] ? values[e] : -INFINITY, e};
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

template <bool kByScores>
__global__ void __launch_bounds__(kThreads) route_kernel(const float* logits, const float* bias, int32_t* experts,
                                                         float* weights, int64_t tokens, int count, int k, Gate gate) {
  extern __shared__ float4 memory[];
  const int64_t t = int64_t{blockIdx.x} * kTokens + threadIdx.x / 32;
  if (t >= tokens) return;
  const int lane = threadIdx.x % 32;
  const float* z = logits + t * count;
  const float* values = z;
  if constexpr (kByScores) {
    float* own = reinterpret_cast<float*>(memory) + (count + gate.groups) * (threadIdx.x / 32);
    scores_of_choice(z, bias, count, gate, own, own + count);
    values = own;
  }
  Choice last;
  float most = 0, divisor = gate.kind == GateKind::kSigmoid ? kLeastSum : 0;
  for (int j = 0; j < k; ++j) {
    last = next_choice(values, count, last);
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
  float sum = softmax ? 0 : kLeastSum, mean = 0;
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

// counts += tokens of each expert, by one block.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const int32_t* experts, double* counts, int64_t slots, int count) {
  extern __shared__ float4 memory[];
  auto* bins = reinterpret_cast<int32_t*>(memory);  // [E]
  for (int e = threadIdx.x; e < count; e += kThreads) bins[e] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < slots; i += kThreads)
    atomicAdd(&bins[experts[i]], 1);  // integer: order-independent
  __syncthreads();
  for (int e = threadIdx.x; e < count; e += kThreads) counts[e] += bins[e];
}

unsigned blocks_of(int64_t tokens) { return static_cast<unsigned>(ceil_div(tokens, kTokens)); }

}  // namespace

void route(const Route& r, Stream s) {
  constexpr const char* kOp = "route";
  check_routing(kOp, r.logits, r.experts);
  require_dtype(kOp, "weights", r.weights, DType::kF32);
  require_dtype(kOp, "bias", r.bias, DType::kF32);
  if (r.counts) require_dtype(kOp, "counts", r.counts, DType::kF64);
  if (r.logits.numel() == 0) return;
  Context& c = enter(s, kOp);
  const int64_t tokens = r.logits.shape.rows();
  const auto count = static_cast<int>(r.logits.shape.cols()), k = static_cast<int>(r.experts.shape.cols());
  const bool by_scores = r.bias || r.gate.groups > 1;
  constexpr size_t kShared = 48 << 10;  // bytes of a block without asking for more
  const auto bins = static_cast<size_t>(count) * sizeof(int32_t);
  const size_t scores = by_scores ? kTokens * static_cast<size_t>(count + r.gate.groups) * sizeof(float) : 0;
  GT_CHECK(scores <= kShared && bins <= kShared, kOp, ": ", count, " experts in ", r.gate.groups,
           " groups: at most 1024 with a bias or groups");
  const auto kernel = by_scores ? route_kernel<true> : route_kernel<false>;
  kernel<<<blocks_of(tokens), kThreads, scores, c.stream>>>(r.logits.as<float>(), r.bias.as<float>(),
                                                            r.experts.as<int32_t>(), r.weights.as<float>(), tokens,
                                                            count, k, r.gate);
  if (r.counts)
    count_kernel<<<1, kThreads, bins, c.stream>>>(r.experts.as<int32_t>(), r.counts.as<double>(), tokens * k, count);
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
