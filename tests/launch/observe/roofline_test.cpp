// Roofline against the hand-computed tables of the performance plan with the same rates: single ops, whole steps, exact
// FLOPs, and bytes that a lost fusion would raise.
#include "launch/observe/roofline.h"

#include <cmath>
#include <map>
#include <set>

#include "launch/engine/engine_options.h"
#include "launch/observe/utilization.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

namespace gt {
namespace {

// A config of configs/ in bf16 with `sequences` a microbatch, 64 a step.
EngineOptions shipped(const std::string& name, int sequences, std::vector<std::string> more = {}) {
  std::vector<std::string> flags{
      "--precision.amp",      "O2", "--precision.dtype", "bf16", "--train.micro_batch", std::to_string(sequences),
      "--train.global_batch", "64"};
  flags.insert(flags.end(), more.begin(), more.end());
  return engine_options(load_config({.file = source_dir() + "/configs/" + name + ".json", .flags = flags}).config, 1);
}

StepRoofline planned(const EngineOptions& o, MeshShape shape = {}) {
  return step_roofline(o, shape, planning_ceilings(DType::kBF16));
}

const OpCall& find(const std::vector<OpCall>& calls, const std::string& op, const std::string& what) {
  for (const OpCall& c : calls)
    if (c.op == op && c.what.rfind(what, 0) == 0) return c;
  FAIL("no " << op << " " << what);
  return calls.front();
}

// Returns the unfused bytes of all calls of one op.
double bytes_of(const std::vector<OpCall>& calls, const std::string& op) {
  double sum = 0;
  for (const OpCall& c : calls)
    if (c.op == op) sum += static_cast<double>(c.calls) * c.cost.bytes;
  return sum;
}

TEST_CASE("R and R0 of the shipped GPT-2 configs equal the performance plan, within half a percent") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  struct Row {
    const char* config;
    int sequences;
    double r0, r, tokens_per_second;
  };
  // 65,536 tokens. The plan omits the final norm, 0.2 % of the smallest model's R, and rounds.
  for (const Row& expected : {Row{"gpt2-124m", 64, 75.5, 88.1, 744e3}, Row{"gpt2-355m", 64, 208, 242, 271e3},
                              Row{"gpt2-774m", 64, 443, 506, 130e3}, Row{"gpt2-1558m", 32, 871, 976, 67.2e3}}) {
    INFO(expected.config);
    const StepRoofline got = planned(shipped(expected.config, expected.sequences));
    CHECK(got.r0 * 1e3 == Approx(expected.r0).epsilon(0.005));
    CHECK(got.r * 1e3 == Approx(expected.r).epsilon(0.005));
    CHECK(65536 / got.r == Approx(expected.tokens_per_second).epsilon(0.005));
    CHECK(got.called >= got.r);
  }
}

TEST_CASE("shares of R equal the plan: GEMMs, attention, memory") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  CHECK(shares_text(planned(shipped("gpt2-124m", 64)).ranks[0].fused_seconds) == "70 : 20 : 10");
  CHECK(shares_text(planned(shipped("gpt2-355m", 64)).ranks[0].fused_seconds) == "73 : 20 : 7");
  CHECK(shares_text(planned(shipped("gpt2-774m", 64)).ranks[0].fused_seconds) == "76 : 18 : 6");
}

