// gpttrain bench suite: DLPerf's GPT cases by its method: each run is a fresh process of 20 warm-up and 100 measured
// steps, the result the median of the runs. Printed beside the published rows; TFLOP/s as in DLPerf's table
// (hw-full-nc), MFU by our formulas.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/backend.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/output.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/shell_run.h"
#include "launch/tools/bench/subcommands.h"
#include "launch/tools/bench/suite_cases.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kUnknownFigure = std::numeric_limits<double>::quiet_NaN();

// Machines that the cases run on.
struct SuiteMachine {
  bool cpu = true;
  int64_t devices = 1;
};

SuiteMachine this_machine(const SuiteArgs& a) {
  std::string why;
  const Backend* cuda = a.device == "cpu" ? nullptr : cuda_backend(&why);
  GT_REQUIRE(cuda != nullptr || a.device != "cuda", Exit::kUsage, "--device cuda: ", why);
  // Ranks of a CPU share its cores: cases of at most one node of DLPerf's run there.
  return cuda != nullptr ? SuiteMachine{false, cuda->device->count()} : SuiteMachine{true, 8};
}

struct CaseResult {
  SuiteCase c;
  Spread seconds;       // of a step, over the runs
  Json last;            // record of the last run
  std::string problem;  // why there is none
  double sequences() const { return static_cast<double>(c.global_batch) / seconds.median; }
  double tflops() const { return c.flops_hw_full_nc() / seconds.median / static_cast<double>(c.devices()) * 1e-12; }
  double figure(const char* key) const {
    const auto it = last.find(key);
    return it != last.end() && it->is_number() ? it->get<double>() : kUnknownFigure;
  }
};

CaseResult run_case(const SuiteCase& c, const SuiteArgs& a, const SuiteMachine& m) {
  CaseResult r{c, {}, {}, ""};
  const MemoryFile record;
  const std::string command =
      fmt::format("{} bench {} --device.kind {} --warmup {} --steps {} --out {}", this_program(), c.flags(),
                  m.cpu ? "cpu" : "cuda", a.warmup, a.steps, record.path());
  std::vector<double> seconds;
  for (int64_t k = 0; k < a.runs; ++k) {
    const ShellResult run = run_shell(command);
    if (run.status != 0) {
      r.problem = fmt::format("{}\nended with {}:\n{}", command, run.status, tail(run.out));
      break;
    }
    r.last = parse_json<Json>(read_whole_file(record.path()), "record of " + command, kOwnJson);
    seconds.push_back(r.last.at("step_seconds").at("mean").get<double>());
  }
  if (r.problem.empty()) r.seconds = spread_of(seconds);
  return r;
}

std::string cell(double x, const char* form) { return std::isnan(x) ? "-" : fmt::format(fmt::runtime(form), x); }

const SuiteReference* reference_of(const std::string& name) {
  for (const SuiteReference& r : suite_references())
    if (r.name == name) return &r;
  return nullptr;
}

std::string line_of(const CaseResult& r, double speed_up) {
  const SuiteReference* ref = reference_of(r.c.name);
  const auto published = [&](double sequences, double tflops) {
    return ref == nullptr ? "-" : fmt::format("{:.2f} ({:.2f})", sequences, tflops);
  };
  return fmt::format("{:<26} {:>10} {:>11.2f} {:>9.2f} {:>8} {:>8} {:>8}   {:>16} {:>16}\n", r.c.name,
                     format_count(r.c.tokens() / r.seconds.median), r.sequences(), r.tflops(),
                     cell(100 * r.figure("mfu"), "{:.1f}"), cell(100 * r.figure("hfu"), "{:.1f}"),
                     cell(speed_up, "{:.2f}"),
                     published(ref ? ref->megatron_sequences : 0, ref ? ref->megatron_tflops : 0),
                     published(ref ? ref->oneflow_sequences : 0, ref ? ref->oneflow_tflops : 0));
}

