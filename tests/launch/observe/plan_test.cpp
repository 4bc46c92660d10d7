// The planner: closed forms against published values and against others' measured steps, the memory of a plan against
// the engine's own, searches, and the errors of gpttrain plan. The tables name the sources of their rows.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/measure/step_ops.h"
#include "launch/tools/plan/calibrate.h"
#include "launch/tools/plan/machine_types.h"
#include "launch/tools/plan/memory_model.h"
#include "launch/tools/plan/run_plan.h"
#include "launch/tools/plan/search.h"
#include "model/module.h"
#include "tests/launch/engine_ranks.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

constexpr double kGiB = 1024. * 1024 * 1024;

const std::string kRows = source_dir() + "/tests/launch/plan_rows/";

// Constants of an A100 as in the planning document: no host time, no latency of TP collectives.
MachineModel a100() {
  MachineModel m;
  m.host = m.tp_latency = 0;
  return m;
}

// 145.6B of Narayanan et al. 2021, table 1.
Workload gpt_145b() {
  Workload w{.layers = 80,
             .hidden = 12288,
             .heads = 96,
             .kv_heads = 96,
             .head_dim = 128,
             .ffn = 49152,
             .vocab = 51200,
             .seq = 2048};
  w.tp = 8, w.pp = 8, w.vpp = 2, w.dp = 24, w.global_batch = 2304, w.micro_batch = 2;
  w.recompute = Recompute::kFull, w.fused_attention = false, w.scatter_gather = true;
  return w;
}

// 175B of Korthikanti et al. 2022, one microbatch of one sequence.
Workload gpt_175b() {
  Workload w{.layers = 96,
             .hidden = 12288,
             .heads = 96,
             .kv_heads = 96,
             .head_dim = 128,
             .ffn = 49152,
             .vocab = 51200,
             .seq = 2048};
  w.tp = 8, w.pp = 8, w.vpp = 3, w.global_batch = 64, w.fused_attention = false;
  return w;
}

bool timed(const PlanRow& r) { return r.graded && r.seconds > 0 && r.serves("time"); }

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

struct Mean {
  double sum = 0, worst = 0;
  int n = 0;
  void add(double e) { sum += std::fabs(e), worst = std::max(worst, std::fabs(e)), ++n; }
  double value() const { return sum / n; }
};

MachineModel fitted(const PlanRow& r, const MachineProfiles& profiles) {
  return calibrated(r.machine, profiles.at(r.profile));
}

}  // namespace

TEST_CASE("plan: the terms of two published steps equal the formulas") {
  const StepTerms t = step_terms(gpt_145b(), a100());
  const auto near = [](double x) { return Approx(x).margin(6e-5).epsilon(0); };
  CHECK(t.linear == near(15.9983));
  CHECK(t.attention == near(2.0968));
  CHECK(t.elementwise == near(0.9023));
  CHECK(t.tensor_parallel == near(2.5367));
  CHECK(t.head == near(0.4295));
  CHECK(t.latency == near(0.0864));
  CHECK(t.p2p == near(0.0604));
  CHECK(t.bubble == near(1.5809));
  CHECK(t.data_parallel == near(0.5615));
  CHECK(t.optimizer == near(0.0531));
  CHECK(t.total() == near(24.3110));

  Workload w{.layers = 32,
             .hidden = 4096,
             .heads = 32,
             .kv_heads = 32,
             .head_dim = 128,
             .ffn = 16384,
             .vocab = 50368,
             .seq = 2048};
  w.dp = 8, w.global_batch = 96, w.micro_batch = 6, w.zero = 3, w.overlap = true;
  MachineModel m = a100();
  m.nic = 180e9;
  const StepTerms u = step_terms(w, m);
  CHECK(u.pipeline() == near(4.9704));
  CHECK(u.data_parallel == near(0.1055));
  CHECK(u.total() == near(5.1153));

  double sum = 0;
  for (const auto& [unused, seconds] : t.list()) sum += seconds;
  CHECK(sum == Approx(t.total()));
}