TEST_CASE("single ops of GPT-2 have the times of the plan's table, at G and at B") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  struct Row {
    const char *op, *what;
    double gemms, memory;  // us; 0: not in the table
  };
  const auto check = [](const char* config, int sequences, std::initializer_list<Row> rows) {
    // Head and loss in one chunk, as in the table.
    const auto calls = step_ops(shipped(config, sequences, {"--model.loss_chunk", "65536"}), {}, 0);
    const double share = 64. / sequences;
    for (const Row& expected : rows) {
      INFO(config << " " << expected.op << " " << expected.what);
      const CallBound b = call_bound(find(calls, expected.op, expected.what), planning_ceilings(DType::kBF16), true);
      CHECK(b.gemms * share * 1e6 == Approx(expected.gemms).epsilon(0.003).margin(0.6));
      if (expected.memory == 0) continue;
      // The table has one figure for all three GEMMs of a linear layer: that of the weight gradient, which accumulates
      // into 4 bytes a weight. It omits statistics and biases, below 1 %.
      CHECK(b.fused * share * 1e6 <= expected.memory * 1.02 + 0.6);
      CHECK(b.fused * share * 1e6 >= expected.memory * 0.95 - 0.6);
    }
  };
  check("gpt2-124m", 64,
        {{"gemm", "attn.qkv forward", 294, 97},
         {"gemm", "attn.qkv input", 294, 97},
         {"gemm", "attn.qkv weight", 294, 97},
         {"gemm", "attn.out forward", 98, 48},
         {"gemm", "attn.out weight", 98, 48},
         {"gemm", "mlp.up forward", 391, 212},
         {"gemm", "mlp.up input", 391, 121},
         {"gemm", "mlp.down forward", 391, 121},
         {"gemm", "mlp.down input", 391, 212},
         {"gemm", "head weight", 6410, 1629},
         {"layer_norm", "norm2", 0, 93.5},
         {"layer_norm_grad", "norm2", 0, 93.5},
         {"attention", "", 382, 0},
         {"attention_grad", "", 1120, 0},
         {"cross_entropy", "", 0, 3067}});
  check("gpt2-355m", 64,
        {{"gemm", "attn.qkv forward", 522, 131},
         {"gemm", "attn.out input", 174, 64},
         {"gemm", "mlp.up forward", 696, 283},
         {"gemm", "mlp.up weight", 696, 164},
         {"gemm", "mlp.down input", 696, 283},
         {"gemm", "head weight", 8546, 1660},
         {"layer_norm", "norm2", 0, 125},
         {"layer_norm_grad", "norm2", 0, 125},
         {"attention", "", 509, 0},
         {"attention_grad", "", 1494, 0}});
  check("gpt2-1558m", 64,
        {{"gemm", "attn.qkv forward", 1274, 209},
         {"gemm", "attn.out input", 425, 102},
         {"gemm", "mlp.up forward", 1699, 444},
         {"gemm", "mlp.up weight", 1699, 263},
         {"gemm", "mlp.down input", 1699, 444},
         {"gemm", "head weight", 13354, 1732},
         {"layer_norm", "norm2", 0, 195},
         {"layer_norm_grad", "norm2", 0, 195},
         {"attention", "", 795, 0},
         {"attention_grad", "", 2334, 0}});
}

TEST_CASE("FLOPs that count for MFU equal the formula to the integer, summed over pipeline ranks") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  for (const char* config : {"gpt2-124m", "gpt2-1558m"}) {
    EngineOptions o = shipped(config, 8);
    for (const MeshShape& shape : {MeshShape{}, MeshShape{.pp = 2, .dp = 2, .tp = 1}}) {
      double counted = 0;
      for (const RankRoofline& r : planned(o, shape).ranks)
        for (const OpCall& c : r.calls) counted += static_cast<double>(c.calls) * c.cost.model_flops;
      CHECK(counted * shape.dp ==
            describe(o.model).train_flops(o.micro_batch * o.microbatches * o.model.seq * shape.dp));
    }
  }
}

