// gpttrain bench ops: every op of a step of the config, timed alone on the config's device. Prints time per call,
// achieved rates and their share of the ceilings, with totals by class beside the roofline.
// Calls are enqueued back to back and timed together, so the host time per call shows for ops that are faster than
// that. Weights are packed before timing; `gpttrain bench` times whole steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "launch/engine/engine_options.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/roofline.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/utilization.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/op_replay.h"
#include "launch/tools/bench/subcommands.h"
#include "parallel/comm/self_group.h"

namespace gt {
namespace {

constexpr double kBatchSeconds = 2e-3, kEnoughSeconds = 0.3;
constexpr size_t kLeastSamples = 3, kMostSamples = 15;
constexpr double kStale = 1.25;  // times the GEMM ceiling: what no shape or noise explains

// Seconds per call.
Spread time_call(const OpCall& call, const DeviceBench& bench, int64_t vocab) {
  const OpReplay replay(call, bench, vocab);
  const auto once_more = [&] { replay(); };
  bench.timed(once_more);  // warm-up: plans, packed weights, scratch
  const double once = bench.timed(once_more);
  const int batch = static_cast<int>(std::clamp(std::ceil(kBatchSeconds / std::max(once, 1e-7)), 1., 200.));
  std::vector<double> seconds;
  for (double spent = 0; seconds.size() < kLeastSamples || (spent < kEnoughSeconds && seconds.size() < kMostSamples);) {
    const double all = bench.timed([&] {
      for (int k = 0; k < batch; ++k) replay();
    });
    seconds.push_back(all / batch);
    spent += all;
  }
  return spread_of(seconds);
}

std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.0f} %", 100 * share) : "-"; }

struct OpsReport {
  explicit OpsReport(std::optional<PeakRates> c) : ceilings(std::move(c)) {
    fmt::print("{:<20} {:<24} {:<40} {:>6} {:>11} {:>6} {:>16} {:>8}\n", "op", "what", "shape", "calls", "us", "+-",
               "reaches", "ceiling");
  }
  void add(const OpCall& c, const Spread& s) {
    double bound = std::numeric_limits<double>::quiet_NaN();
    if (ceilings) {
      const CallBound b = call_bound(c, *ceilings, ceilings_cover_attention(c));
      bound = std::max(b.gemms, b.called);
    }
    if (ceilings && c.cost.kind == OpClass::kGemm)
      fastest = std::fmax(fastest, c.cost.flops / s.median / (c.cost.fp8 ? ceilings->gemm_fp8 : ceilings->gemm));
    const double all = static_cast<double>(c.calls) * s.median;
    measured[static_cast<size_t>(c.cost.kind)] += all;
    fmt::print("{:<20} {:<24} {:<40} {:>6} {:>11.1f} {:>6} {:>16} {:>8}\n", c.op, c.what, shape_text(c.args), c.calls,
               1e6 * s.median, percent(s.mad / s.median),
               c.cost.flops > 0 ? flops_text(c.cost.flops / s.median)
                                : fmt::format("{:.1f} GB/s", c.cost.bytes / s.median * 1e-9),
               percent(bound / s.median));
    std::fflush(stdout);
  }
  // Explains shares above 100 %.
  void notes(bool cpu, bool gemms_only) const {
    if (fastest > kStale)
      fmt::print(
          "\na GEMM reaches {:.2f} times its ceiling: the device was busy when that was measured; measure it again "
          "with gpttrain bench ceilings and this config\n",
          fastest);
    if (cpu && !gemms_only)
      fmt::print(
          "\nops on few bytes find them in a cache: their rates may exceed the memory's. sum_squares reads all "
          "gradients here;\nin a step with AMX it skips those that were squared while they were made\n");
  }
  void classes(const RankRoofline* roof, bool gemms_only) const {
    fmt::print("\n{:<14} {:>14} {:>16} {:>14}\n", "class", "ms, measured", "ms, at ceilings", "ms, fused");
    double all = 0;
    for (size_t k = 0; k < measured.size(); ++k) {
      if (measured[k] == 0) continue;
      all += measured[k];
      fmt::print("{:<14} {:>14.3f} {:>16} {:>14}\n", name_of(static_cast<OpClass>(k)), 1e3 * measured[k],
                 roof != nullptr ? fmt::format("{:.3f}", 1e3 * roof->called_seconds[k]) : "-",
                 roof != nullptr ? fmt::format("{:.3f}", 1e3 * roof->fused_seconds[k]) : "-");
    }
    if (gemms_only) return;
    const auto ms = [](double s) { return std::isnan(s) ? std::string("-") : fmt::format("{:.3f}", 1e3 * s); };
    fmt::print("{:<14} {:>14.3f} {:>16} {:>14}\n", "all ops", 1e3 * all, roof != nullptr ? ms(roof->called) : "-",
               roof != nullptr ? ms(roof->r) : "-");
  }

 private:
  bool ceilings_cover_attention(const OpCall& c) const {
    return c.cost.kind != OpClass::kAttention || !std::isnan(call_bound(c, *ceilings, true).gemms);
  }
  std::optional<PeakRates> ceilings;
  SecondsByClass measured{};
  double fastest = 0;  // GEMM, relative to its ceiling
};

}  // namespace

Exit run_bench_ops(const Command& command) {
  const bool gemms_only = command.get<BenchOpsArgs>().gemms;
  const Config& config = command.loaded.config;
  SelfFactory alone;
  RankDevice device(config, alone);
  const Backend& backend = device.backend();
  const MeshShape shape = mesh_shape(config);
  const int threads = threads_per_rank(config, 1);
  set_cpu_may_spin(ranks_may_spin(config, 1, threads));
  const EngineOptions options = engine_options(config, threads);
  const std::string name = backend.device->describe(device.index());
  const auto ceilings = load_ceilings(name, options.precision.linear());
  std::optional<StepRoofline> roof;
  if (ceilings) roof = step_roofline(options, shape, *ceilings);
  fmt::print("{}, {} thread(s); a step of {} microbatches of {} x {} tokens{}\n", name, threads, options.microbatches,
             options.micro_batch, options.model.seq,
             shape.world() > 1 ? fmt::format(", rank 0 of tp {} pp {} dp {}", shape.tp, shape.pp, shape.dp) : "");
  fmt::print("ceilings  {}\n\n",
             ceilings ? ceilings_text(*ceilings, config.model.head_width(), config.model.seq)
                      : "not measured on this device in this dtype: run gpttrain bench ceilings with this config");
  const DeviceBench bench(backend, device.index(), threads);
  OpsReport report(ceilings);
  for (const OpCall& c : by_class(step_ops(options, shape, 0)))
    if (!gemms_only || c.cost.kind == OpClass::kGemm) report.add(c, time_call(c, bench, options.model.vocab));
  report.classes(roof ? &roof->ranks[0] : nullptr, gemms_only);
  report.notes(backend.kind == DeviceKind::kCpu, gemms_only);
  return Exit::kOk;
}

}  // namespace gt
