// Progressive layer drop (Zhang and He 2020, arXiv:2010.13369, Algorithm 1): whole blocks are left out of training
// steps, deeper ones more often, and more of them as training goes on. A block that is left out passes its input on and
// has a gradient of 0; the branches of one that is not are divided by the probability of that, so that evaluation,
// which runs all blocks, sees the expectation of what training saw. One draw a step and block, for all microbatches of
// the step (DeepSpeed hands its model one theta a step and leaves the draws to it; its BERT example draws in every
// forward): a step's work is then known before it begins, and a block that no microbatch needs is neither gathered nor
// computed.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/core/rng.h"

namespace gt {

struct LayerDrop {
  double theta = 1;  // what theta(step) falls to; 1: no block is ever left out
  double gamma = 0.001;
  explicit operator bool() const { return theta < 1; }
};

// (1 - theta) exp(-gamma step) + theta: 1 in the first step. `step`: steps done before.
inline double theta_at(const LayerDrop& d, int64_t step) {
  return (1 - d.theta) * std::exp(-d.gamma * static_cast<double>(step)) + d.theta;
}

// With which probability block i (from 0) of `layers` is left out: (i / layers) (1 - theta(step)), never the first.
inline double drop_probability(const LayerDrop& d, int64_t step, int64_t i, int64_t layers) {
  return static_cast<double>(i) / static_cast<double>(layers) * (1 - theta_at(d, step));
}

// Fills keep[i], one entry a block of the model: 0 when this step leaves the block out, else the probability with which
// it stays. A function of (seed, step, block) alone: word i mod 4 of the stream "pld" at counter (i / 4, step).
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
