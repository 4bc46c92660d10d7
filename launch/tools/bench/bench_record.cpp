#include "launch/tools/bench/bench_record.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "launch/observe/banner.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/version.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(); }

Json json_of(const Spread& s) {
  return {{"median", number(s.median)}, {"p10", number(s.p10)}, {"p90", number(s.p90)}, {"mad", number(s.mad)}};
}

Json with_mean(Json spread, double mean) {
  spread["mean"] = number(mean);
  return spread;
}

Json json_of(const MemoryReport& m) {
  return {{"weights", m.weights},         {"gradients", m.gradients}, {"optimizer", m.optimizer},
          {"activations", m.activations}, {"buffers", m.buffers},     {"copies", m.copies},
          {"workspaces", m.workspaces},   {"total", m.total()}};
}

Json json_of(const PeakRates& c) {
  Json attention = Json::array();
  for (const AttentionCeiling& a : c.attention)
    attention.push_back(
        {{"head_dim", a.head_dim}, {"seq", a.seq}, {"forward_flops", a.forward}, {"backward_flops", a.backward}});
  return {{"gemm_flops", c.gemm},
          {"gemm_fp8_flops", number(c.gemm_fp8)},
          {"copy_bytes", c.copy},
          {"dtype", c.dtype},
          {"attention", attention}};
}

Json json_of(const StepRoofline& roof) {
  Json classes = Json::object();
  const RankRoofline& rank = roof.ranks[roof.slowest];
  for (size_t k = 0; k < rank.fused_seconds.size(); ++k)
    if (rank.called_seconds[k] > 0)
      classes[name_of(static_cast<OpClass>(k))] = {{"fused", number(rank.fused_seconds[k])},
                                                   {"called", number(rank.called_seconds[k])}};
  return {{"r", number(roof.r)}, {"r0", number(roof.r0)}, {"called", number(roof.called)}, {"seconds", classes}};
}

std::string utc_now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Json libraries_json() {
  Json out = Json::object();
  for (const auto& [name, version] : library_versions()) out[name] = version;
  return out;
}

constexpr double kHostBound = 0.02;  // smaller idle fractions are not reported

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string ceilings_lines(const BenchRecord& b) {
  if (!b.ceilings) return "";
  std::string out = fmt::format("ceiling   {} of the measured GEMM peak of {}\n",
                                percent(b.of_peak(b.flops.causal, b.ceilings->gemm)), flops_text(b.ceilings->gemm));
  if (std::isnan(b.sol0())) return out;
  if (std::isnan(b.sol()))
    return out +
           fmt::format("roofline  sol0 {} (R0 {:.4f} s; gpttrain bench ceilings with this config adds attention)\n",
                       percent(b.sol0()), b.roof->r0);
  return out + fmt::format("roofline  sol {}   sol0 {}   (R {:.4f} s, R0 {:.4f} s; ops as they are called {:.4f} s)\n",
                           percent(b.sol()), percent(b.sol0()), b.roof->r, b.roof->r0, b.roof->called);
}

}  // namespace

std::string bench_text(const BenchRecord& b) {
  std::string out = fmt::format(
      "{} parameters, tp {} pp {} dp {}, {} x {} tokens a step, {} thread(s) a rank, {}\n"
      "step      median {:.4f} s   p10 {:.4f}   p90 {:.4f}   mad {:.4f}   ({} steps after {})\n"
      "speed     {} tokens/s   {:.1f} GFLOP/s a rank\n",
      format_thousands(b.parameters), b.shape.tp, b.shape.pp, b.shape.dp, b.sequences, b.seq, b.threads, b.device,
      b.step.median, b.step.p10, b.step.p90, b.step.mad, b.steps, b.warmup, format_count(b.tokens() / b.step.median),
      b.flops.causal / b.step.median * 1e-9 / b.shape.world());
  if (b.stream)
    out +=
        fmt::format("device    median {:.4f} s a step   p10 {:.4f}   p90 {:.4f}{}\n", b.stream->median, b.stream->p10,
                    b.stream->p90,
                    b.host_bound() > kHostBound ? fmt::format("   host-bound: idle {}", percent(b.host_bound())) : "");
  if (const double peak = peak_bf16_flops(b.device); !std::isnan(peak)) {
    out += fmt::format("mfu       {}   mfu_full {}   hfu {}   (of {} a device)\n",
                       percent(b.of_peak(b.flops.causal, peak)), percent(b.of_peak(b.flops.full, peak)),
                       percent(b.of_peak(b.flops.hardware, peak)), flops_text(peak));
    if (const double fp8 = peak_fp8_flops(b.device); b.fp8 && !std::isnan(fp8))
      out += fmt::format("mfu_fp8   {}   (of {})\n", percent(b.of_peak(b.flops.causal, fp8)), flops_text(fp8));
  }
  out += ceilings_lines(b);
  out += fmt::format(
      "update    median {:.1f} ms   p10 {:.1f}   p90 {:.1f}   (the optimizer on the slowest rank, without norms)\n",
      1e3 * b.update.median, 1e3 * b.update.p10, 1e3 * b.update.p90);
  out += fmt::format("rank 0    {} in compute actions, {} waiting for neighbours, {} for data\n", percent(b.busy),
                     percent(b.neighbours), percent(b.data_wait));
  if (b.graphs) out += fmt::format("graphs    {}\n", graphs_line(*b.graphs));
  out += conditions_lines(b.conditions, 10);
  return out +
         fmt::format("memory    planned  {}\n          measured {}\n", memory_line(b.planned), memory_line(b.measured));
}

