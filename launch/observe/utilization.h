// Device utilization of a step: its FLOPs by definition, and peak rates of known devices.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launch/engine/engine.h"
#include "launch/observe/peak_rates.h"

namespace gt {

// Returns the dense bf16 FLOP/s with f32 accumulation from the vendor's data sheet for a device name; NaN: unknown.
// Sources: NVIDIA's data sheets of H100, H200, A100, B200; Ada GPU architecture paper for the RTX 4090.
double peak_bf16_flops(std::string_view device);
// The same for FP8: twice the bf16 peak of devices with FP8 GEMMs.
double peak_fp8_flops(std::string_view device);

// FLOPs of a training step over all ranks. causal: 6 n N_mm + 6 L q s n, the numerator of MFU; full: attention not
// halved; hardware: causal plus full recomputation (selective recomputes no GEMM).
struct StepFlops {
  double causal = 0, full = 0, hardware = 0;
};
// For sequences of `length` tokens; `blocks`: number of the model's blocks that run, -1: all.
StepFlops step_flops(const EngineOptions&, int pp, int64_t tokens, int64_t length, double blocks);

// The same for one model and layout, step by step: describes the model only when an argument differs from the last.
class StepFlopsCache {
 public:
  const StepFlops& of(const EngineOptions&, int pp, int64_t tokens, int64_t length, double blocks);

 private:
  int64_t tokens_ = -1, length_ = -1;
  double blocks_ = -1;
  StepFlops flops_;
};

// "1.23 TFLOP/s", "98.7 GFLOP/s".
std::string flops_text(double flops_per_second);
// Returns what the utilization figures of a run are relative to, as text.
std::string mfu_line(double peak_flops, const std::optional<PeakRates>&);

}  // namespace gt
