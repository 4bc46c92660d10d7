// gpttrain bench suite: names, published rows, formula of FLOPs, and a tiny case as a fresh process.
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "launch/tools/bench/suite_cases.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("the published case of 464.12 ms is 43.25 TFLOP/s by DLPerf's formula") {
  const SuiteCase c = parse_suite_case("DP_1x1x1_2_1536x16", false);
  CHECK((c.heads == 16 && c.seq == 2048 && c.vocab == 51200 && c.micro_batch == 2));
  CHECK(c.flops_hw_full_nc() / 0.46412 * 1e-12 == Approx(43.25).margin(0.005));
}

TEST_CASE("TFLOP/s of every published row follow from its sequences per second") {
  for (const SuiteReference& r : suite_references()) {
    INFO(r.name);
    const SuiteCase c = parse_suite_case(r.name, false);
    const double each = c.flops_hw_full_nc() / static_cast<double>(c.global_batch * c.devices()) * 1e-12;
    CHECK(each * r.megatron_sequences == Approx(r.megatron_tflops).epsilon(0.005));
    CHECK(each * r.oneflow_sequences == Approx(r.oneflow_tflops).epsilon(0.005));
  }
}

TEST_CASE("microbatches of cases follow DLPerf's groups and wrong names are refused") {
  CHECK(parse_suite_case("DP_32x1x1_64_1536x16", false).micro_batch == 2);
  CHECK(parse_suite_case("MP_1x8x1_16_1536x16", false).micro_batch == 16);
  CHECK(parse_suite_case("2D_4x8x1_32_2304x24", false).micro_batch == 8);
  CHECK(parse_suite_case("2D_PP_2x4x4_512_2304x24", false).micro_batch == 8);
  const SuiteCase tiny = parse_suite_case("MP_PP_1x8x4_512_2304x24", true);
  CHECK((tiny.hidden == 288 && tiny.layers == 6 && tiny.seq == 128 && tiny.heads == 24));
  CHECK_THROWS_WITH(parse_suite_case("DP_1x1_2_1536x16", false), Catch::Contains("expected GROUP_DPxTPxPP_BATCH"));
  CHECK_THROWS_WITH(parse_suite_case("DP_1x1x1_2_1000x16", false), Catch::Contains("expected 768, 1536, 2304 or 3072"));
  CHECK_THROWS_WITH(parse_suite_case("DP_4x1x1_2_1536x16", false), Catch::Contains("a batch that dp divides"));
}

TEST_CASE("bench suite runs a tiny case in fresh processes and writes it beside the published row") {
  TempDir dir;
  const Outcome r = must(
      "bench suite --case DP_1x1x1_2_1536x16 --scale tiny --device cpu --runs 2 --warmup 1 --steps 2 --out out.json",
      dir);
  INFO(r.out);
  CHECK((r.prints("TINY") && r.prints("hw-full-nc") && r.prints("4.31 (43.25)") && r.prints("4.92 (49.43)")));
  const auto j = nlohmann::json::parse(read_file(dir / "out.json")).at("cases").at(0);
  CHECK(j.at("speed_up") == 1);
  const double seconds = j.at("step_seconds").at("median");
  CHECK(j.at("sequences_per_second").get<double>() == Approx(2 / seconds));
  const SuiteCase c = parse_suite_case("DP_1x1x1_2_1536x16", true);
  CHECK(j.at("tflops_hw_full_nc_per_device").get<double>() == Approx(c.flops_hw_full_nc() / seconds * 1e-12));
}
