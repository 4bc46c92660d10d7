// Result of `gpttrain bench`, as text and as one JSON object. Unknown values are null in JSON.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/observe/conditions.h"
#include "launch/observe/roofline.h"
#include "launch/observe/utilization.h"
#include "launch/tools/bench/bench_stats.h"

namespace gt {

struct BenchRecord {
  std::string command, config_json, device;
  MeshShape shape;
  int threads = 1, sharers = 1;  // per rank; ranks that share a device
  int64_t parameters = 0, sequences = 0, seq = 0, warmup = 0, steps = 0;
  double mean_step = 0;          // seconds
  Spread step, update;           // step seconds; optimizer seconds on the slowest rank
  std::optional<Spread> stream;  // step seconds on rank 0's stream, if the device computes asynchronously
  StepFlops flops;
  bool fp8 = false;
  std::optional<PeakRates> ceilings;  // of this device, if measured
  std::optional<StepRoofline> roof;   // requires ceilings
  // fractions of the steps on rank 0: computing, waiting for pipeline neighbours, waiting for data
  double busy = 0, neighbours = 0, data_wait = 0;
  double exposed_comm = 0, bubble = 0;  // means over all ranks; exposed_comm NaN: not measured
  MemoryReport planned, measured;       // rank 0
  std::optional<ReplayCounts> graphs;
  std::vector<ConditionsSummary> conditions;  // of each rank's device while steps were measured
  std::string conditions_why;                 // reason why conditions of rank 0 are unknown

  double tokens() const { return static_cast<double>(sequences * seq); }
  double devices() const { return static_cast<double>(shape.world()) / sharers; }
  // Fraction of the devices' peak (FLOP/s each) that `flops` per median step amount to.
  double of_peak(double flops, double peak) const { return flops / (step.median * devices() * peak); }
  // Fraction of a step in which the device waits for the host to enqueue the next step.
  double host_bound() const { return stream ? std::max(0., 1 - stream->median / step.median) : 0; }
  double sol() const { return roof ? roof->r / step.median : kNotMeasured; }    // speed of light: roofline / measured
  double sol0() const { return roof ? roof->r0 / step.median : kNotMeasured; }  // with attention at GEMM rate
  static constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
};

std::string bench_text(const BenchRecord&);
std::string bench_json(const BenchRecord&);  // one line
// Returns the clocks and temperatures of the ranks' devices, with a warning if their clocks were throttled; text starts
// at `column`. Empty if nothing is known.
std::string conditions_lines(std::span<const ConditionsSummary> ranks, int column);

}  // namespace gt
