// Roofline of a step, the least time that it can take on a device (Williams et al. 2009). Every op takes the longer of
// its times at GEMM peak and at memory bandwidth. R assumes complete fusions (kernels/op_cost.h) and attention at the
// measured rate of its kernels; R0 the same with attention at the GEMM rate. `called` is for the ops as this version
// calls them; its excess over R is due to missing fusions. Communication and bubbles are excluded.
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "launch/engine/measure/step_ops.h"
#include "launch/observe/peak_rates.h"

namespace gt {

using SecondsByClass = std::array<double, static_cast<size_t>(OpClass::kNumOpClasses)>;

// Roofline of one rank; seconds. NaN if a required peak rate is unknown: attention (r, called) or FP8 GEMM.
struct RankRoofline {
  std::vector<OpCall> calls;  // of the step as it is
  double r = 0, r0 = 0, called = 0;
  SecondsByClass fused_seconds{}, called_seconds{};  // r and called by op class; r0's if those are unknown
};

// Roofline of a step, each pipeline rank represented by its rank with dp and tp coordinate 0.
struct StepRoofline {
  std::vector<RankRoofline> ranks;  // [pp]
  size_t slowest = 0;               // index of the slowest by r0
  // Seconds of a step on devices that `sharers` ranks each share. With one: those of the slowest rank.
  double r = 0, r0 = 0, called = 0;
};

// Seconds of one call at peak rates: of its GEMMs, and of its bytes with complete fusions or as called.
struct CallBound {
  double gemms = 0, fused = 0, called = 0;
};
// at_attention: attention at its own rate, NaN if unknown; else at the GEMM rate.
CallBound call_bound(const OpCall&, const PeakRates&, bool at_attention);

StepRoofline step_roofline(const EngineOptions&, const MeshShape&, const PeakRates&, int sharers = 1);

// "70 : 20 : 10": GEMMs, attention, all else, in percent.
std::string shares_text(const SecondsByClass&);
// One line per op of a rank and one per class, as text.
std::string roofline_table(const RankRoofline&, const PeakRates&);
// "NVIDIA H200 by planning constants, not measured: GEMMs 790.00 TFLOP/s in bf16, ..."
std::string ceilings_text(const PeakRates&, int64_t head_dim, int64_t seq);

}  // namespace gt
