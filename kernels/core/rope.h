// Rotary embedding tables (ops.h, Rope), built on the host: inverse frequencies in f64; angles as the f32 product of
// position and inverse frequency, as in training of the models (transformers, modeling_rope_utils).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gt {

// Frequency scaling for contexts longer than in training. Names and defaults as in `rope_scaling` of Hugging Face
// configurations.
enum class RopeKind : uint8_t { kDefault, kLinear, kLlama3, kYarn };
struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn (Peng et al. 2023, arXiv 2309.00071)
  double attention_factor = 0;                       // yarn; 0: 0.1 ln(factor) + 1
  bool truncate = true;                              // yarn: round the ramp's bounds to whole channels
  int64_t original_positions = 8192;                 // llama3, yarn: original_max_position_embeddings
};

// theta^(-2i/dim) for i < dim/2, scaled. dim: rotated channels per head, even; theta > 1, factor > 0.
std::vector<double> rope_inverse_frequencies(int64_t dim, double theta, const RopeScaling& = {});
// Factor of cos and sin: yarn's attention factor, else 1.
double rope_attention_factor(const RopeScaling&);
// Fills [positions, dim] f32: per position cos of dim/2 angles, then sin, all times `factor`.
void fill_rope_table(std::span<const double> inverse_frequencies, double factor, int64_t positions, float* table);

}  // namespace gt
