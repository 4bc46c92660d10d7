#include "kernels/core/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr double kTwoPi = 6.283185307179586476925;

// Wavelengths above original_positions / low_freq_factor are stretched by `factor`; those below original_positions /
// high_freq_factor are unchanged; in between the two are interpolated.
double llama3(double frequency, const RopeScaling& s) {
  // Rotations within the original context.
  const double turns = static_cast<double>(s.original_positions) * frequency / kTwoPi;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return frequency * std::lerp(1 / s.factor, 1.0, std::clamp(smooth, 0.0, 1.0));
}

// Channel with this many rotations within the original context.
double channel_of(double turns, int64_t dim, double theta, const RopeScaling& s) {
  return static_cast<double>(dim) * std::log(static_cast<double>(s.original_positions) / (turns * kTwoPi)) /
         (2 * std::log(theta));
}

// Interpolation weight per channel: 0 up to the channel of beta_fast, 1 from that of beta_slow on.
std::vector<double> yarn_ramp(int64_t dim, double theta, const RopeScaling& s) {
  double low = channel_of(s.beta_fast, dim, theta, s), high = channel_of(s.beta_slow, dim, theta, s);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  std::vector<double> ramp(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < ramp.size(); ++i)
    ramp[i] = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return ramp;
}

}  // namespace

std::vector<double> rope_inverse_frequencies(int64_t dim, double theta, const RopeScaling& s) {
  GT_CHECK(dim > 0 && dim % 2 == 0 && theta > 1 && s.factor > 0, "rotary positions: ", dim, " channels, theta ", theta,
           ", factor ", s.factor);
  const std::vector<double> ramp =
      s.kind == RopeKind::kYarn ? yarn_ramp(dim, theta, s) : std::vector<double>(static_cast<size_t>(dim / 2));
  std::vector<double> out;
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double f = std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(dim));
    switch (s.kind) {
      case RopeKind::kDefault: out.push_back(f); break;
      case RopeKind::kLinear: out.push_back(f / s.factor); break;
      case RopeKind::kLlama3: out.push_back(llama3(f, s)); break;
      case RopeKind::kYarn: out.push_back(std::lerp(f, f / s.factor, ramp[static_cast<size_t>(i)])); break;
    }
  }
  return out;
}

double rope_attention_factor(const RopeScaling& s) {
  if (s.kind != RopeKind::kYarn) return 1;
  if (s.attention_factor > 0) return s.attention_factor;
  return s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1;
}

void fill_rope_table(std::span<const double> inverse_frequencies, double factor, int64_t positions, float* table) {
  const size_t half = inverse_frequencies.size();
  for (int64_t p = 0; p < positions; ++p, table += 2 * half)
    for (size_t i = 0; i < half; ++i) {
      const auto angle = double{static_cast<float>(p) * static_cast<float>(inverse_frequencies[i])};
      table[i] = static_cast<float>(factor * std::cos(angle));
      table[half + i] = static_cast<float>(factor * std::sin(angle));
    }
}

}  // namespace gt
