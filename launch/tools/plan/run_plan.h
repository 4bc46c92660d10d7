// Plan of a run: memory from the engine's plan on the null backend, time from the step model.
#pragma once
#include <cmath>
#include <limits>
#include <string>

#include "launch/observe/memory_fit.h"
#include "launch/observe/step_prediction.h"
#include "launch/tools/plan/machine_types.h"
#include "launch/tools/plan/search.h"

namespace gt {

// Device memory of a process besides what its engine plans: CUDA context, NCCL buffers, cuBLASLt workspace.
constexpr double kLibraryBytes = 1.75e9;
constexpr double kUsableShare = 0.97;  // of a device's memory; the driver reserves the rest

struct RunPlan {
  Config config;
  StagePlans stages;     // exact, by pipeline rank
  int64_t limiting = 0;  // pipeline rank that needs the most memory
  double usable = 0;     // bytes
  double needed = 0;     // bytes of the limiting rank, libraries included
  bool machine = false;  // for the CPUs of this machine
  double libraries = kLibraryBytes;
  int64_t sharing = 1;  // ranks that share one memory; `needed` and `usable` are totals over them
  double bubble = 0;    // of the schedule, simulated
  StepTerms terms;
  double trained = std::numeric_limits<double>::quiet_NaN();  // seconds of a step, measured in a trial; NaN: none
  int64_t calls = 0, estimated = 0;      // measured times: op calls of a step, and those whose shape was not measured
  double flops = 0, hardware_flops = 0;  // of a step, of all ranks; causal attention counted half
  double peak = 0;                       // FLOP/s of all devices; NaN: not known
  bool fits() const { return needed <= usable; }
  double step() const { return std::isnan(trained) ? terms.total() : trained; }  // seconds
  double tokens() const { return static_cast<double>(config.train.global_batch * config.model.seq); }
};

RunPlan plan_run(const Config&, const DeviceType&, const MachineModel&);

// Same for ranks that share the CPUs of this machine, from measured op times. Terms are NaN if one is missing.
RunPlan plan_here(const Config&, const MeasuredTimes&, std::string_view transport, const CoreShare&);

// Settings of a layout, as flags of the command line.
std::string layout_flags(const Config&);
// Text that differs for configs whose steps may take other times on one machine: names their measured steps.
std::string layout_key(const Config&);

struct RunPrice {
  double device_hour = 0, watts = 0;  // 0: not printed
  double tokens = 0;                  // of the whole run; 0: those of train.steps
};

// `device`: name of the type; `per_node`: devices that fast links connect. Text block: layout, memory, time by terms,
// throughput, bubble, traffic, totals of the whole run.
std::string plan_text(const RunPlan&, const std::string& device, int64_t per_node, const std::string& constants,
                      const RunPrice&);
// The same as one JSON object.
std::string plan_json(const RunPlan&, const std::string& device, const std::string& constants, const RunPrice&);

}  // namespace gt
