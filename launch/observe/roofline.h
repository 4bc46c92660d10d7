// The least time that a step can take on a device (Williams et al. 2009): every op at the rate of its products or at
// that of memory, whichever takes longer. R is of a graph whose fusions are complete (kernels/op_cost.h), with
// attention at the rate that its kernels reach; R0 the same with attention at the rate of products. `called` is of the
// ops as this version calls them: what it is above R by are fusions that are missing. Communication and bubbles are in
// none of them.
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "launch/engine/step_ops.h"
#include "launch/observe/peak_rates.h"

namespace gt {

using SecondsByClass = std::array<double, static_cast<size_t>(OpClass::kNumOpClasses)>;

// Of one rank; seconds. NaN where a ceiling that it needs is not known: of attention (r, called), of products of 8
// bits.
struct RankRoofline {
  std::vector<OpCall> calls;  // of the step as it is
  double r = 0, r0 = 0, called = 0;
  SecondsByClass fused_seconds{}, called_seconds{};  // r and called in parts; where they are not known r0's
};

// Of a step of all ranks, each pipeline rank by its dp and tp place 0.
struct StepRoofline {
  std::vector<RankRoofline> ranks;  // [pp]
  size_t slowest = 0;               // of them, by r0
  // Seconds of a step on devices which `sharers` ranks each share. With one: the slowest rank's.
  double r = 0, r0 = 0, called = 0;
};

// Seconds of one call at the ceilings: of its products, of its bytes in the fused graph or as called.
struct CallBound {
  double products = 0, fused = 0, called = 0;
};
// at_attention: attention at its own rate, NaN where that is not known; else at that of products.
CallBound call_bound(const OpCall&, const PeakRates&, bool at_attention);

StepRoofline step_roofline(const EngineOptions&, const MeshShape&, const PeakRates&, int sharers = 1);

// "70 : 20 : 10", products, attention, all else, in percent.
std::string shares_text(const SecondsByClass&);
// A line for each op of a rank and one for each class, for people.
std::string roofline_table(const RankRoofline&, const PeakRates&);
// "NVIDIA H200 by planning constants, not measured: GEMMs 790.00 TFLOP/s in bf16, ..."
std::string ceilings_text(const PeakRates&, int64_t head_dim, int64_t seq);

}  // namespace gt
