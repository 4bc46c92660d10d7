// A backend: memory and streams of a device (DeviceApi) and its ops (OpTable). The CPU and null backends are always
// linked in. The CUDA backend is a shared library (libgpttrain_cuda.so) loaded at run time, so one binary runs on every
// machine.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/conditions.h"
#include "kernels/core/device.h"
#include "kernels/device_options.h"
#include "kernels/ops.h"

namespace gt {

// GEMM algorithm selection of backends with several algorithms (CUDA: cuBLASLt). With neither time nor file: always the
// library's first heuristic.
struct GemmTuning {
  bool time = false;  // times GEMMs missing from `file` at first use and appends the fastest
  std::string file;   // previous choices; empty with `time`: a file for this device in the user's cache folder
  bool tf32 = false;  // f32 GEMMs round inputs to TF32 (10-bit mantissa); accumulation stays f32
  // FP8 E4M3 x E4M3 GEMMs (forward) may keep sums in the tensor cores' reduced-precision accumulators (about 14 bits on
  // Hopper). GEMMs with an E5M2 operand (gradients) always promote partial sums to f32 periodically.
  bool fp8_fast_accum = true;
};

struct AttentionTuning {
  AttentionBy by = AttentionBy::kAuto;
  bool deterministic = true;  // deterministic library backward; false: may be faster
};

struct Backend {
  DeviceKind kind = DeviceKind::kCpu;
  const OpTable* ops = nullptr;
  const DeviceApi* device = nullptr;
  // Backends may cache weights in a private layout (Gemm::b_version > 0). weight_copy_bytes: bytes this GEMM's copy
  // would keep; reads no tensor. held_copy_bytes: bytes of all copies currently held for a stream. nullptr: no copies.
  int64_t (*weight_copy_bytes)(const Gemm&) = nullptr;
  int64_t (*held_copy_bytes)(Stream) = nullptr;
  // Configures all GEMMs of this process that have not run yet. Returns a warning for the user (an invalid file, or one
  // of another device, is ignored); "" when there is none, and on repeated calls with the same arguments. nullptr:
  // nothing to tune.
  std::string (*tune_gemm)(const GemmTuning&) = nullptr;
  // Make all ranks choose the same algorithms. gemm_identity: what choices are valid for (device, libraries, versions).
  // gemm_plans: all choices so far, as file text. take_gemm_plans: imports such a text, overriding existing choices;
  // `settled`: disables timing from now on. Returns why the text was ignored; "" when imported. nullptr: nothing to
  // tune.
  std::string (*gemm_identity)(int index) = nullptr;
  std::string (*gemm_plans)() = nullptr;
  std::string (*take_gemm_plans)(const std::string& text, bool settled) = nullptr;
  // Returns why this device cannot run FP8 GEMMs; "" or nullptr: it can.
  std::string (*fp8_unsupported)(int index) = nullptr;
  // tune_attention: configures attention for the whole process; throws kUsage when a required library is missing.
  // take_attention_log: decisions since the last call, one per line, for the user; "" when there are none.
  // attention_library: name and version of the library, or why there is none. nullptr: nothing to choose.
  void (*tune_attention)(const AttentionTuning&) = nullptr;
  std::string (*take_attention_log)() = nullptr;
  std::string (*attention_library)() = nullptr;
  // Bytes a stream uses beyond the tensors of its ops (library workspaces, scratch). workspace_bytes: estimate for the
  // given attention backward shapes. held_workspace_bytes: current usage. nullptr: none.
  int64_t (*workspace_bytes)(std::span<const AttentionGrad>) = nullptr;
  int64_t (*held_workspace_bytes)(Stream) = nullptr;
  // Native handle of a stream (cudaStream_t), for libraries that enqueue work on it. nullptr: none.
  void* (*raw_stream)(Stream) = nullptr;
  // Current clocks, power and temperature of a device. Appends what is unknown, and why, to *why unless null. The first
  // call for a device locates it, which can take long. Thread-safe; does not change the selected device. nullptr: not
  // available.
  DeviceConditions (*conditions)(int index, std::string* why) = nullptr;
  // Libraries in use, by name and version: {"CUDA runtime", "13.0"}. nullptr: none.
  std::vector<std::pair<std::string, std::string>> (*libraries)() = nullptr;
  bool replays = false;  // calls can be captured and replayed as graphs: made by replayable() (kernels/replay.h)
};

const Backend& cpu_backend();
const Backend& null_backend();  // no compute; memory plans, FLOP counts, schedules, dry runs

// Returns the CUDA backend, or nullptr with the reason in *why (no library, driver or device). Loaded once.
const Backend* cuda_backend(std::string* why);

// libgpttrain_cuda.so exports `extern "C" const gt::Backend* gpttrain_backend(int abi, const char** why)`. Library and
// binary are built together; a different abi number is rejected, reporting both numbers.
constexpr int kBackendAbi = 18;

// Selects the CPU instruction set; kAuto: the best available. Throws kUsage if this processor lacks it, listing the
// supported ones.
void set_cpu_isa(CpuIsa);
std::string cpu_isa();

// Sets whether thread pools of CPU streams opened from now on may spin while waiting. Launchers disable it when local
// ranks x threads per rank exceed the cores; a single process cannot see the other ranks' threads.
void set_cpu_may_spin(bool may);

}  // namespace gt