Json json_of(const CaseResult& r, double speed_up, bool tiny) {
  const auto or_null = [](double x) { return std::isfinite(x) ? Json(x) : Json(); };
  Json j{{"case", r.c.name}, {"tiny", tiny}, {"devices", r.c.devices()}, {"flags", r.c.flags()}};
  if (!r.problem.empty()) {
    j["problem"] = r.problem;
    return j;
  }
  j["step_seconds"] = {{"median", r.seconds.median}, {"p10", r.seconds.p10}, {"p90", r.seconds.p90}};
  j["tokens_per_second"] = r.c.tokens() / r.seconds.median;
  j["sequences_per_second"] = r.sequences();
  j["tflops_hw_full_nc_per_device"] = r.tflops();
  j["mfu"] = or_null(r.figure("mfu")), j["mfu_full"] = or_null(r.figure("mfu_full")),
  j["hfu"] = or_null(r.figure("hfu"));
  j["speed_up"] = or_null(speed_up);
  if (const SuiteReference* ref = reference_of(r.c.name))
    j["published"] = {{"megatron_sequences_per_second", ref->megatron_sequences},
                      {"megatron_tflops", ref->megatron_tflops},
                      {"oneflow_sequences_per_second", ref->oneflow_sequences},
                      {"oneflow_tflops", ref->oneflow_tflops}};
  return j;
}

}  // namespace

Exit run_bench_suite(const Command& command) {
  const auto& a = command.get<SuiteArgs>();
  if (!a.out.empty()) require_writable(a.out);
  const SuiteMachine machine = this_machine(a);
  const bool tiny = a.scale == "tiny" || (a.scale == "auto" && machine.cpu);
  std::vector<SuiteCase> cases;
  for (const std::string& name : a.cases) cases.push_back(parse_suite_case(name, tiny));
  for (const SuiteReference& r : suite_references())
    if (a.cases.empty())
      if (SuiteCase c = parse_suite_case(r.name, tiny); c.devices() <= machine.devices) cases.push_back(std::move(c));
  write_out(fmt::format(
      "DLPerf's GPT cases{}, median of {} runs of {} steps after {}\n"
      "TFLOP/s of a device by 96 B s L h^2 (1 + s/6h + V/16Lh): full recomputation, no causal half (hw-full-nc, as "
      "DLPerf); MFU counts causal attention half and no recomputation, HFU recomputation too\n"
      "published: sequences/s (TFLOP/s) on V100-SXM2-16GB, 8 per node\n\n"
      "{:<26} {:>10} {:>11} {:>9} {:>8} {:>8} {:>8}   {:>16} {:>16}\n",
      tiny ? ", TINY: an eighth of the width, a quarter of the layers, 128 tokens" : "", a.runs, a.steps, a.warmup,
      "case", "tokens/s", "sequences/s", "TFLOP/s", "MFU %", "HFU %", "speed-up", "Megatron-LM", "OneFlow"));
  flush_out();
  std::map<std::pair<int64_t, int64_t>, double> alone;  // tokens/s of one device by model
  Json all = Json::array();
  bool failed = false;
  for (const SuiteCase& c : cases) {
    const CaseResult r = run_case(c, a, machine);
    double speed_up = kUnknownFigure;
    if (!r.problem.empty()) {
      failed = true;
      write_out(fmt::format("{:<26} {}\n", c.name, r.problem));
    } else {
      const double rate = c.tokens() / r.seconds.median;
      if (c.devices() == 1) alone[{c.hidden, c.layers}] = rate;
      if (const auto one = alone.find({c.hidden, c.layers}); one != alone.end()) speed_up = rate / one->second;
      write_out(line_of(r, speed_up));
    }
    flush_out();
    all.push_back(json_of(r, speed_up, tiny));
  }
  if (!a.out.empty()) write_json_record(Json{{"suite", "dlperf"}, {"cases", all}}.dump(), a.out);
  return failed ? Exit::kUsage : Exit::kOk;
}

}  // namespace gt