// A lost fusion adds an op or bytes; a new one removes a row below.
TEST_CASE("ops move the bytes of the plan's closed forms, except for known missing fusions") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  const EngineOptions o = shipped("gpt2-124m", 64, {"--model.loss_chunk", "65536"});
  const auto calls = step_ops(o, {}, 0);
  const double n = 65536, C = 768, F = 3072, L = 12, V = 50304, P = 124475904, act = 2 * n * C;
  const auto linear = [&](double K, double N, double aux) {  // forward, input gradient, weight gradient
    return 2 * 2 * (n * K + N * K + n * N) + aux + 2 * (n * K + n * N) + 8 * N * K;
  };
  const double gemms = L * (linear(C, 3 * C, 0) + linear(C, C, 0) + 2 * linear(C, F, 2 * n * F)) + linear(C, V, 0);
  const std::map<std::string, double> closed{{"gemm", gemms},
                                             {"layer_norm", (2 * L + 1) * 4 * act},
                                             {"layer_norm_grad", (2 * L + 1) * 4 * act},
                                             {"attention", L * 4 * act},
                                             {"attention_grad", L * 8 * act},
                                             {"cross_entropy", 4 * n * V},
                                             {"adamw", 30 * P}};
  for (const auto& [op, bytes] : closed) {
    INFO(op);
    CHECK(bytes_of(calls, op) <= 1.02 * bytes);
    CHECK(bytes_of(calls, op) >= 0.95 * bytes);
  }
  CHECK(find(calls, "adamw", "").calls == 1);
  CHECK(find(calls, "adamw", "").cost.bytes == bytes_of(calls, "adamw"));
  CHECK(find(calls, "sum_squares", "").calls == 1);
  CHECK(find(calls, "sum_squares", "").cost.bytes == bytes_of(calls, "sum_squares"));
  const std::map<std::string, double> missing{
      {"sum_squares", 4 * P},  // the gradient norm is not fused into the reduction
      {"add_position", 2 * act},
      {"position_grad", act + 4 * 1024 * C},  // passes in addition to those of the token embedding
      {"embedding", 2 * act},
      {"embedding_grad", act + 8 * V * C}};  // adds to the head's: every row, if all tokens occur
  for (const auto& [op, bytes] : missing) {
    INFO(op);
    CHECK(bytes_of(calls, op) <= 1.02 * bytes);
    CHECK(bytes_of(calls, op) > 0);
  }
  const std::set<std::string> small{"copy", "sum", "clip_factor"};  // of scalars
  for (const OpCall& c : calls) {
    INFO(c.op << " " << c.what << " " << shape_text(c.args));
    CHECK((closed.count(c.op) + missing.count(c.op) == 1 || (small.count(c.op) == 1 && c.cost.bytes < 1e6)));
  }
}

TEST_CASE("a GPU computes the head in chunks of a GiB of logits, whose GEMMs are not memory bound") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  const auto rows = [](std::vector<std::string> flags) {
    return std::get<Gemm>(find(step_ops(shipped("gpt2-124m", 64, flags), {}, 0), "gemm", "head forward").args)
        .out.shape[0];
  };
  CHECK(rows({"--device.kind", "cuda"}) == 8192);
  CHECK(rows({"--device.kind", "cpu"}) == 2048);
  CHECK(rows({"--device.kind", "cuda", "--model.loss_chunk", "1024"}) == 1024);
  const StepRoofline r = planned(shipped("gpt2-124m", 64, {"--device.kind", "cuda"}));
  CHECK(r.ranks[0].called_seconds[0] == Approx(r.ranks[0].fused_seconds[0]));
}

TEST_CASE("ranks that share a device add up, pipelines are bounded by their slowest rank") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  const EngineOptions o = shipped("gpt2-124m", 8);
  const StepRoofline one = planned(o), two = planned(o, {.pp = 2});
  REQUIRE(two.ranks.size() == 2);
  CHECK(two.r == std::max(two.ranks[0].r, two.ranks[1].r));
  CHECK(two.r < one.r);
  CHECK(two.ranks[0].r + two.ranks[1].r == Approx(one.r).epsilon(0.01));
  const StepRoofline shared = step_roofline(o, {.pp = 2}, planning_ceilings(DType::kBF16), 2);
  CHECK(shared.r == Approx(two.ranks[0].r + two.ranks[1].r));
}

