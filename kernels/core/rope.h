// Tables of rotary position embedding (ops.h, Rope), made on the host: inverse frequencies in f64, angles as the f32
// product of position and inverse frequency, which is what models were trained with (transformers, modeling_rope_utils).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gt {

// How frequencies of a longer context follow from those of training. Names and defaults are those of `rope_scaling` in
// Hugging Face configurations.
enum class RopeKind : uint8_t { kDefault, kLinear, kLlama3, kYarn };
struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn (Peng et al. 2023, arXiv 2309.00071)
  double attention_factor = 0;                       // yarn; 0: 0.1 ln(factor) + 1
  bool truncate = true;                              // yarn: the ramp begins and ends at whole channels
  int64_t original_positions = 8192;                 // llama3, yarn: original_max_position_embeddings
};

// theta^(-2i/dim) for i < dim/2, scaled. dim: channels of a head that are turned, even; theta > 1, factor > 0.
std::vector<double> rope_inverse_frequencies(int64_t dim, double theta, const RopeScaling& = {});
// What cos and sin are multiplied by: yarn's attention factor, else 1.
double rope_attention_factor(const RopeScaling&);
// [positions, dim] f32: of position p cos of its dim/2 angles, then sin, all times `factor`.
void fill_rope_table(std::span<const double> inverse_frequencies, double factor, int64_t positions, float* table);

}  // namespace gt
