// Token sampling from logits. Pure: equal logits, options and draw give the same token.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gt {

struct SamplerOptions {
  double temperature = 0.8;  // 0: greedy
  int64_t top_k = 0;         // 0: all
  double top_p = 1;          // nucleus sampling (Holtzman et al. 2020)
};

// `uniform` in [0, 1). Ties go to the lower id. Throws kNumerical if a logit is NaN or none is finite.
int32_t sample_token(std::span<const float> logits, const SamplerOptions&, double uniform);

}  // namespace gt
