// What `gpttrain bench` measured, as lines for people and as one JSON object. Unknown is null there.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/commands/bench/bench_stats.h"
#include "launch/observe/conditions.h"
#include "launch/observe/roofline.h"
#include "launch/observe/utilization.h"

namespace gt {

struct BenchRecord {
  std::string command, config_json, device;
  MeshShape shape;
  int threads = 1, sharers = 1;  // of a rank; ranks that share a device
  int64_t parameters = 0, sequences = 0, seq = 0, warmup = 0, steps = 0;
  Spread step, update;  // seconds of a step; of the optimizer's part on the slowest rank
  std::optional<Spread> stream;  // seconds of a step on rank 0's stream, on a device that computes behind the host
  StepFlops flops;
  bool fp8 = false;
  std::optional<Ceilings> ceilings;                // of this device, if measured
  std::optional<StepRoofline> roof;                // with them
  double busy = 0, neighbours = 0, data_wait = 0;  // shares of the steps, rank 0: computing, waiting for each
  double exposed_comm = 0, bubble = 0;             // of all ranks, a mean; exposed_comm NaN: not measured
  MemoryReport planned, measured;                  // rank 0
  std::optional<ReplayCounts> graphs;
  std::vector<ConditionsSummary> conditions;  // of each rank's device while steps were measured
  std::string conditions_why;                 // something of rank 0's is unknown

  double tokens() const { return static_cast<double>(sequences * seq); }
  double devices() const { return static_cast<double>(shape.world()) / sharers; }
  // FLOPs over what the devices could do in a median step at `peak` each.
  double of_peak(double flops, double peak) const { return flops / (step.median * devices() * peak); }
  // The part of a step for which the device waits between two steps because the host has not queued the next one.
  double host_bound() const { return stream ? std::max(0., 1 - stream->median / step.median) : 0; }
  double sol() const { return roof ? roof->r / step.median : kNotMeasured; }    // R / measured
  double sol0() const { return roof ? roof->r0 / step.median : kNotMeasured; }  // with attention at products' rate
  static constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
};

std::string bench_text(const BenchRecord&);
std::string bench_json(const BenchRecord&);      // one line
// What the ranks' devices were like, and a warning where something held their clocks down: lines whose text begins in
// this column. Empty: nothing is known.
std::string conditions_lines(std::span<const ConditionsSummary> ranks, int column);
void require_writable(const std::string& path);  // before minutes of measuring. kIo
// Replaces the file, or adds a line where its name ends in .jsonl. kIo.
void write_bench_record(const std::string& line, const std::string& path);

}  // namespace gt