TEST_CASE("plan: memory of the 175B model equals the paper's formulas") {
  Workload w = gpt_175b();
  CHECK(18 * 12 * 96. * 12288 * 12288 / 64 / kGiB == Approx(45.56).margin(0.005));
  const auto activations = [&](bool sequence_parallel, Recompute how) {
    w.sequence_parallel = sequence_parallel, w.recompute = how;
    return stage_memory(w, 0).activations / kGiB;
  };
  const double none = activations(false, Recompute::kNone);
  CHECK(none == Approx(66.84).margin(0.005));
  CHECK(activations(true, Recompute::kSelective) == Approx(12.35).margin(0.005));
  CHECK(activations(true, Recompute::kNone) / none == Approx(0.6196).margin(5e-5));
  CHECK(activations(false, Recompute::kSelective) / none == Approx(0.5652).margin(5e-5));
  CHECK(activations(false, Recompute::kFull) / none == Approx(0.0870).margin(5e-5));
}

TEST_CASE("plan: calibrated to published steps, it predicts both calibration and held-out steps") {
  const std::vector<PlanRow> rows = read_plan_rows(kRows + "published.csv");
  const MachineProfiles profiles = calibrate_profiles(rows);
  const std::vector<double> unseen = unseen_errors(rows, 5);
  Mean calibrated, left_out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!timed(rows[i])) continue;
    calibrated.add(row_error(rows[i], fitted(rows[i], profiles)));
    if (!std::isnan(unseen[i])) left_out.add(unseen[i]);
  }
  std::printf("plan: %d published steps: calibrated %.2f %%, left out of the fit %.2f %% (worst %.1f %%)\n",
              calibrated.n, 100 * calibrated.value(), 100 * left_out.value(), 100 * left_out.worst);
  CHECK(calibrated.n > 240);
  CHECK(calibrated.value() < 0.015);
  CHECK(left_out.value() < 0.031);
}

TEST_CASE("plan: of competing published layouts that differ by more than a tenth, the faster is ranked first") {
  const std::vector<PlanRow> rows = read_plan_rows(kRows + "published.csv");
  const MachineProfiles profiles = calibrate_profiles(rows);
  int pairs = 0, alike = 0;
  for (const PlanRow& a : rows)
    for (const PlanRow& b : rows) {
      if (!timed(a) || !timed(b) || a.group != b.group || a.seconds >= 0.9 * b.seconds) continue;
      ++pairs;
      alike += step_terms(a.work, fitted(a, profiles)).total() < step_terms(b.work, fitted(b, profiles)).total();
    }
  std::printf("plan: %d of %d pairs of published layouts in their order\n", alike, pairs);
  CHECK(pairs >= 40);
  CHECK(alike >= 0.95 * pairs);
}

TEST_CASE("plan: the layout ranked first among published ones is within 3 percent of the fastest") {
  int groups = 0, near = 0;
  for (const char* table : {"published.csv", "vtrain.csv", "bridge.csv"}) {
    const std::vector<PlanRow> rows = read_plan_rows(kRows + table);
    const MachineProfiles profiles = calibrate_profiles(rows);
    std::map<std::string, std::vector<const PlanRow*>> by_group;
    for (const PlanRow& r : rows)
      if (timed(r)) by_group[r.group].push_back(&r);
    for (const auto& [unused, group] : by_group) {
      if (group.size() < 2) continue;
      const auto predicted = [&](const PlanRow* r) { return step_terms(r->work, fitted(*r, profiles)).total(); };
      const auto first = std::min_element(
          group.begin(), group.end(), [&](const PlanRow* x, const PlanRow* y) { return predicted(x) < predicted(y); });
      const auto fastest = std::min_element(group.begin(), group.end(),
                                            [](const PlanRow* x, const PlanRow* y) { return x->seconds < y->seconds; });
      ++groups, near += (*first)->seconds <= 1.03 * (*fastest)->seconds;
    }
  }
  std::printf("plan: the layout ranked first is within 3 %% of the fastest in %d of %d groups\n", near, groups);
  CHECK(groups > 90);
  CHECK(near >= 0.95 * groups);
}

