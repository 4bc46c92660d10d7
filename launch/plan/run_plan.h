// Plan of a run: memory from the engine's plan on the null backend, time from the step model.
#pragma once
#include <string>

#include "launch/observe/memory_fit.h"
#include "launch/plan/machine_types.h"
#include "launch/plan/search.h"

namespace gt {

// Device memory of a process besides what its engine plans: CUDA context, NCCL buffers, cuBLASLt workspace.
constexpr double kLibraryBytes = 1.75e9;
constexpr double kUsableShare = 0.97;  // of a device's memory; the driver reserves the rest

struct RunPlan {
  Config config;
  StagePlans stages;     // exact, by pipeline rank
  int64_t limiting = 0;  // the pipeline rank that needs most
  double usable = 0;     // bytes
  double needed = 0;     // bytes of the limiting rank, libraries included
  double bubble = 0;     // of the schedule, simulated
  StepTerms terms;
  double flops = 0, hardware_flops = 0;  // of a step, of all ranks; causal attention counted half
  double peak = 0;                       // FLOP/s of all devices
  bool fits() const { return needed <= usable; }
  double tokens() const { return static_cast<double>(config.train.global_batch * config.model.seq); }
};

RunPlan plan_run(const Config&, const DeviceType&, const MachineModel&);

struct RunPrice {
  double device_hour = 0, watts = 0;  // 0: not printed
};

// Text block: layout, memory, time by terms, throughput, bubble, traffic, totals of the whole run.
std::string plan_text(const RunPlan&, const DeviceType&, const std::string& constants, const RunPrice&);
// The same as one JSON object.
std::string plan_json(const RunPlan&, const DeviceType&, const std::string& constants, const RunPrice&);

}  // namespace gt
