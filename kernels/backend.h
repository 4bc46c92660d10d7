// A backend: where memory comes from (DeviceApi) and what can be computed there (OpTable). CPU and null are always
// present; the CUDA backend is a shared library (libgpttrain_cuda.so) found at run time, so that one binary serves
// every machine.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/conditions.h"
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace gt {

// How a backend with several algorithms for a matrix product (CUDA: cuBLASLt) picks one. Neither: its library's first
// suggestion, always the same.
struct GemmTuning {
  bool time = false;  // products that the file lacks are timed at their first use, and the fastest is added to it
  std::string file;   // choices made before; empty with `time`: a file of this device in the user's cache
  bool tf32 = false;  // products of f32 round their factors to TF32 (10 bits of mantissa); sums stay f32
  // Sums of f8e4m3 x f8e4m3 (forward passes) may stay in the tensor cores' own accumulators, which keep fewer bits than
  // f32 (on Hopper about 14); products with f8e5m2 (gradients) are always added up in f32 every so often.
  bool fp8_fast_accum = true;
};

// Who computes attention where a backend has a library for it (CUDA: cuDNN) beside kernels of its own.
struct AttentionTuning {
  std::string by = "auto";    // auto: the library, where it takes the shape; cudnn: nothing else; own: never the library
  bool deterministic = true;  // the library's backward gives the same bits every time; false: it may be faster
};

struct Backend {
  DeviceKind kind = DeviceKind::kCpu;
  const OpTable* ops = nullptr;
  const DeviceApi* device = nullptr;
  // A backend may keep a copy of a weight in a layout of its own (Gemm::b_version > 0). Bytes of the copy that this
  // product would make it keep; nothing is read. And of all copies that it keeps for a stream now. nullptr: none ever.
  int64_t (*weight_copy_bytes)(const Gemm&) = nullptr;
  int64_t (*held_copy_bytes)(Stream) = nullptr;
  // For all products of this process that have not run yet. Returns what the user should be told (a file that is broken
  // or of another device is left aside); empty: nothing, and the second time with the same arguments. nullptr: there is
  // nothing to choose.
  std::string (*tune_gemm)(const GemmTuning&) = nullptr;
  // So that all ranks choose alike: what choices are good for (device, libraries, versions), all choices made so far as
  // the text of a file, and such a text to take over: its choices go before those at hand; `settled`: from now on
  // nothing is timed. Returns why the text was left aside; empty: it was taken. nullptr: there is nothing to choose.
  std::string (*gemm_identity)(int index) = nullptr;
  std::string (*gemm_plans)() = nullptr;
  std::string (*take_gemm_plans)(const std::string& text, bool settled) = nullptr;
  // Why this device cannot multiply numbers of 8 bits; empty, or no function: it can.
  std::string (*fp8_obstacle)(int index) = nullptr;
  // For all attention of this process from now on; throws kUsage when the library is demanded and is not there. And what
  // was decided since it was asked last, by a line each, for the user; empty: nothing new. And the library's name and
  // version, or why there is none. nullptr: there is nothing to choose.
  void (*tune_attention)(const AttentionTuning&) = nullptr;
  std::string (*attention_news)() = nullptr;
  std::string (*attention_library)() = nullptr;
  // Bytes that a stream takes beside the tensors of its ops (workspaces of libraries, scratch): if these are the shapes
  // of attention that it runs backward, as far as that is known beforehand; and what it holds now. nullptr: none.
  int64_t (*workspace_bytes)(std::span<const AttentionGrad>) = nullptr;
  int64_t (*held_workspace_bytes)(Stream) = nullptr;
  // The vendor's own handle of a stream (a cudaStream_t), for libraries that queue work on it. nullptr: it has none.
  void* (*raw_stream)(Stream) = nullptr;
  // Clocks, power and temperature of a device now; what of it is unknown, and why, is added to *why unless it is null.
  // The first call for a device finds it, which can take long. For any thread: none selects a device by it. nullptr:
  // nobody knows.
  DeviceConditions (*conditions)(int index, std::string* why) = nullptr;
  // What it computes with beside this program, by name and version: {"CUDA runtime", "13.0"}. nullptr: nothing.
  std::vector<std::pair<std::string, std::string>> (*libraries)() = nullptr;
  bool replays = false;  // calls can be recorded and replayed as graphs: a twin that kernels/replay.h made
};

const Backend& cpu_backend();
const Backend& null_backend();  // computes nothing; memory plans, FLOP counts, schedules, dry runs

// The CUDA backend, or nullptr with the reason in *why (no library, no driver, no device). Loaded once.
const Backend* cuda_backend(std::string* why);

// What libgpttrain_cuda.so exports: `extern "C" const gt::Backend* gpttrain_backend(int abi, const char** why)`.
// Library and binary are built together; another abi number is refused with both numbers.
constexpr int kBackendAbi = 16;

// Instruction set in use on the CPU: auto picks the best that the processor has. Names: scalar, avx2, avx512,
// avx512_bf16. set_cpu_isa throws kUsage on a name that is unknown or that this processor lacks, listing those it has.
void set_cpu_isa(const std::string& name_or_auto);
std::string cpu_isa();

// False: the thread pools of CPU streams opened from now on never spin while they wait. For a launcher that puts more
// threads on this machine (local ranks x threads a rank) than it has cores; a process sees only its own threads.
void set_cpu_may_spin(bool may);

}  // namespace gt