TEST_CASE("plan: steps of the tables of vTrain are predicted within a twentieth before calibration") {
  const std::vector<PlanRow> rows = read_plan_rows(kRows + "vtrain.csv");
  const MachineProfiles profiles = calibrate_profiles(rows);
  std::map<std::string, std::pair<Mean, Mean>> errors;
  for (const PlanRow& r : rows) {
    auto& [sheet, fit] = errors[r.profile];
    sheet.add(row_error(r, r.machine)), fit.add(row_error(r, fitted(r, profiles)));
  }
  for (const auto& [name, e] : errors) {
    INFO(name);
    std::printf("plan: %s: uncalibrated %.1f %%, calibrated %.1f %%\n", name.c_str(), 100 * e.first.value(),
                100 * e.second.value());
    CHECK(e.first.value() < 0.05);
    CHECK(e.second.value() < 0.02);
  }
}

TEST_CASE("plan: calibrated by a tenth of the rows of vTrain the other rows are predicted within 4 and 5 percent") {
  const std::vector<PlanRow> rows = read_plan_rows(kRows + "vtrain.csv");
  std::map<std::string, Mean> errors;
  for (size_t tenth = 0; tenth < 10; ++tenth) {
    std::vector<PlanRow> calibrated;
    for (size_t i = tenth; i < rows.size(); i += 10) calibrated.push_back(rows[i]);
    const MachineProfiles profiles = calibrate_profiles(calibrated);
    for (size_t i = 0; i < rows.size(); ++i)
      if (i % 10 != tenth) errors[rows[i].profile].add(row_error(rows[i], fitted(rows[i], profiles)));
  }
  for (const auto& [name, e] : errors) {
    INFO(name);
    std::printf("plan: %s: calibrated by a tenth, %.2f %% on the others\n", name.c_str(), 100 * e.value());
    CHECK(e.value() < (name == "vtrain-single" ? 0.04 : 0.05));
  }
}

TEST_CASE("plan: dense runs of Megatron-Bridge on H100 to GB300 are predicted within a twentieth") {
  const std::vector<PlanRow> rows = read_plan_rows(kRows + "bridge.csv");
  REQUIRE(rows.size() == 22);
  const MachineProfiles profiles = calibrate_profiles(rows);
  const std::vector<double> unseen = unseen_errors(rows, 5);
  Mean sheet, fit, left_out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlanRow& r = rows[i];
    INFO(r.id);
    CHECK(r.machine.peak >= 1979e12);  // FP8 or FP4
    sheet.add(row_error(r, r.machine)), fit.add(row_error(r, fitted(r, profiles)));
    if (!std::isnan(unseen[i])) left_out.add(unseen[i]);
  }
  std::printf("plan: %d dense rows of Megatron-Bridge: uncalibrated %.1f %%, calibrated %.1f %%, left out %.1f %%\n",
              fit.n, 100 * sheet.value(), 100 * fit.value(), 100 * left_out.value());
  CHECK(sheet.value() < 0.045);
  CHECK(fit.value() < 0.02);
  CHECK(left_out.value() < 0.05);
}

