// FLOPs of a step against published figures of the formulas' sources, peaks by device name, and stored measured peaks.
#include "launch/observe/utilization.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launch/observe/sinks/console.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

namespace gt {
namespace {

EngineOptions gpt2() {
  EngineOptions o;
  o.model = {.layers = 12, .hidden = 768, .heads = 12, .ffn = 3072, .vocab = 50304, .seq = 1024};
  return o;
}

TEST_CASE("FLOPs of a step of GPT-2 124M equal the published formulas, recomputed blocks included") {
  EngineOptions o = gpt2();
  CHECK(step_flops(o, 1, 1, 1024, -1).causal == 798031872);
  CHECK(step_flops(o, 1, 1, 1024, -1).full == 854654976);
  CHECK(step_flops(o, 1, 1, 1024, -1).hardware == 798031872);
  CHECK(step_flops(o, 1, 65536, 1024, -1).causal == describe(o.model).train_flops(65536));
  CHECK(step_flops(o, 1, 4096, 256, 7).causal == describe(o.model).train_flops(4096, 256, 7));
  o.recompute = Recompute::kSelective;
  CHECK(step_flops(o, 1, 1, 1024, -1).hardware == 798031872);
  o.recompute = Recompute::kFull;
  CHECK(step_flops(o, 1, 1, 1024, -1).hardware == 986775552);
  // Four stages of 15 layers have 3, 4, 4 and 1 blocks; two of each are recomputed: seven of twelve.
  o.recompute_layers = 2;
  o.partition = "uniform";
  CHECK(step_flops(o, 4, 1, 1024, -1).hardware == 798031872 + (986775552 - 798031872) * 7.0 / 12);
}

TEST_CASE("FLOPs kept from step to step follow every change of tokens, length and blocks") {
  const EngineOptions o = gpt2();
  StepFlopsCache kept;
  struct Step {
    int64_t tokens, length;
    double blocks;
  };
  for (const Step& s : {Step{2048, 256, -1}, {2048, 256, -1}, {4096, 256, -1}, {4096, 512, -1}, {4096, 512, 7}}) {
    const StepFlops& flops = kept.of(o, 1, s.tokens, s.length, s.blocks);
    const StepFlops expected = step_flops(o, 1, s.tokens, s.length, s.blocks);
    CHECK((flops.causal == expected.causal && flops.full == expected.full && flops.hardware == expected.hardware));
  }
}

TEST_CASE("a window reduces the counted FLOPs, not those of full attention") {
  EngineOptions o = gpt2(), windows = o;
  windows.model.window = 256, windows.model.global_every = 3;  // in 8 of 12 blocks
  const double saved = 6.0 * 8 * 768 * (1024 - 256.0 * (2048 - 256) / 1024);
  CHECK(step_flops(windows, 1, 1, 1024, -1).causal == step_flops(o, 1, 1, 1024, -1).causal - saved);
  CHECK(step_flops(windows, 1, 1, 1024, -1).full == step_flops(o, 1, 1, 1024, -1).full);
  CHECK(step_flops(windows, 1, 65536, 1024, -1).causal == describe(windows.model).train_flops(65536));
}

TEST_CASE("peaks are those of the data sheets, by the driver's device name, and unknown for ambiguous editions") {
  CHECK(peak_bf16_flops("NVIDIA H200, 139 GiB, sm_90") == 989.4e12);
  CHECK(peak_bf16_flops("NVIDIA H100 80GB HBM3, 79 GiB, sm_90") == 989.4e12);
  CHECK(peak_bf16_flops("NVIDIA H100 PCIe, 79 GiB, sm_90") == 756e12);
  CHECK(peak_bf16_flops("NVIDIA A100-SXM4-80GB, 79 GiB, sm_80") == 312e12);
  CHECK(peak_bf16_flops("NVIDIA B200, 178 GiB, sm_100") == 2250e12);
  CHECK(peak_bf16_flops("NVIDIA GeForce RTX 4090, 23 GiB, sm_89") == 165.2e12);
  for (const char* other : {"NVIDIA H100 NVL, 93 GiB, sm_90", "NVIDIA GeForce RTX 4090 D, 23 GiB", "AMD EPYC, avx512",
                            "NVIDIA GeForce RTX 3090, 23 GiB, sm_86", ""})
    CHECK(std::isnan(peak_bf16_flops(other)));
  CHECK(peak_fp8_flops("NVIDIA H200, 139 GiB, sm_90") == 2 * 989.4e12);
  CHECK(std::isnan(peak_fp8_flops("NVIDIA A100-SXM4-80GB, 79 GiB, sm_80")));
}

PeakRates some(const std::string& device, int64_t head_dim, double rate) {
  return {.device = device,
          .dtype = "bf16",
          .gemm = rate,
          .copy = 3e9,
          .attention = {{head_dim, 1024, 0.2 * rate, 0.25 * rate}}};
}

TEST_CASE("measured peaks are stored by device and type, and damaged or foreign files are ignored") {
  TempDir dir;
  ::setenv("XDG_CACHE_HOME", dir.path().c_str(), 1);
  const std::string path = ceilings_file("Some GPU, 10 GiB", DType::kBF16);
  CHECK_FALSE(load_ceilings("Some GPU, 10 GiB", DType::kBF16));
  save_ceilings(some("Some GPU, 10 GiB", 64, 2e12), path);
  const auto c = load_ceilings("Some GPU, 10 GiB", DType::kBF16);
  REQUIRE(c);
  CHECK((c->gemm == 2e12 && c->copy == 3e9));
  CHECK(std::isnan(c->gemm_fp8));
  CHECK_FALSE(load_ceilings("Some GPU, 10 GiB", DType::kF32));
  CHECK_FALSE(load_ceilings("Some GPU, 11 GiB", DType::kBF16));
  save_ceilings(some("Other GPU", 64, 2e12), path);
  CHECK_FALSE(load_ceilings("Some GPU, 10 GiB", DType::kBF16));
  std::ofstream(path) << "{\"device\": \"Some GPU, 10 GiB\", \"dtype\": ";
  CHECK_FALSE(load_ceilings("Some GPU, 10 GiB", DType::kBF16));
  for (const double rate : {-1., 0., 1e30}) {  // no device has these
    save_ceilings(some("Some GPU, 10 GiB", 64, rate), path);
    CHECK_FALSE(load_ceilings("Some GPU, 10 GiB", DType::kBF16));
  }
  save_ceilings(some("Some GPU, 10 GiB", 64, 2e12), path);
  CHECK(load_ceilings("Some GPU, 10 GiB", DType::kBF16));
  std::filesystem::permissions(path, std::filesystem::perms::group_write, std::filesystem::perm_options::add);
  CHECK_FALSE(load_ceilings("Some GPU, 10 GiB", DType::kBF16));  // others can have written it
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("attention of other shapes stays in the file of a device's peaks, and an explicit file must be valid") {
  TempDir dir;
  const std::string path = dir / "c.json";
  PeakRates first = some("GPU", 64, 2e12);
  first.gemm_fp8 = 4e12;
  save_ceilings(first, path);
  save_ceilings(some("GPU", 128, 1e12), path);
  PeakRates c = read_ceilings(path, DType::kBF16);
  CHECK(c.gemm == 1e12);
  CHECK(std::isnan(c.gemm_fp8));
  REQUIRE((c.attention_at(64, 1024) != nullptr && c.attention_at(128, 1024) != nullptr));
  CHECK(c.attention_at(64, 1024)->backward == 5e11);
  CHECK(c.attention_at(64, 2048) == nullptr);
  save_ceilings(first, path);
  CHECK(read_ceilings(path, DType::kBF16).gemm_fp8 == 4e12);
  save_ceilings(some("Other GPU", 32, 1e12), path);
  CHECK(read_ceilings(path, DType::kBF16).attention.size() == 1);
  CHECK_THROWS_WITH(read_ceilings(path, DType::kF32), Catch::Contains("GEMMs are f32"));
  CHECK_THROWS_WITH(read_ceilings(dir / "none.json", DType::kBF16), Catch::Contains("cannot be read"));
  for (const char* bad : {"{", "{\"device\": \"GPU\"}", "[]"}) {
    write_file(path, bad);
    CHECK_THROWS_WITH(read_ceilings(path, DType::kBF16), Catch::Contains("no ceilings"));
  }
  save_ceilings(some("GPU", 64, -1), path);
  CHECK_THROWS_WITH(read_ceilings(path, DType::kBF16), Catch::Contains("not above 0"));
}

TEST_CASE("a device without a data sheet shows its share of the measured peak beside the missing MFU") {
  StepRecord r;
  r.step = 1, r.total_steps = 2, r.step_seconds = 1, r.tokens_per_second = 1000;
  CHECK_THAT(step_line(r, 1), !Catch::Contains("mfu") && !Catch::Contains("n/a"));
  r.of_ceiling = 0.412;
  CHECK_THAT(step_line(r, 1), Catch::Contains("tok/s  41.2% of measured peak  "));
  r.mfu = 0.5;
  CHECK_THAT(step_line(r, 1), Catch::Contains("mfu 50.0%  "));
  CHECK_THAT(mfu_line(kUnknown, {}), Catch::Contains("gpttrain bench ceilings"));
  CHECK_THAT(mfu_line(989.4e12, {}), Catch::Contains("989.40 TFLOP/s"));
}

}  // namespace
}  // namespace gt
