// AdamW on the CPU: one pass over the flat range, bound by memory (28 bytes a parameter in f32).
#include <algorithm>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace gt::cpu {
namespace {
constexpr int64_t kChunk = 4096;  // elements updated, then rounded to the compute type while in cache
}

void adamw(const AdamW& p, Stream s) {
  require_f32("adamw", {{"master", p.master}, {"grad", p.grad}, {"m", p.m}, {"v", p.v}, {"scalars", p.scalars}});
  const int64_t count = p.master.numel();
  require_numel("adamw", count, {{"grad", p.grad}, {"m", p.m}, {"v", p.v}});
  require_numel("adamw", kNumScalars, {{"scalars", p.scalars}});
  if (p.value) require_numel("adamw", count, {{"value", p.value}});
  const DType type = p.value.dtype;
  GT_REQUIRE(!p.value || type == DType::kF32 || type == DType::kBF16 || type == DType::kF16, Exit::kUsage,
             "adamw on the CPU: value is ", name_of(type), "; it can be f32, bf16 or f16");
  const float* scalars = p.scalars.as<float>();
  if (scalars[kSkip] != 0) return;
  const AdamWArgs args{scalars[kLr],
                       scalars[kBeta1],
                       p.beta2,
                       scalars[kBiasCorrection1],
                       scalars[kBiasCorrection2],
                       scalars[kGradMultiplier],
                       p.eps,
                       p.weight_decay,
                       p.adam_l2};
  parallel_for(s, count, kChunk, [&, &f = simd()](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      float* master = p.master.as<float>() + i;
      f.adamw(master, p.grad.as<float>() + i, p.m.as<float>() + i, p.v.as<float>() + i, n, args);
      if (!p.value) continue;
      if (type == DType::kF32) std::copy(master, master + n, p.value.as<float>() + i);
      if (type == DType::kBF16) f.f32_to_bf16(master, p.value.as<uint16_t>() + i, n);
      if (type == DType::kF16) f.f32_to_f16(master, p.value.as<uint16_t>() + i, n);
    }
  });
}

}  // namespace gt::cpu
