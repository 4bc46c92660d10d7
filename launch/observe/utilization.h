// How much of a device a step uses: its FLOPs by name, and the peak of known devices. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launch/engine/engine.h"
#include "launch/observe/peak_rates.h"

namespace gt {

// Dense bf16 FLOP/s with f32 sums by the maker's data sheet, of the device that a driver calls so; NaN: not known.
// Sources: NVIDIA's data sheets of H100, H200, A100, B200; Ada GPU architecture paper for the RTX 4090.
double peak_bf16_flops(std::string_view device);
// The same of numbers of 8 bits, where the device has products of them: twice as much.
double peak_fp8_flops(std::string_view device);

// FLOPs of a training step over all ranks. causal: 6 n N_mm + 6 L q s n, the numerator of MFU; full: attention not
// halved; hardware: causal and what full recomputation does again (selective computes no product again).
struct StepFlops {
  double causal = 0, full = 0, hardware = 0;
};
// Of sequences of `length` tokens; `blocks`: so many of the model's run, -1: all.
StepFlops step_flops(const EngineOptions&, int pp, int64_t tokens, int64_t length, double blocks);

// "1.23 TFLOP/s", "98.7 GFLOP/s".
std::string flops_text(double flops_per_second);
// What the shares of a run refer to, for people.
std::string mfu_line(double peak_flops, const std::optional<PeakRates>&);

}  // namespace gt
