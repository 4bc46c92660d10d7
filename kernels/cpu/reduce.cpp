// Whole-tensor sums on the CPU, in f64 by fixed blocks, and the clipping factor of a step.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/segments.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kBlock = 4096;  // elements summed together; affects the bits of the result

}  // namespace

void sum(const Sum& p, Stream s) {
  require_float("sum", {"x", p.x});
  require_dtype("sum", DType::kF64, {{"out", p.out}});
  require_numel("sum", 1, {{"out", p.out}});
  const int64_t n = p.x.numel(), blocks = (n + kBlock - 1) / kBlock;
  double* partial = cpu_context(s).scratch<double>(blocks);
  parallel_for(s, blocks, 4, [&, &f = simd()](int64_t begin, int64_t end, int) {
    float scratch[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = b * kBlock, count = std::min(kBlock, n - at);
      partial[b] = f.sum(read(f, p.x, at, count, scratch), count);
    }
  });
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b) total += partial[b];
  double* out = p.out.as<double>();
  *out = p.accumulate ? *out + total : total;
}

void sum_squares(const SumSquares& p, Stream stream) {
  require_gradients("sum_squares", p.table);
  require_dtype("sum_squares", DType::kF64, {{"out", p.out}});
  if (p.known) require_dtype("sum_squares", DType::kF64, {{"known", p.known}});
  if (p.known) require_numel("sum_squares", p.table.count, {{"known", p.known}});
  constexpr int64_t kBlocks = kSegmentTile / kBlock;  // per tile
  double* partial = cpu_context(stream).scratch<double>(kBlocks * p.table.tiles);
  const auto* list = p.table.device.as<const Segment>();
  parallel_parts(stream, p.table, 4 * kBlock, [&, &f = simd()](const Segment& s, int64_t begin, int64_t end) {
    float scratch[kBlock];
    const Tensor x{const_cast<std::byte*>(s.grad), {s.count}, p.table.grad, {}};
    const double known = p.known ? p.known.as<double>()[&s - list] : -1;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      double& sum = partial[s.first_tile * kBlocks + i / kBlock];
      if (known == -1)
        sum = f.sum_squares(read(f, x, i, n, scratch), n);
      else
        sum = i == 0 ? known : 0;
    }
  });
  sum_groups<1>(p.table, kBlock, partial, p.out.as<double>());
}

void clip_factor(const ClipFactor& p, Stream) {
  require_dtype("clip_factor", DType::kF64, {{"norm_squares", p.norm_squares}, {"guard", p.guard}});
  require_f32("clip_factor", {{"scalars", p.scalars}, {"norm", p.norm}});
  require_numel("clip_factor", kNumScalars, {{"scalars", p.scalars}});
  require_numel("clip_factor", 1, {{"norm", p.norm}});
  double squares = 0;
  for (int64_t i = 0; i < p.norm_squares.numel(); ++i) squares += p.norm_squares.as<double>()[i];
  const double denominator = p.denominator, total = std::sqrt(squares) / denominator;
  const double factor = p.clip > 0 ? std::min(1.0, p.clip / (total + p.slack)) : 1.0;
  bool finite = std::isfinite(total);
  for (int64_t i = 0; p.guard && i < p.guard.numel(); ++i) finite = finite && std::isfinite(p.guard.as<double>()[i]);
  float* scalars = p.scalars.as<float>();
  scalars[kGradMultiplier] = static_cast<float>(factor / denominator);
  scalars[kSkip] = finite ? 0.0f : 1.0f;
  *p.norm.as<float>() = static_cast<float>(total);
}

void check_step(const CheckStep& p, Stream) {
  require_dtype("check_step", DType::kF64,
                {{"losses", p.losses}, {"shares", p.shares}, {"counts", p.counts}, {"limits", p.limits}});
  require_f32("check_step", {{"scalars", p.scalars}, {"norm", p.norm}});
  require_numel("check_step", kNumScalars, {{"scalars", p.scalars}});
  require_numel("check_step", kNumLimits, {{"limits", p.limits}});
  const int64_t sums = p.shares.numel() / 2, n = p.losses.numel() / sums;
  require_numel("check_step", sums * n, {{"losses", p.losses}});
  if (p.counts) require_numel("check_step", n, {{"counts", p.counts}});
  const double* limits = p.limits.as<double>();
  const double loss =
      mean_loss(p.losses.as<double>(), sums, n, p.shares.as<double>(), p.counts ? p.counts.as<double>() : nullptr);
  float* scalars = p.scalars.as<float>();
  if (scalars[kSkip] == 0 && is_anomalous_step(loss, *p.norm.as<float>(), limits))
    scalars[kSkip] = scalars[kAnomalous] = 1;
}

}  // namespace gt::cpu
