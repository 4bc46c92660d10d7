// The plan of a run: memory from the engine's own plan on the null backend, time from the step model.
#pragma once
#include <string>

#include "launch/observe/memory_fit.h"
#include "launch/plan/machine_types.h"
#include "launch/plan/search.h"

namespace gt {

// Bytes of a device that a process of ours takes beside what its engine plans: CUDA's context, NCCL's buffers, the
// workspace of cuBLASLt.
constexpr double kLibraryBytes = 1.75e9;
constexpr double kUsableShare = 0.97;  // of a device's memory; the driver keeps the rest

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
  double device_hour = 0, watts = 0;  // 0: not asked for
};

// A block for people: layout, memory, time by terms, throughput, bubble, traffic, what the whole run takes.
std::string plan_text(const RunPlan&, const DeviceType&, const std::string& constants, const RunPrice&);
// The same as one JSON object.
std::string plan_json(const RunPlan&, const DeviceType&, const std::string& constants, const RunPrice&);

}  // namespace gt
