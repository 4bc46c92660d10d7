// gpttrain bench: training throughput of a config on synthetic tokens. Method: warm-up steps, then each step is timed
// and medians are reported, relative to data-sheet peaks and the roofline. Includes all of a training step (norm,
// clipping, optimizer), excludes files and logs.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "data/samples/loader.h"
#include "kernels/core/host.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/gemm_plans.h"
#include "launch/engine/rank_device.h"
#include "launch/options/output.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/bench/bench_history.h"
#include "launch/tools/bench/bench_record.h"
#include "launch/tools/bench/subcommands.h"
#include "launch/train/training_data.h"

namespace gt {
namespace {

// Length of the measurement. The default depends on the device: a GPU's first steps build plans and graphs, and the
// spread of a short run means little.
struct Length {
  int64_t warmup, steps;
  double seconds;  // minimum, in addition to steps
  Length(const BenchArgs& args, DeviceKind kind) {
    const bool cpu = kind == DeviceKind::kCpu;
    warmup = args.warmup >= 0 ? args.warmup : cpu ? 5 : 20;
    steps = args.steps > 0 ? args.steps : cpu ? 10 : 50;
    seconds = args.steps > 0 ? 0 : 20;
  }
};

Exit bench_rank(const Config& c, const BenchArgs& args, const std::string& command, GroupFactory& factory) {
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
  const Length length(args, backend.kind);
  std::vector<double> steps, updates, streams;
  double spent = 0, waited = 0;
  BenchRecord record;
  ConditionsWatch watch(backend, device.index());
  {
    Engine engine(options, mesh, backend, stream, plan);
    engine.init_weights();
    const auto data = open_dataset({.sources = {{.path = "mock"}}, .seq = c.model.seq, .vocab = c.model.vocab});
    Loader loader(*data, training_loader(c, mesh), stream.device, *backend.device, stream);
    const bool asynchronous = is_asynchronous(*backend.device);
    mesh.world().barrier();
    double before = now();  // end to end: an update may still run after its step's results are available
    for (int64_t k = -length.warmup;; ++k) {
      if (k == 0) {
        waited = loader.wait_seconds();
        watch.start();
      }
      const bool last = mesh.rank() == 0 && k + 1 >= length.steps && spent >= length.seconds;
      const StepResult r = engine.step(loader.next(), c.train.global_batch * c.model.seq, {.stop = last});
      const double begin = std::exchange(before, now());
      if (k < 0) continue;
      steps.push_back(before - begin);
      spent += steps.back();
      streams.push_back(r.stream_seconds);
      updates.push_back(r.times.longest()[kOptimizerTime]);
      record.busy += r.busy_seconds;
      record.neighbours += r.wait_seconds;
      record.exposed_comm += asynchronous ? BenchRecord::kNotMeasured : r.times.mean_exposed();
      record.bubble += std::max(0., steps.back() - r.times.mean_busy());
      if (r.stop) break;
    }
    watch.stop();
    record.data_wait = loader.wait_seconds() - waited;
    for (double* share : {&record.busy, &record.neighbours, &record.exposed_comm, &record.bubble, &record.data_wait})
      *share /= spent;
    record.planned = plan.memory;
    record.measured = engine.measured_plan().memory;
    if (backend.replays) record.graphs = engine.replays();
  }
  std::vector<int> everyone(static_cast<size_t>(factory.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  record.conditions = gather_conditions(*factory.make(everyone), summary_of(watch.samples()));
  if (mesh.rank() == 0) {
    record.conditions_why = watch.why();
    record.config_json = config_json(c);
    record.device = backend.device->describe(device.index());
    record.shape = mesh.shape();
    record.threads = threads;
    record.sharers = device.sharers();
    record.parameters = describe(options.model).parameters();
    record.sequences = c.train.global_batch;
    record.seq = c.model.seq;
    record.warmup = length.warmup;
    record.steps = static_cast<int64_t>(steps.size());
    record.mean_step = spent / static_cast<double>(steps.size());
    record.step = spread_of(std::move(steps));
    record.update = spread_of(std::move(updates));
    if (is_asynchronous(*backend.device)) record.stream = spread_of(std::move(streams));
    record.flops = step_flops(options, mesh.shape().pp, c.train.global_batch * c.model.seq, c.model.seq, -1);
    record.fp8 = options.precision.fp8 != Fp8Recipe::kOff;
    record.ceilings = load_ceilings(record.device, options.precision.linear());
    if (record.ceilings) record.roof = step_roofline(options, mesh.shape(), *record.ceilings, device.sharers());
    record.command = command;
    fmt::print("{}", bench_text(record));
    const std::string json = bench_json(record);
    if (!args.out.empty()) write_json_record(json, args.out);
    if (!args.history.empty()) fmt::print("history   {}\n", add_to_history(args.history, json));
  }
  backend.device->close_stream(stream);
  return Exit::kOk;
}

}  // namespace

Exit run_bench(const Command& command) {
  const auto& args = command.get<BenchArgs>();
  const Config& config = command.loaded.config;
  const std::string words = fmt::format("gpttrain {}", fmt::join(command.words, " "));
  if (!args.out.empty()) require_writable(args.out);
  if (!args.history.empty()) require_history(args.history);
  return run_ranks(command, [&](GroupFactory& factory) { return bench_rank(config, args, words, factory); });
}

}  // namespace gt
