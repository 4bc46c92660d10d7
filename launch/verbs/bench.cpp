// gpttrain bench: measured throughput of the given config on synthetic tokens, by one fixed method: warm-up steps, then
// each step timed; medians count. Everything of a training step is inside (norm, clipping, optimizer); files and logs
// are outside.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "data/loader.h"
#include "launch/logs/banner.h"
#include "launch/logs/progress.h"
#include "launch/logs/utilization.h"
#include "launch/ranks/ranks.h"
#include "launch/train/engine_options.h"
#include "launch/train/gemm_plans.h"
#include "launch/train/rank_device.h"
#include "launch/verbs/verbs.h"

namespace gt {
namespace {

struct Timings {
  std::vector<double> seconds;
  double at(double share) const {
    std::vector<double> v = seconds;
    std::sort(v.begin(), v.end());
    return v[static_cast<size_t>(share * static_cast<double>(v.size() - 1))];
  }
};

Exit bench_rank(const Config& c, const BenchArgs& args, GroupFactory& factory) {
  RankDevice device(c, factory);
  const Mesh mesh(mesh_shape(c), device.groups());
  const Backend& backend = device.backend();
  const int threads = threads_per_rank(c, factory.local_size());
  set_cpu_may_spin(ranks_may_spin(c, factory.local_size(), threads));
  EngineOptions options = engine_options(c, threads);
  options.evaluates = false;
  const EnginePlan plan = plan_memory(options, mesh.shape(), mesh.rank(), backend);
  const Stream stream = backend.device->open_stream(device.index(), threads);
  settle_gemm_plans(c, options, mesh, backend, device.index(), stream, "");
  Timings t, update;
  double wait = 0, busy = 0;
  {
    Engine engine(options, mesh, backend, stream, plan);
    engine.init_weights();
    const auto data = open_dataset({.sources = {{.path = "mock"}}, .seq = c.model.seq, .vocab = c.model.vocab});
    LoaderConfig l;
    l.seq = c.model.seq;
    l.micro_batch = c.train.micro_batch;
    l.microbatches = static_cast<int>(c.train.grad_accum);
    l.dp_rank = mesh.coord(Axis::kDp);
    l.dp_size = mesh.size(Axis::kDp);
    Loader loader(*data, l, stream.device, *backend.device, stream);
    for (int64_t k = 0; k < args.warmup + args.steps; ++k) {
      mesh.world().barrier();
      const auto begin = std::chrono::steady_clock::now();
      const StepResult r = engine.step(loader.next(), c.train.global_batch * c.model.seq);
      if (k < args.warmup) continue;
      t.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      update.seconds.push_back(r.times.longest()[kOptimizerTime]);
      wait += r.wait_seconds;
      busy += r.busy_seconds;
    }
    if (mesh.rank() == 0) {
      const double median = t.at(0.5), tokens = static_cast<double>(c.train.global_batch * c.model.seq);
      const double flops = options.model.train_flops(c.train.global_batch * c.model.seq);
      fmt::print("{} parameters, tp {} pp {} dp {}, {} x {} tokens a step, {} thread(s) a rank, {}\n",
                 format_thousands(options.model.parameters()), mesh.shape().tp, mesh.shape().pp, mesh.shape().dp,
                 c.train.global_batch, c.model.seq, threads, backend.device->describe(device.index()));
      fmt::print("step      median {:.4f} s   p10 {:.4f}   p90 {:.4f}   ({} steps after {})\n", median, t.at(0.1),
                 t.at(0.9), args.steps, args.warmup);
      fmt::print("speed     {} tokens/s   {:.1f} GFLOP/s a rank\n", format_count(tokens / median),
                 flops / median * 1e-9 / mesh.shape().world());
      const StepFlops work = step_flops(options, mesh.shape().pp, c.train.global_batch * c.model.seq, c.model.seq, -1);
      const double devices = static_cast<double>(mesh.shape().world()) / device.sharers();
      const std::string name = backend.device->describe(device.index());
      const double peak = peak_bf16_flops(name) * devices * median;
      if (!std::isnan(peak))
        fmt::print("mfu       {:.1f} %   mfu_full {:.1f} %   hfu {:.1f} %   (of {} a device)\n", 100 * work.causal / peak,
                   100 * work.full / peak, 100 * work.hardware / peak, flops_text(peak_bf16_flops(name)));
      if (const auto ceilings = load_ceilings(name, options.precision.linear()))
        fmt::print("ceiling   {:.1f} % of the {} that products were measured to reach here\n",
                   100 * work.causal / (median * devices * ceilings->gemm), flops_text(ceilings->gemm));
      fmt::print("{:<9} median {:.1f} ms   p10 {:.1f}   p90 {:.1f}   (the update of the slowest rank, without norms)\n",
                 c.optim.type, 1e3 * update.at(0.5), 1e3 * update.at(0.1), 1e3 * update.at(0.9));
      fmt::print("rank 0    {:.1f} % in compute actions, {:.1f} % waiting for neighbours\n",
                 100 * busy / static_cast<double>(args.steps) / median,
                 100 * wait / static_cast<double>(args.steps) / median);
      if (backend.replays) fmt::print("graphs    {}\n", graphs_line(engine.replays()));
      fmt::print("memory    planned  {}\n          measured {}\n", memory_line(plan.memory),
                 memory_line(engine.measured_plan().memory));
    }
  }
  backend.device->close_stream(stream);
  return Exit::kOk;
}

}  // namespace

Exit run_bench(const Command& command) {
  const auto& args = command.get<BenchArgs>();
  const Config& config = command.loaded.config;
  return run_ranks(command, [&](GroupFactory& factory) { return bench_rank(config, args, factory); });
}

}  // namespace gt