TEST_CASE("plan: frozen weights have no gradients and tables without recompute assume it where a run needs it") {
  Workload w = gpt_145b();
  w.recompute = Recompute::kNone;
  const StepTerms trained = step_terms(w, a100());
  w.trained = 0;
  const StepTerms frozen = step_terms(w, a100());
  CHECK(frozen.linear == Approx(trained.linear * 2 / 3));
  CHECK(frozen.optimizer == 0);

  TempDir dir;
  const std::string columns = "layers,hidden,heads,seq,tp,pp,dp,gbs,mbs,iter_s";
  const std::string small = "24,2048,16,1024,1,1,1,8,1,1\n", large = "24,2048,16,1024,1,1,1,32,32,1\n";
  const auto recompute = [&](const std::string& text) {
    write_file(dir / "r.csv", text);
    return read_plan_rows(dir / "r.csv").front().work.recompute;
  };
  CHECK(recompute(columns + "\n" + small) == Recompute::kNone);
  CHECK(recompute(columns + "\n" + small + large) == Recompute::kFull);
  CHECK(recompute(columns + ",recompute\n" +
                  "24,2048,16,1024,1,1,1,8,1,1,none\n24,2048,16,1024,1,1,1,32,32,1,none\n") == Recompute::kNone);
}

TEST_CASE("plan: memory of 12 layouts of three families is within 2 percent of what their engines use") {
  const std::vector<std::string> families{"gpt2", "llama --model.kv_heads 2", "gemma2 --model.kv_heads 2"};
  const std::vector<std::string> layouts{"--tp 2 --parallel.recompute selective", "--pp 2 --dp 2 --zero 1",
                                         "--dp 4 --zero 3 --amp O2 --precision.dtype bf16",
                                         "--tp 2 --pp 2 --dp 2 --zero 2 --parallel.recompute full"};
  double most = 0;
  for (const std::string& family : families)
    for (const std::string& layout : layouts) {
      INFO(family << " " << layout);
      const Config c =
          load_config(
              {.flags = words_of("--model.arch " + family + " --model.layers 4 --model.hidden 64 " +
                                 "--model.heads 4 --model.vocab 256 --model.seq 64 " +
                                 "--train.micro_batch 2 --train.global_batch 16 " + "--device.kind cpu " + layout)})
              .config;
      EngineOptions o = engine_options(c, 1);
      o.evaluates = true;
      std::atomic<double> largest = 0;
      on_engines(o, mesh_shape(c), [&](EngineRank& r) {
        const MemoryReport planned = plan_memory(o, mesh_shape(c), r.mesh.rank()).memory;
        r.step(0);
        r.evaluate(0, o.microbatches);
        const MemoryReport used = r.engine.measured_plan().memory;
        const auto near = [&](const char* what, int64_t x, int64_t y) {
          const double off = std::fabs(static_cast<double>(x - y)) / static_cast<double>(std::max<int64_t>(1, y));
          GT_CHECK(off <= 0.02, what, ": planned ", x, ", used ", y);
          if (off > largest) largest = off;
        };
        near("weights", planned.weights, used.weights), near("gradients", planned.gradients, used.gradients);
        near("optimizer", planned.optimizer, used.optimizer);
        near("activations", planned.activations, used.activations), near("total", planned.total(), used.total());
        GT_CHECK(used.activations > 0 && used.optimizer > 0, "an empty report");
      });
      most = std::max(most, largest.load());
    }
  std::printf("plan: memory of 12 layouts of three families: at most %.3f %% off\n", 100 * most);
}