TEST_CASE("a roofline without a peak that it needs is unknown") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  EngineOptions o = shipped("gpt2-124m", 8, {"--model.seq", "512"});  // attention of 512 tokens has no figure
  const StepRoofline r = planned(o);
  CHECK(std::isnan(r.r));
  CHECK(r.r0 > 0);
  CHECK_THAT(ceilings_text(planning_ceilings(DType::kBF16), 64, 512), Catch::Contains("heads of 64 unknown"));
  CHECK_THROWS_WITH(planning_ceilings(DType::kF32), Catch::Contains("--precision.amp O2"));
}

TEST_CASE("FP8 GEMMs have their own peak") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  const StepRoofline bf16 = planned(shipped("gpt2-1558m", 8));
  const StepRoofline fp8 = planned(shipped("gpt2-1558m", 8, {"--precision.fp8", "delayed"}));
  // The blocks' GEMMs at 1250 instead of 790 TFLOP/s; head and attention unchanged.
  const double head = 6. * 65536 * 50304 * 1600 / 790e12;
  const auto gemms = [](const StepRoofline& r) { return r.ranks[0].fused_seconds[0]; };
  CHECK(gemms(fp8) == Approx(head + (gemms(bf16) - head) * 790 / 1250).epsilon(0.005));
  // A norm writes two FP8 copies instead of one 16-bit tensor. FP8 copies of tensors that are stored anyway are not
  // work of a fused graph.
  const std::vector<OpCall>&calls = fp8.ranks[0].calls, &calls_16bit = bf16.ranks[0].calls;
  CHECK(find(calls, "layer_norm", "norm2").cost.fused_bytes ==
        Approx(find(calls_16bit, "layer_norm", "norm2").cost.fused_bytes).epsilon(0.001));
  const OpCost backward = find(calls, "layer_norm_grad", "norm2").cost;
  CHECK(backward.fused_bytes == Approx(find(calls_16bit, "layer_norm_grad", "norm2").cost.fused_bytes).epsilon(0.001));
  // FP8 copies of its contribution to the residual stream
  CHECK(backward.bytes == backward.fused_bytes + 2. * 8 * 1024 * 1600);
  for (const OpCall& c : calls)
    if (const auto* q = std::get_if<QuantizeFp8>(&c.args)) {
      CHECK(q->fp8.quantizes());  // scales are known: no pass computes only an amax
      CHECK((c.cost.fused_bytes == 0) == (q->of == Fp8Source::kPlain));
    }
  PeakRates none = planning_ceilings(DType::kBF16);
  none.gemm_fp8 = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(step_roofline(shipped("gpt2-124m", 8, {"--precision.fp8", "delayed"}), {}, none).r0));
}

TEST_CASE("bench roofline prints R on a machine without a device, from constants or from a file") {
  if (kSanitized) GT_SKIP("models of full size: a sanitized program has not so many addresses");
  TempDir dir;
  const std::string config = " --config " + source_dir() +
                             "/configs/gpt2-124m.json --amp O2 --precision.dtype bf16 "
                             "--train.micro_batch 64 --train.global_batch 64 --device.kind cuda";
  const Outcome planning = must("bench roofline --ceilings planning" + config, dir);
  CHECK(planning.prints("R         88.18 ms, 743k tokens/s; GEMM : attention : memory 70 : 20 : 10"));
  CHECK(planning.prints("by planning constants, not measured"));
  CHECK(planning.prints("attn.qkv weight gradient"));
  save_ceilings(
      {.device = "Some GPU", .dtype = "bf16", .gemm = 79e12, .copy = 0.43e12, .attention = {{64, 1024, 27e12, 23e12}}},
      dir / "c.json");
  CHECK(must("bench roofline --ceilings c.json" + config, dir).prints("R         881.8"));
  CHECK(must("bench roofline --ceilings c.json" + config, dir).prints("Some GPU, measured"));
  const Outcome wrong = gpttrain("bench roofline --ceilings c.json" + config + " --amp O0", dir.path());
  CHECK(wrong.code == 2);
  CHECK(wrong.prints("ceilings of bf16, but the config's GEMMs are f32"));
  CHECK(gpttrain("bench roofline --ceilings no.json" + config, dir.path()).code == 2);
}

}  // namespace
}  // namespace gt