std::string conditions_lines(std::span<const ConditionsSummary> ranks, int column) {
  std::string out;
  const auto add = [&](const char* label, const std::string& text) {
    if (!text.empty()) out += block({{fmt::format("{:<{}}", label, column - 2), text}});
  };
  add("clocks", conditions_text(ranks, "rank"));
  if (const std::string limits = limits_text(ranks, "rank"); !limits.empty())
    add("warning", "clocks were throttled: " + limits + "; the figures are of the device in that state");
  return out;
}

std::string bench_json(const BenchRecord& b) {
  const double peak = peak_bf16_flops(b.device);
  Json j{{"time", utc_now()},
         {"version", program_version()},
         {"git", git_hash()},
         {"libraries", libraries_json()},
         {"command", b.command},
         {"device", b.device},
         {"isa", cpu_isa()},
         {"threads", b.threads},
         {"ranks", b.shape.world()},
         {"ranks_per_device", b.sharers},
         {"layout", {{"tp", b.shape.tp}, {"pp", b.shape.pp}, {"dp", b.shape.dp}}},
         {"parameters", b.parameters},
         {"sequences", b.sequences},
         {"seq", b.seq},
         {"warmup", b.warmup},
         {"steps", b.steps},
         {"step_seconds", with_mean(json_of(b.step), b.mean_step)},
         {"stream_seconds", b.stream ? json_of(*b.stream) : Json()},
         {"host_bound", b.stream ? number(b.host_bound()) : Json()},
         {"optimizer_seconds", json_of(b.update)},
         {"tokens_per_second", number(b.tokens() / b.step.median)},
         {"flops_causal", b.flops.causal},
         {"mfu", number(b.of_peak(b.flops.causal, peak))},
         {"mfu_full", number(b.of_peak(b.flops.full, peak))},
         {"hfu", number(b.of_peak(b.flops.hardware, peak))}};
  if (b.fp8) j["mfu_fp8"] = number(b.of_peak(b.flops.causal, peak_fp8_flops(b.device)));
  j["sol"] = number(b.sol());
  j["sol0"] = number(b.sol0());
  j["ceilings"] = b.ceilings ? json_of(*b.ceilings) : Json();
  j["roofline_seconds"] = b.roof ? json_of(*b.roof) : Json();
  j["busy"] = number(b.busy);
  j["pipeline_wait"] = number(b.neighbours);
  j["data_wait"] = number(b.data_wait);
  j["exposed_comm"] = number(b.exposed_comm);
  j["bubble"] = number(b.bubble);
  j["memory"] = {{"planned", json_of(b.planned)}, {"measured", json_of(b.measured)}};
  j["graphs"] = b.graphs
                    ? Json{{"replayed", b.graphs->replayed}, {"first", b.graphs->first}, {"eager", b.graphs->eager}}
                    : Json();
  j["conditions"] = parse_json<Json>(conditions_json(b.conditions, b.conditions_why, "rank"), "conditions", kOwnJson);
  j["config"] = parse_json<Json>(b.config_json, "config", kOwnJson);
  return j.dump();
}

}  // namespace gt