TEST_CASE("plan: the state of 7.5 billion parameters on 64 ranks is that of the ZeRO paper's figure") {
  TempDir dir;
  const std::string model =
      "plan --model.layers 36 --model.hidden 4096 --model.heads 32 --model.vocab 61584 --model.seq 1024 "
      "--train.micro_batch 1 --train.global_batch 64 --dp 64 --amp O2 --precision.dtype fp16 "
      "--precision.grad_dtype bf16 --zero 1 --device_type V100-32 --why";
  const Outcome r = gpttrain(model, dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  for (const char* bytes : {"120 GB", "31.4 GB", "16.6 GB", "1.9 GB"}) CHECK(r.prints(bytes));
  CHECK(r.prints("limits"));
  CHECK(r.prints("to fit"));  // 31.4 GB of state beside activations
}

TEST_CASE("plan: --why names changes that fit and each one as flags is accepted with what it promises") {
  TempDir dir;
  const std::string base = "plan --config " + source_dir() +
                           "/configs/gpt2-1558m.json --dp 8 --zero 0 --device_type H100 --train.micro_batch 16 "
                           "--train.global_batch 512 --parallel.recompute none ";
  const Outcome r = gpttrain(base + "--why", dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  REQUIRE(r.prints("does not fit"));
  const size_t at = r.out.find("to fit");
  REQUIRE(at != std::string::npos);
  const size_t flags = r.out.find("--", at), end = r.out.find(": step", flags);
  const Outcome changed = gpttrain(base + r.out.substr(flags, end - flags) + " --json", dir.path());
  INFO(changed.out);
  REQUIRE(changed.code == 0);
  CHECK(nlohmann::json::parse(changed.out).at("fits") == true);
  CHECK(gpttrain("plan --search --why", dir.path()).code == 2);
  CHECK(gpttrain("plan --calibrate", dir.path()).prints("it needs --device_type cpu"));
}

TEST_CASE("plan: a token budget sets the run's time and cost") {
  TempDir dir;
  const std::string base = "plan --config " + source_dir() + "/configs/gpt2-124m.json --device_type H100 --json ";
  const auto read = [&](const std::string& more) {
    return nlohmann::json::parse(gpttrain(base + more, dir.path()).out);
  };
  const auto j = read("--tokens 300e9 --price 2.5 --watts 1000");
  const double hours = j.at("device_hours");
  CHECK(j.at("run_tokens").get<double>() >= 300e9);
  CHECK(j.at("run_tokens").get<double>() < 300e9 + 1e7);  // whole steps
  CHECK(j.at("cost").get<double>() == Approx(2.5 * hours));
  CHECK(j.at("kwh").get<double>() == Approx(hours));
}

TEST_CASE("plan: Muon's Newton-Schulz, gathers and buffers count in the time and memory of a step") {
  const auto config = [](const char* optimizer, std::vector<std::string> more) {
    std::vector<std::string> flags{
        "--model.layers",      "4",    "--model.hidden",       "512",  "--model.heads", "8",
        "--model.kv_heads",    "2",    "--model.ffn",          "1408", "--model.vocab", "512",
        "--model.gated",       "true", "--model.seq",          "64",   "--optim.type",  optimizer,
        "--train.micro_batch", "1",    "--train.global_batch", "8",    "--device.kind", "cpu"};
    flags.insert(flags.end(), more.begin(), more.end());
    return load_config({.flags = flags}).config;
  };
  const Config one = config("muon", {});
  const Workload w = workload_of(one);
  REQUIRE(w.orthogonalized.size() == 7);
  double elements = 0, flops = 0;
  for (const Workload::Matrix& m : w.orthogonalized) {
    const double side = std::min(m.rows, m.cols), other = std::max(m.rows, m.cols);
    elements += m.elements(), flops += 5 * (4 * side * side * other + 2 * side * side * side);
  }
  CHECK(elements == w.block_weights());
  double called = 0;  // by the optimizer itself
  for (const OpCall& c : step_ops(engine_options(one, 1), {}, 0))
    if (c.what == "update") called += static_cast<double>(c.calls) * c.cost.flops;
  CHECK(called == Approx(4 * flops).epsilon(1e-9));

  MachineModel m = a100();
  m.gemm_half = 0;
  const auto optimizer = [&](const Config& c) { return step_terms(workload_of(c), m).optimizer; };
  CHECK(optimizer(one) - optimizer(config("adamw", {})) == Approx(4 * flops / (m.peak * m.gemm_efficiency)));
  CHECK(optimizer(config("muon", {"--optim.groups", "layers rule=adamw"})) == optimizer(config("adamw", {})));
  // Two owners share the work, but gather and return the updates.
  const double two = optimizer(config("muon", {"--dp", "2"})) - optimizer(config("adamw", {"--dp", "2"}));
  CHECK(two == Approx(4 * (flops / 2 / (m.peak * m.gemm_efficiency) + 4 * elements / m.link)));

  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{}, {"--zero", "0", "--dp", "2"}, {"--tp", "2", "--dp", "2"}}) {
    const Config muon = config("muon", layout), adamw = config("adamw", layout);
    INFO(muon.parallel.tp << " " << muon.parallel.dp);
    const auto exact = [](const Config& c) {
      const MemoryReport r = plan_memory(engine_options(c, 1), mesh_shape(c), 0).memory;
      return static_cast<double>(r.optimizer + r.buffers);
    };
    const auto closed = [](const Config& c) { return stage_memory(workload_of(c), 0).total(); };
    CHECK(closed(muon) - closed(adamw) == Approx(exact(muon) - exact(adamw)).epsilon(0.02));
  }
}

