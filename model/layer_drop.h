// Progressive layer drop (Zhang and He 2020, arXiv:2010.13369, Algorithm 1). Training steps drop whole blocks, deeper
// ones more often, and more of them as training progresses. A dropped block passes its input through and has a gradient
// of 0. The branches of a kept block are divided by its keep probability, so evaluation, which runs all blocks, matches
// the expectation in training.
// Each block is drawn once per step, for all microbatches. (DeepSpeed passes its model one theta per step and leaves
// the draws to the model; its BERT example draws in every forward.) The work of a step is thus known before it starts,
// and a block that no microbatch needs is neither gathered nor computed.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/core/rng.h"

namespace gt {

// Options train.pld and train.pld_*, described in fields().
struct LayerDrop {
  bool enabled = false;
  double theta = 0.5, gamma = 0.001;
  explicit operator bool() const { return enabled && theta < 1; }
  template <class V>
  void fields(V& v) {
    v("pld", enabled, "",
      "progressive layer drop: drop block i of L with probability i/L (1 - theta(step)) in each step");
    v("pld_theta", theta, "0..1", "progressive layer drop: final theta, starting from 1; at 1 no block is dropped");
    v("pld_gamma", gamma, "0..", "progressive layer drop: decay rate of theta, exp(-gamma step)");
  }
};

// Returns (1 - theta) exp(-gamma step) + theta, which is 1 in the first step; 1 if no block may be dropped. `step`:
// steps already completed.
inline double theta_at(const LayerDrop& d, int64_t step) {
  if (!d) return 1;
  return (1 - d.theta) * std::exp(-d.gamma * static_cast<double>(step)) + d.theta;
}

// Returns the probability that block i (from 0) of `layers` is dropped: (i / layers) (1 - theta(step)). It is 0 for the
// first.
inline double drop_probability(const LayerDrop& d, int64_t step, int64_t i, int64_t layers) {
  return static_cast<double>(i) / static_cast<double>(layers) * (1 - theta_at(d, step));
}

// Fills keep[i], one entry per block of the model, with 0 if this step drops the block, else with its keep probability.
// Depends on (seed, step, block) only: word i mod 4 of the stream "pld" at counter (i / 4, step).
inline void draw_blocks(const LayerDrop& d, uint64_t seed, int64_t step, std::span<double> keep) {
  const uint64_t key = stream_key(seed, "pld");
  const auto layers = static_cast<int64_t>(keep.size());
  for (int64_t i = 0; i < layers; ++i) {
    const double p = drop_probability(d, step, i, layers);
    const auto words = philox(key, static_cast<uint64_t>(i) / 4, static_cast<uint64_t>(step));
    keep[static_cast<size_t>(i)] = static_cast<double>(words[static_cast<size_t>(i % 4)]) < p * 0x1p32 ? 0 : 1 - p;
  }
}

}  // namespace gt
