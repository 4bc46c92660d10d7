// The op table, and the single exported symbol of this library.
#include "kernels/cuda/table.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/gemm_choices.h"
#include "kernels/cuda/nvml.h"

namespace gt::cuda {

static constexpr OpTable kTable{.name = "cuda",
#define X(entry, Args, ...) .entry = entry,
                                GT_OPS(X)
#undef X
};
GT_COMPLETE_TABLE(kTable);

const OpTable& op_table() { return kTable; }

namespace {

std::string version(int v) { return cat(v / 1000, '.', v % 1000 / 10); }

// Call before the first CUDA call: the driver reads this once. Streams that share a hardware queue (8 by default)
// serialize, and a rank has one stream per group and message direction. A receive could queue behind a send whose peer
// waits for that rank: deadlock.
void set_max_connections() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

// Returns why this machine cannot run the backend; empty when it can.
std::string obstacle(int abi) {
  if (abi != kBackendAbi)
    return cat("libgpttrain_cuda.so was built for backend interface ", kBackendAbi, " and the program for ", abi,
               ": install both from one build");
  int driver = 0, runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return cat("no NVIDIA driver on this machine (libcuda.so.1 not found); CUDA ", runtime / 1000,
               " or later is needed");
  if (driver / 1000 < runtime / 1000)
    return cat("the NVIDIA driver is too old: it serves CUDA ", version(driver), ", this build needs ",
               version(runtime));
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return cat("no CUDA device: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status), " (driver ",
               version(driver), ", runtime ", version(runtime), ")");
  }
  if (count == 0) return "no CUDA device is visible (CUDA_VISIBLE_DEVICES hides them all?)";
  for (int i = 0; i < count; ++i) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i);
    if (major < 8)
      return cat("CUDA device ", i, " is sm_", major, minor,
                 "; sm_80 (Ampere) or later is needed. Hide it with CUDA_VISIBLE_DEVICES");
  }
  return {};
}

std::string fp8_unsupported(int index) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  if (10 * major + minor >= 89) return {};
  return cat("CUDA device ", index, " is sm_", major, minor, "; FP8 GEMMs need sm_89 (Ada) or later");
}

int64_t workspace_bytes(std::span<const AttentionGrad> attention) {
  int64_t scratch = 0;
  for (const AttentionGrad& a : attention) scratch = std::max(scratch, planned_attention_bytes(a));
  return kGemmWorkspaceBytes + scratch;
}

int64_t held_workspace_bytes(Stream s) {
  const Context& c = enter(s, "asking for a stream's memory");
  return (c.gemm ? kGemmWorkspaceBytes : 0) + held_attention_bytes(c);
}

std::vector<std::pair<std::string, std::string>> libraries() {
  int serves = 0, runtime = 0;
  cudaDriverGetVersion(&serves);
  cudaRuntimeGetVersion(&runtime);
  const size_t lt = cublasLtGetVersion();
  const std::string driver = driver_version();
  return {{"NVIDIA driver", cat(driver.empty() ? "version unknown" : driver, ", serves CUDA ", version(serves))},
          {"CUDA runtime", version(runtime)},
          {"cuBLASLt", cat(lt / 10000, '.', lt % 10000 / 100, '.', lt % 100)}};
}

std::string tune_gemm(const GemmTuning& t) {
  gemm_in_tf32 = t.tf32;
  gemm_fp8_fast = t.fp8_fast_accum;
  return GemmChoices::instance().use(t, gemm_identity(0));
}

std::string gemm_plans() { return GemmChoices::instance().text(); }
std::string take_gemm_plans(const std::string& text, bool settled) {
  return GemmChoices::instance().take(text, settled);
}

}  // namespace
}  // namespace gt::cuda

extern "C" __attribute__((visibility("default"))) const gt::Backend* gpttrain_backend(int abi, const char** why) {
  static const gt::Backend kBackend{.kind = gt::DeviceKind::kCuda,
                                    .ops = &gt::cuda::op_table(),
                                    .device = &gt::cuda::device_api(),
                                    .tune_gemm = gt::cuda::tune_gemm,
                                    .gemm_identity = gt::cuda::gemm_identity,
                                    .gemm_plans = gt::cuda::gemm_plans,
                                    .take_gemm_plans = gt::cuda::take_gemm_plans,
                                    .fp8_unsupported = gt::cuda::fp8_unsupported,
                                    .tune_attention = gt::cuda::tune_attention,
                                    .take_attention_log = gt::cuda::take_attention_log,
                                    .attention_library = gt::cuda::attention_library,
                                    .workspace_bytes = gt::cuda::workspace_bytes,
                                    .held_workspace_bytes = gt::cuda::held_workspace_bytes,
                                    .raw_stream = gt::cuda::raw_stream,
                                    .conditions = gt::cuda::conditions,
                                    .libraries = gt::cuda::libraries};
  static thread_local std::string reason;
  gt::cuda::set_max_connections();
  reason = gt::cuda::obstacle(abi);
  if (why != nullptr) *why = reason.c_str();
  return reason.empty() ? &kBackend : nullptr;
}
