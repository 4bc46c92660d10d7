// cuDNN attention checked without a device. The graphs of every shipped config are accepted for the architectures that
// we build for. For an H200, cuDNN's heuristics have engines within the planned memory.
#include <dlfcn.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/attention/cudnn_library.h"
#include "launch/config/config.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

using cuda::AttentionCall;

std::string text_of(const AttentionCall& c) {
  return cat(c.backward ? "backward" : "forward", c.deterministic ? "" : " in any order", ", batch ", c.batch, " seq ",
             c.seq, " heads ", c.heads, "/", c.kv_heads, " head_dim ", c.head_dim,
             c.window > 0 ? cat(" window ", c.window) : "", ' ', name_of(c.type));
}

// The same over packed queries, keys and values.
AttentionCall packed(AttentionCall c) {
  const int64_t pitch = (c.heads + 2 * c.kv_heads) * c.head_dim;
  c.pitch = c.grad_pitch = {pitch, pitch, pitch};
  return c;
}

// Adds forward, deterministic backward and nondeterministic backward, in bf16 and fp16.
void add_passes(std::vector<AttentionCall>& to, AttentionCall c) {
  c = packed(c);
  c.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  for (c.type = DType::kBF16;; c.type = DType::kF16) {
    for (int pass = 0; pass < 3; ++pass) {
      c.backward = pass > 0, c.deterministic = pass < 2;
      to.push_back(c);
    }
    if (c.type == DType::kF16) return;
  }
}

// Per-rank attention calls of each shipped config, for every TP size that its heads allow.
std::vector<AttentionCall> shipped() {
  std::vector<AttentionCall> out;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (file.path().extension() != ".json") continue;
    const Config c = load_config({.file = file.path().string()}).config;
    for (int64_t tp = 1; tp <= std::min<int64_t>(c.model.heads, 16); ++tp)
      if (c.model.heads % tp == 0 && c.model.kv_heads % tp == 0)
        add_passes(out, {.batch = c.train.micro_batch,
                         .seq = c.model.seq,
                         .heads = c.model.heads / tp,
                         .kv_heads = c.model.kv_heads / tp,
                         .head_dim = c.model.head_width(),
                         .window = c.model.window < c.model.seq ? c.model.window : 0});
  }
  return out;
}

// Further shapes: grouped queries, odd lengths, other head dims, long sequences.
std::vector<AttentionCall> others() {
  std::vector<AttentionCall> out;
  for (const AttentionCall& c :
       {AttentionCall{2, 2048, 32, 8, 64}, AttentionCall{1, 4096, 32, 8, 128}, AttentionCall{1, 32768, 4, 4, 128},
        AttentionCall{3, 130, 4, 1, 80}, AttentionCall{1, 5, 2, 2, 8}, AttentionCall{2, 1000, 3, 3, 128},
        AttentionCall{.batch = 1, .seq = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128, .window = 4096},
        AttentionCall{.batch = 2, .seq = 130, .heads = 4, .kv_heads = 4, .head_dim = 64, .window = 17}})
    add_passes(out, c);
  return out;
}

bool without_cudnn() {
  if (cuda::cudnn_unavailable().empty()) return false;
  print_skip("cudnn", cuda::cudnn_unavailable());
  return true;
}

// cuDNN 9.19's description of an H200.
constexpr const char* kH200 =
    R"({"deviceName":"NVIDIA H200","cudaDeviceId":0,"deviceVer":900,"driverVer":13000,"multiProcessorCount":132,)"
    R"("totalGlobalMem":150754820096,"warpSize":32,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
    R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxCtasPerSM":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
    R"("smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":52428800})";

}  // namespace

TEST_CASE("cuDNN attention graphs accept the strides of packed qkv, for every shipped config") {
  if (without_cudnn()) return;
  const std::vector<AttentionCall> calls = shipped();
  CHECK(calls.size() >= 6 * 12);
  for (const auto& list : {calls, others()})
    for (const AttentionCall& c : list)
      for (const int sm : {80, 90, 100}) {
        INFO(text_of(c) << ", sm_" << sm);
        const std::string refusal = cuda::graph_unsupported_reason(c, sm);
        // Only Hopper has a backward for head dims above 128 (Turing-NLG: 152); elsewhere our own kernels run it.
        if (c.backward && c.head_dim > 128 && sm != 90)
          CHECK_THAT(refusal, Catch::Contains("less than or equal to 128"));
        else
          CHECK(refusal == "");
      }
}

TEST_CASE("cuDNN attention graphs refuse unsupported shapes with the reason") {
  if (without_cudnn()) return;
  const AttentionCall odd = packed({.batch = 1, .seq = 64, .heads = 2, .kv_heads = 2, .head_dim = 12});
  CHECK_THAT(cuda::graph_unsupported_reason(odd, 90), Catch::Contains("multiple of 8"));
  AttentionCall wide = packed({.batch = 1, .seq = 64, .heads = 2, .kv_heads = 2, .head_dim = 136, .backward = true});
  CHECK_THAT(cuda::graph_unsupported_reason(wide, 80), Catch::Contains("less than or equal to 128"));
  CHECK(cuda::graph_unsupported_reason(wide, 90) == "");
  wide.seq = 1;
  CHECK_THAT(cuda::graph_unsupported_reason(wide, 90), Catch::Contains("s_q = s_kv = 1"));
}

TEST_CASE("cuDNN has engines for attention on an H200, within the planned workspace and not with less") {
  if (without_cudnn()) return;
  // Engines compiled at run time load the driver's library before they report support.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
      dlopen(GPT_LIBCUDA_STUB, RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return print_skip("cudnn", "neither libcuda.so.1 nor the toolkit's stub of it is here");
  std::set<std::string> texts;
  for (const auto& list : {shipped(), others()})
    for (const AttentionCall& c : list) {
      if (c.type != DType::kBF16 || !texts.insert(text_of(c)).second) continue;
      INFO(text_of(c));
      const int64_t planned = cuda::engine_bytes(c);
      CHECK(cuda::engine_unsupported_reason(c, 90, kH200, planned) == "");
      if (planned > 512) CHECK(cuda::engine_unsupported_reason(c, 90, kH200, planned - 512) != "");
    }
}

}  // namespace gt::test