TEST_CASE("plan: profiles round-trip, and broken ones are refused by name") {
  TempDir dir;
  MachineModel m = a100();
  m.host = 1.25e-4, m.tp_latency = 1e-6, m.gemm_half = 1. / 3;
  m.measured_blocks = {{gpt_145b().block_shape(), 1.0625}, {gpt_175b().block_shape(), 1. / 3}};
  write_profiles({{"a \"b\"", m}}, dir / "p.json");
  const MachineProfiles back = read_profiles(dir / "p.json");
  REQUIRE(back.size() == 1);
  for (const MachineConstant& c : machine_constants()) CHECK(back.at("a \"b\"").*c.value == m.*c.value);
  CHECK(back.at("a \"b\"").measured_blocks == m.measured_blocks);
  write_file(dir / "q.json", "{\"x\": {\"gemm_efficiency\": 0}}");
  CHECK_THROWS_WITH(read_profiles(dir / "q.json"),
                    Contains("q.json:1") && Contains("\"x\"") && Contains("gemm_efficiency"));
  std::string text = read_file(dir / "p.json");
  write_file(dir / "q.json", text.replace(text.find("\"ratio\": 1.0625"), 15, "\"ratio\": -1.062"));
  CHECK_THROWS_WITH(read_profiles(dir / "q.json"), Contains("q.json:") && Contains("expected ratio above 0"));
  text = read_file(dir / "p.json");
  const size_t list = text.find("[");
  write_file(dir / "q.json", text.replace(list, text.rfind(']') - list + 1, "5"));
  CHECK_THROWS_WITH(read_profiles(dir / "q.json"), Contains("q.json:") && Contains("a list of measured_blocks"));
  write_file(dir / "r.csv", "layers,hidden,heads,seq,tp,pp,dp,gbs,mbs,iter_s\n2,64,4,16,1,1,2,3,1,0.5\n");
  CHECK_THROWS_WITH(read_plan_rows(dir / "r.csv"), Contains("line 2") && Contains("gbs 3"));
  write_file(dir / "r.csv", "layers,hidden,heads,seq,tp,pp,dp,gbs,mbs,iter_s\n2,64,x,16,1,1,2,4,1,0.5\n");
  CHECK_THROWS_WITH(read_plan_rows(dir / "r.csv"), Contains("line 2, heads") && Contains("\"x\""));
}

TEST_CASE("plan: constants fitted to a table of steps predict its rows and other plans") {
  TempDir dir;
  const std::string rows = kRows + "bridge.csv";
  const Outcome fit = must("plan --fit " + rows + " --output fitted.json", dir);
  CHECK(fit.prints("held out"));
  CHECK(
      must("plan --rows " + rows + " --profile fitted.json --output predicted.csv", dir).prints("error of predicted"));
  CHECK_THAT(read_file(dir / "predicted.csv"), Catch::StartsWith("id,profile,predicted_s"));
  const std::string name = nlohmann::json::parse(read_file(dir / "fitted.json")).begin().key();
  const std::string one = "plan --device_type H100 --tp 2 --json --profile fitted.json:";
  CHECK(nlohmann::json::parse(must(one + name, dir).out).is_object());
  const Outcome unknown = gpttrain(one + "no-such", dir.path());
  CHECK((unknown.code == 2 && unknown.prints("expected FILE:NAME, NAME one of " + name)));
}

