// Balance of the experts of each sequence: sums over pieces of 64 tokens, then over the pieces in order, then the
// gradient, a warp per token.
#include <cmath>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/experts/scores.cuh"
#include "kernels/cuda/table.h"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kPiece = 64;

struct Balance {
  const float* logits;
  const int32_t* experts;
  const float* seed;
  float *loss, *dlogits;
  int64_t tokens, seq;
  int count, k, pieces;
  GateKind kind;
  // Of each sequence: of its pieces, sums of scores and counts of slots; of its experts, E f.
  float* sums;     // [sequences, pieces, E]
  int32_t* slots;  // [sequences, pieces, E]
  float* often;    // [sequences, E]
};

// Largest logit of a token and the sum of its scores, for all lanes of a warp.
__device__ inline float2 token_of(const Balance& p, const float* z) {
  float most = -INFINITY;
  for (int e = threadIdx.x % 32; e < p.count; e += 32) most = fmaxf(most, z[e]);
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, m));
  return make_float2(most, sum_of_scores(p.kind, z, p.count, most));
}

__global__ void __launch_bounds__(kThreads) balance_pieces_kernel(const __grid_constant__ Balance p) {
  extern __shared__ float4 memory[];
  auto* bins = reinterpret_cast<int32_t*>(memory);  // [E]
  __shared__ float2 tokens[kPiece];
  const int64_t first = blockIdx.y * p.seq + int64_t{blockIdx.x} * kPiece;
  const int rows = static_cast<int>(min(int64_t{kPiece}, p.seq - int64_t{blockIdx.x} * kPiece));
  for (int t = threadIdx.x / 32; t < rows; t += kThreads / 32) {
    const float2 token = token_of(p, p.logits + (first + t) * p.count);
    if (threadIdx.x % 32 == 0) tokens[t] = token;
  }
  for (int e = threadIdx.x; e < p.count; e += kThreads) bins[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < rows * p.k; i += kThreads)
    atomicAdd(&bins[p.experts[first * p.k + i]], 1);  // integer: order-independent
  __syncthreads();
  const int64_t at = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * p.count;
  for (int e = threadIdx.x; e < p.count; e += kThreads) {
    float sum = 0;
    for (int t = 0; t < rows; ++t)
      sum += score_of(p.kind, p.logits[(first + t) * p.count + e], tokens[t].x) / tokens[t].y;
    p.sums[at + e] = sum;
    p.slots[at + e] = bins[e];
  }
}

__global__ void __launch_bounds__(kThreads) balance_loss_kernel(const __grid_constant__ Balance p) {
  __shared__ float shared[kThreads / 32];
  float loss = 0;
  const auto seq = static_cast<float>(p.seq);
  for (int e = threadIdx.x; e < p.count; e += kThreads) {
    float sum = 0;
    int32_t slots = 0;
    for (int piece = 0; piece < p.pieces; ++piece) {
      const int64_t at = (int64_t{blockIdx.x} * p.pieces + piece) * p.count + e;
      sum += p.sums[at];
      slots += p.slots[at];
    }
    const float often = static_cast<float>(slots) * static_cast<float>(p.count) / (static_cast<float>(p.k) * seq);
    p.often[int64_t{blockIdx.x} * p.count + e] = often;
    loss += often * (sum / seq);
  }
  loss = group_sum<kThreads / 32>(loss, shared);
  if (threadIdx.x == 0) p.loss[blockIdx.x] = loss;
}

__global__ void __launch_bounds__(kThreads) balance_grad_kernel(const __grid_constant__ Balance p) {
  const int64_t t = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (t >= p.tokens) return;
  const float *z = p.logits + t * p.count, *often = p.often + t / p.seq * p.count;
  const float2 token = token_of(p, z);
  float mean = 0;
  for (int e = threadIdx.x % 32; e < p.count; e += 32) mean += often[e] * (score_of(p.kind, z[e], token.x) / token.y);
  mean = warp_sum(mean);
  const float factor = p.seed[0] / static_cast<float>(p.seq);
  for (int e = threadIdx.x % 32; e < p.count; e += 32) {
    const float score = score_of(p.kind, z[e], token.x), ds = factor * (often[e] - mean) * (score / token.y);
    p.dlogits[t * p.count + e] = p.kind == GateKind::kSigmoid ? ds * (1.0f - score) : ds;
  }
}

}  // namespace

void balance_loss(const BalanceLoss& b, Stream s) {
  constexpr const char* kOp = "balance_loss";
  check_routing(kOp, b.logits, b.experts);
  require_dtype(kOp, "loss", b.loss, DType::kF32);
  require_dtype(kOp, "seed", b.seed, DType::kF32);
  if (b.logits.numel() == 0) return;
  const int64_t sequences = b.loss.numel(), tokens = b.logits.shape.rows(), count = b.logits.shape.cols();
  GT_CHECK(sequences * b.seq == tokens, kOp, ": ", tokens, " rows of ", sequences, " sequences of ", b.seq);
  Context& c = enter(s, kOp);
  const int64_t pieces = ceil_div(b.seq, kPiece);
  ScratchLayout plan;
  const int64_t at_sums = plan.add(4 * sequences * pieces * count), at_slots = plan.add(4 * sequences * pieces * count);
  const int64_t at_often = plan.add(4 * sequences * count);
  std::byte* base = c.scratch(plan.bytes());
  const Balance p{.logits = b.logits.as<float>(),
                  .experts = b.experts.as<int32_t>(),
                  .seed = b.seed.as<float>(),
                  .loss = b.loss.as<float>(),
                  .dlogits = b.dlogits ? b.dlogits.as<float>() : nullptr,
                  .tokens = tokens,
                  .seq = b.seq,
                  .count = static_cast<int>(count),
                  .k = static_cast<int>(b.experts.shape.cols()),
                  .pieces = static_cast<int>(pieces),
                  .kind = b.kind,
                  .sums = reinterpret_cast<float*>(base + at_sums),
                  .slots = reinterpret_cast<int32_t*>(base + at_slots),
                  .often = reinterpret_cast<float*>(base + at_often)};
  balance_pieces_kernel<<<dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(sequences)), kThreads,
                          static_cast<size_t>(4 * count), c.stream>>>(p);
  balance_loss_kernel<<<static_cast<unsigned>(sequences), kThreads, 0, c.stream>>>(p);
  if (b.dlogits)
    balance_grad_kernel<<<static_cast<unsigned>(ceil_div(tokens, kThreads / 32)), kThreads, 0, c.stream>>>(p);
  leave(c, kOp);
}

}  // namespace gt::cuda
