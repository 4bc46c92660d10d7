// gpttrain bench data: rate at which a layout's loaders deliver microbatches to their devices without computation,
// which shows whether a step can become data-bound. Same files, order, ranks and threads as in training.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/samples/loader.h"
#include "kernels/core/host.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/output.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/bench/bench_record.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/subcommands.h"
#include "launch/train/training_data.h"

namespace gt {
namespace {

constexpr double kEnoughSeconds = 2;
constexpr int64_t kLeastSteps = 20;

Exit data_rank(const LoadedConfig& loaded, const DataBenchArgs& args, const std::string& command,
               GroupFactory& factory) {
  const Config& c = loaded.config;
  RankDevice device(c, factory);
  const Mesh mesh(mesh_shape(c), device.groups());
  const Backend& backend = device.backend();
  const int threads = threads_per_rank(c, factory.local_size());
  const Stream stream = backend.device->open_stream(device.index(), threads);
  const double opening = now();
  const auto data = open_training_data(training_data(c, factory.local_rank() == 0), loaded);
  const double opened = slowest(mesh.world(), now() - opening);
  std::vector<double> seconds;
  double first = 0;
  {
    const double begin = now();
    Loader loader(*data, training_loader(c, mesh), stream.device, *backend.device, stream);
    loader.next();
    backend.device->synchronize(stream);
    first = slowest(mesh.world(), now() - begin);
    double spent = 0;
    const int64_t least = args.steps > 0 ? args.steps : kLeastSteps;
    while (static_cast<int64_t>(seconds.size()) < least || (args.steps == 0 && spent < kEnoughSeconds)) {
      const double start = now();
      loader.next();
      backend.device->synchronize(stream);
      seconds.push_back(slowest(mesh.world(), now() - start));
      spent += seconds.back();
    }
  }
  backend.device->close_stream(stream);
  if (mesh.rank() != 0) return Exit::kOk;
  const Spread step = spread_of(seconds);
  const double tokens = static_cast<double>(c.train.global_batch * c.model.seq);
  fmt::print(
      "{} x {} tokens a step, tp {} pp {} dp {}, from {}\n"
      "opened    {:.3f} s, the first step after {:.3f} s\n"
      "step      median {:.3f} ms   p10 {:.3f}   p90 {:.3f}   ({} steps, the slowest rank of each)\n"
      "speed     {} tokens/s: training slower than this is not data-bound\n",
      c.train.global_batch, c.model.seq, mesh.shape().tp, mesh.shape().pp, mesh.shape().dp, c.data.train.front().path,
      opened, first, 1e3 * step.median, 1e3 * step.p10, 1e3 * step.p90, seconds.size(),
      format_count(tokens / step.median));
  if (!args.out.empty())
    write_json_record(
        nlohmann::ordered_json{{"command", command},
                               {"opened_seconds", opened},
                               {"first_step_seconds", first},
                               {"steps", seconds.size()},
                               {"step_seconds", {{"median", step.median}, {"p10", step.p10}, {"p90", step.p90}}},
                               {"tokens_per_second", tokens / step.median}}
            .dump(),
        args.out);
  return Exit::kOk;
}

}  // namespace

Exit run_bench_data(const Command& command) {
  const auto& args = command.get<DataBenchArgs>();
  if (!args.out.empty()) require_writable(args.out);
  const std::string words = fmt::format("gpttrain {}", fmt::join(command.words, " "));
  return run_ranks(command, [&](GroupFactory& factory) { return data_rank(command.loaded, args, words, factory); });
}

}  // namespace gt
