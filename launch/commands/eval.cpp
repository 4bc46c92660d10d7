// gpttrain eval: loss, perplexity and accuracy of a checkpoint on a split, on any layout. Same definition as the
// trainer's evaluation (Trainer::evaluate): same samples, targets and summation order.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "data/loader.h"
#include "launch/commands/checkpoint_config.h"
#include "launch/commands/loaded_model.h"
#include "launch/commands/subcommands.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/near_path.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/ranks.h"
#include "launch/train/training_data.h"

namespace gt {
namespace {

std::unique_ptr<Dataset> open_split(DatasetOptions o, const Config& c, const std::string& split) {
  if (split == "valid") return open_validation_data(o, c);
  o.order = SampleOrder::kSequential;
  if (split == "test") o.whole = false, o.part = 2;
  return open_dataset(o);
}

struct Sum {
  LossSums loss;
  TargetCounts targets;
};

// Sums losses in the trainer's order: within a global batch first, then over batches.
Sum evaluate(LoadedModel& m, Loader& loader, int64_t global_batch) {
  Sum sum;
  LossSums of_batch;
  int64_t done = 0;
  for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) {
    of_batch += m.engine->evaluate(batch);
    const TargetCounts n = target_counts(*m.mesh, loader);
    sum.targets.tokens += n.tokens, sum.targets.pairs += n.pairs;
    if (loader.consumed() / global_batch == done) continue;
    done = loader.consumed() / global_batch;
    sum.loss += std::exchange(of_batch, {});
  }
  sum.loss += of_batch;
  return sum;
}

Exit eval_rank(const ModelSource& source, const EvalArgs& args, GroupFactory& factory) {
  const auto m = load_model(source, factory);
  const Config& c = m->config;
  std::unique_ptr<Dataset> data;
  const std::vector<DataSource>& sources = args.split == "valid" && !c.data.valid.empty() ? c.data.valid : c.data.train;
  std::unique_ptr<Loader> loader;
  agree(m->mesh->world(), [&] {
    GT_REQUIRE(!sources.empty(), Exit::kUsage, "--split ", args.split, ": no data is given for it; give --data.",
               args.split == "valid" ? "valid" : "train", " PREFIX");
    DatasetOptions options = training_data(c, factory.local_rank() == 0);
    options.split_tokens = true;  // as in a run that evaluates
    data = open_split(options, c, args.split);
    LoaderConfig l = training_loader(c, *m->mesh);
    l.total_samples = args.steps > 0 ? args.steps * source.global_batch : data->size();
    loader = std::make_unique<Loader>(*data, l, m->stream.device(), *m->backend->device, m->stream);
  });
  const auto begin = std::chrono::steady_clock::now();
  const Sum sum = evaluate(*m, *loader, source.global_batch);
  if (m->mesh->rank() != 0) return Exit::kOk;
  const MeanLoss loss = mean_loss(sum.loss, sum.targets);
  const std::string of_pairs =
      sum.targets.pairs == 0 ? ""
                             : fmt::format("  pair loss {:.6f}  accuracy {:.6f} ({} pairs)  sum {:.6f}", loss.pairs,
                                           loss.pair_accuracy, format_thousands(sum.targets.pairs), loss.sum());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string batches = args.steps > 0 ? fmt::format("{} global batch{} of {}", args.steps,
                                                           args.steps == 1 ? "" : "es", source.global_batch)
                                             : "the whole split";
  fmt::print("{} split of {}, {}, checkpoint {}\nloss {:.6f}  perplexity {:.3f}  accuracy {:.6f}  ({} tokens, {}){}\n",
             args.split, sources.front().path, batches, m->step_dir, loss.tokens, std::exp(std::min(20.0, loss.tokens)),
             loss.token_accuracy, format_thousands(sum.targets.tokens), format_duration(seconds), of_pairs);
  return Exit::kOk;
}

}  // namespace

Exit run_eval(const Command& command) {
  const auto& args = command.get<EvalArgs>();
  Command c = command;
  require_path("--load", args.load);
  Vfs vfs;
  const std::vector<std::string> flags =
      flags_with_data(StepReader(vfs, resolve_step(args.load)), command.config_flags, command.words);
  const ModelSource source = find_model(args.load, flags, InferencePrecision::kAsTrained, command.env);
  c.loaded = source.loaded;
  return run_ranks(c, [&](GroupFactory& factory) { return eval_rank(source, args, factory); });
}

}  // namespace gt