TEST_CASE("plan: the subcommand plans a config, searches layouts that train accepts, and reports what does not fit") {
  TempDir dir;
  const std::string config = source_dir() + "/configs/gpt2-1558m.json";
  const Outcome one =
      gpttrain("plan --config " + config + " --tp 1 --pp 4 --dp 2 --device_type H100 --json", dir.path());
  INFO(one.out);
  REQUIRE(one.code == 0);
  const auto json = nlohmann::json::parse(one.out);
  CHECK(json.at("fits") == true);
  double sum = json.at("memory_bytes").at("libraries");
  for (const char* part : {"weights", "gradients", "optimizer", "activations", "buffers"})
    sum += json.at("memory_bytes").at(part).get<double>();
  CHECK(sum == Approx(json.at("needed_bytes").get<double>()).epsilon(0.001));
  CHECK((json.at("mfu") > 0.05 && json.at("mfu") < 0.8 && json.at("bubble") > 0 && json.at("bubble") < 0.75));

  const Outcome found =
      gpttrain("plan --config " + config + " --devices 16 --search --top 3 --json --keep parallel.tp=5,zero.stage=1",
               dir.path());
  INFO(found.out);
  CHECK(found.code == 2);  // 16 devices are not divisible by tp 5
  const Outcome search =
      gpttrain("plan --config " + config + " --devices 16 --search --top 3 --json --keep parallel.pp=2", dir.path());
  INFO(search.out);
  REQUIRE(search.code == 0);
  double last = 1e-9, last_bytes = 0;
  const auto layouts = nlohmann::json::parse(search.out);
  REQUIRE(layouts.size() == 3);
  for (const auto& l : layouts) {
    CHECK(l.at("pp") == 2);
    CHECK(l.at("tp").get<int>() * l.at("pp").get<int>() * l.at("dp").get<int>() == 16);
    const double seconds = l.at("step_seconds"), bytes = l.at("needed_bytes");
    CHECK_FALSE(layout_before(seconds, bytes, last, last_bytes));
    last = seconds, last_bytes = bytes;
  }
  const auto& best = layouts[0];
  const Outcome legal =
      gpttrain(cat("train --config ", config, " --tp ", best.at("tp").get<int>(), " --pp 2 --dp ",
                   best.at("dp").get<int>(), " --vpp ", best.at("vpp").get<int>(), " --zero ",
                   best.at("zero").get<int>(), best.at("vpp") > 1 ? " --parallel.schedule interleaved" : "",
                   " --train.micro_batch ", best.at("micro_batch").get<int>(), " --train.grad_accum ",
                   best.at("microbatches").get<int>(), " --data.train mock --device.kind cpu --dry-run"),
               dir.path());
  INFO(legal.out);
  CHECK(legal.code == 0);

  const std::string large = source_dir() + "/configs/gpt3-175b.json";
  const Outcome small = gpttrain("plan --config " + large +
                                     " --tp 1 --pp 1 --dp 1 --train.global_batch 1 --train.micro_batch 1 "
                                     "--device_type V100-16 --require_match",
                                 dir.path());
  INFO(small.out);
  CHECK((small.code == 2 && small.prints("does not fit")));
  for (const char* ignored :
       {"plan --keep parallel.tp=2", "plan --search --price 2", "plan --output x", "plan --rows x --search"}) {
    INFO(ignored);
    CHECK(gpttrain(ignored, dir.path()).code == 2);
  }
  const Outcome typo = gpttrain("plan --device_type H10", dir.path());
  CHECK((typo.code == 2 && typo.prints("H100")));
  for (const char* figures : {"989", "989T,80G", "989T,80G,x", "1T,2G,3G,4G,5G,6G", "989T,,3T", "-1T,80G,3T", ""}) {
    INFO(figures);
    const Outcome o =
        gpttrain(std::string("plan --device_type H100 --devices 8 --device_figures '") + figures + "'", dir.path());
    CHECK((*figures == '\0' || (o.code == 2 && o.prints("--device_figures: expected"))));
  }
  CHECK(gpttrain("plan --device_type A100-80 --device_figures 1T,1G,1G", dir.path()).prints("in the place of"));
  const Outcome device = gpttrain("plan --device H100", dir.path());
  CHECK((device.code == 2 && device.prints("did you mean --device_type?")));
  CHECK(gpttrain("plan --device 8", dir.path()).prints("did you mean --devices?"));
}

TEST_CASE("a device given by its figures is planned as the one of that name with these figures") {
  const DeviceType d = device_of_figures("989T,80G,3.35T,330G,320G"), h = device_type("H100");
  CHECK((d.bf16 == h.bf16 && d.memory == h.memory && d.bandwidth == h.bandwidth && d.link == h.link && d.nic == h.nic));
  CHECK((device_of_figures("1P,1e2G,4000G").link == 20e9 && device_of_figures("1P,100G,4T,5G").nic == 6e9));
  const MachineModel a = machine_model(d, DType::kBF16), b = machine_model(h, DType::kBF16);
  CHECK((a.peak == b.peak && a.memory == b.memory && a.gemm_efficiency == b.gemm_efficiency && a.link == b.link));
  CHECK_THROWS_WITH(machine_model(d, DType::kF32), Catch::Contains("states no FP32 rate"));
  TempDir dir;
  const std::string base =
      "plan --json --config " + source_dir() + "/configs/gpt2-1558m.json --precision.amp O2 --devices 8 ";
  const nlohmann::json one = nlohmann::json::parse(must(base + "--device_figures 989T,80G,3.35T,330G,320G", dir).out),
                       two = nlohmann::json::parse(must(base + "--device_type H100", dir).out);
  CHECK(one["step_seconds"] == two["step_seconds"]);
}

TEST_CASE("a search lists layouts in the order of its step column, as it prints") {
  TempDir dir;
  const Outcome r =
      gpttrain("plan --config " + source_dir() + "/configs/gpt2-1558m.json --devices 8 --search --top 12", dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  CHECK(r.prints("in order of the step; of equal ones that with less memory first"));
  std::istringstream lines(r.out);
  double last = 0;
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    int64_t tp, pp, vpp, dp, zero, micro;
    std::string recompute;
    double step;
    if (!(in >> tp >> pp >> vpp >> dp >> zero >> micro >> recompute >> step)) continue;
    CHECK(step >= last);
    last = step, ++rows;
  }
  CHECK(rows == 12);
}

TEST_CASE("a config's layout gives way to another number of devices, a typed one does not") {
  TempDir dir;
  const std::string plan = "plan --config " + source_dir() + "/configs/llama-7b.json ";
  for (const char* devices : {"1", "8", "16"}) {
    const Outcome r = gpttrain(plan + "--devices " + devices + " --why", dir.path());
    INFO(r.out);
    CHECK(r.code == 0);
  }
  const Outcome typed = gpttrain(plan + "--devices 8 --tp 3 --dp 1", dir.path());
  INFO(typed.out);
  CHECK(typed.code == 2);
}

TEST_CASE("device types of desks and small cloud machines are planned") {
  TempDir dir;
  for (const char* type : {"RTX-3090", "RTX-4090", "RTX-5090", "A10", "L4", "L40S", "A6000"}) {
    INFO(type);
    const Outcome r =
        gpttrain("plan --config " + source_dir() + "/configs/gpt2-124m.json --json --device_type " + std::string(type),
                 dir.path());
    REQUIRE(r.code == 0);
    const auto json = nlohmann::json::parse(r.out);
    CHECK((json.at("step_seconds") > 0 && json.at("mfu") > 0.05 && json.at("mfu") < 0.9));
  }
}
