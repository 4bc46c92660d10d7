// gpttrain eval: loss, perplexity, bits per byte and accuracy of a checkpoint on a split, or its accuracy on
// multiple-choice tasks, on any layout. Losses are defined as in the trainer's evaluation (Trainer::evaluate): same
// samples, targets and summation order.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/world.h"
#include "data/samples/loader.h"
#include "launch/config/config_alias.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/work_progress.h"
#include "launch/options/near_path.h"
#include "launch/options/output.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/eval/choice_scores.h"
#include "launch/tools/eval/standard_error.h"
#include "launch/tools/eval/subcommands.h"
#include "launch/tools/eval/task_report.h"
#include "launch/tools/weights/checkpoint_config.h"
#include "launch/tools/weights/loaded_model.h"
#include "launch/train/kept_tokenizer.h"
#include "launch/train/training_data.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

std::unique_ptr<Dataset> open_split(DatasetOptions o, const Config& c, const std::string& split) {
  if (split == "valid") return open_validation_data(o, c);
  o.order = SampleOrder::kSequential;
  if (split == "test") o.whole = false, o.part = 2;
  return open_dataset(o);
}

// Sums of one microbatch of an evaluation: an independent sample of its standard errors.
struct MicrobatchSums {
  LossSums loss;
  LossCounts counts;
  double bytes = 0;
};

struct Sum {
  LossSums loss;
  LossCounts counts;
  std::vector<MicrobatchSums> parts;
};

// Counts targets of microbatches and the text that they stand for, on the ranks that hold them.
class TargetText {
 public:
  // samples: of the evaluation; sequences beyond are padding.
  TargetText(LoadedModel& m, const std::optional<Tokenizer>& tokenizer, int64_t samples)
      : m_(m),
        samples_(samples),
        counts_(m.mesh->last_stage() && m.mesh->coord(Axis::kTp) == 0),
        host_(static_cast<size_t>(counts_ ? m.config.train.micro_batch * m.config.model.seq : 0), *m.backend->device) {
    if (!counts_ || !tokenizer) return;
    for (int32_t id = 0; id < tokenizer->vocab(); ++id) bytes_.push_back(tokenizer->text_bytes(id));
  }

  // Collective. Sets the counts of microbatch k of data-parallel rank d, to[k dp + d].
  void count(std::span<const MicroBatch> batch, std::span<MicrobatchSums> to) {
    const auto dp = static_cast<size_t>(m_.mesh->size(Axis::kDp)), d = static_cast<size_t>(m_.mesh->coord(Axis::kDp));
    const size_t n = batch.size() * dp;
    std::vector<int64_t> counts(3 * n);
    for (size_t k = 0; counts_ && k < batch.size(); ++k) {
      const auto [tokens, bytes] = count(batch[k].targets);
      counts[k * dp + d] = tokens, counts[n + k * dp + d] = bytes;
      counts[2 * n + k * dp + d] = std::clamp<int64_t>(samples_ - batch[k].first_sample, 0, batch[k].batch);
    }
    counts = sum_over(m_.mesh->world(), std::move(counts));
    for (size_t i = 0; i < n; ++i) {
      to[i].counts = {counts[i], counts[2 * n + i] * batch.front().seq, counts[2 * n + i]};
      to[i].bytes = static_cast<double>(counts[n + i]);
    }
  }

 private:
  // Targets that carry loss, and bytes of text if there is a tokenizer.
  std::pair<int64_t, int64_t> count(Tensor targets) {
    m_.backend->device->copy(host_.data(), targets.data, targets.bytes(), m_.stream);
    m_.backend->device->synchronize(m_.stream);
    std::pair<int64_t, int64_t> sum;
    for (const int32_t id : std::span(host_.data(), static_cast<size_t>(targets.numel()))) {
      if (id < 0) continue;
      ++sum.first;
      if (static_cast<size_t>(id) < bytes_.size()) sum.second += bytes_[static_cast<size_t>(id)];
    }
    return sum;
  }

  LoadedModel& m_;
  const int64_t samples_;
  const bool counts_;
  HostArray<int32_t> host_;
  std::vector<int64_t> bytes_;  // by token id; empty: no tokenizer
};

// Sums losses of `samples` sequences in the trainer's order: within a global batch first, then over batches.
Sum evaluate(LoadedModel& m, Loader& loader, int64_t global_batch, int64_t samples,
             const std::optional<Tokenizer>& tokenizer) {
  Sum sum;
  WorkProgress progress(samples, "sequences");
  LossSums of_batch;
  TargetText text(m, tokenizer, samples);
  int64_t done = 0, shown = 0;
  for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) {
    of_batch += m.engine->evaluate(batch);
    const size_t before = sum.parts.size();
    for (const LossSums& part : m.engine->evaluated()) sum.parts.push_back({.loss = part});
    text.count(batch, std::span(sum.parts).subspan(before));
    for (size_t i = before; i < sum.parts.size(); ++i) sum.counts += sum.parts[i].counts;
    const int64_t now = std::min(loader.consumed(), samples);
    if (m.mesh->rank() == 0) progress.add(now - std::exchange(shown, now));
    if (loader.consumed() / global_batch == done) continue;
    done = loader.consumed() / global_batch;
    sum.loss += std::exchange(of_batch, {});
  }
  sum.loss += of_batch;
  return sum;
}

// Losses with what follows from that of tokens. NaN: unknown.
struct SplitResult {
  std::vector<LossTerm> losses;
  MeanLoss mean;
  LossCounts counts;
  std::vector<double> loss_error, accuracy_error;  // standard errors of `mean`
  double bytes = 0, perplexity = 0, bits_per_byte = kUnknown, bits_error = kUnknown;
  int64_t count(size_t i) const { return counts.of(losses[i].divisor); }
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
};

SplitResult result_of(const Sum& sum, const std::vector<LossTerm>& losses, bool text) {
  // Standard error of the sum of one value of the microbatches over the sum of another.
  const auto error = [&](auto of, auto over) {
    std::vector<double> x, y;
    for (const MicrobatchSums& p : sum.parts) x.push_back(of(p)), y.push_back(over(p));
    return ratio_standard_error(x, y);
  };
  SplitResult r{.losses = losses, .mean = mean_loss(losses, sum.loss, sum.counts), .counts = sum.counts};
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto count = [&](const MicrobatchSums& p) { return static_cast<double>(p.counts.of(losses[i].divisor)); };
    r.loss_error.push_back(losses[i].weight * error([&](auto& p) { return p.loss.sums[i]; }, count));
    r.accuracy_error.push_back(error([&](auto& p) { return p.loss.hits[i]; }, count));
  }
  r.perplexity = std::exp(std::min(20.0, r.mean.parts[0]));
  for (const MicrobatchSums& p : sum.parts) r.bytes += p.bytes;
  if (!text || r.bytes == 0) return r;
  r.bits_per_byte = sum.loss.sums[0] / r.bytes / std::log(2.);
  r.bits_error = error([](auto& p) { return p.loss.sums[0]; }, [](auto& p) { return p.bytes; }) / std::log(2.);
  return r;
}

std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(); }

Json json_of(const SplitResult& r, const EvalArgs& args, const std::string& source, const std::string& step_dir) {
  Json j{{"checkpoint", step_dir},
         {"split", args.split},
         {"data", source},
         {"tokens", r.counts.targets},
         {"bytes", std::isnan(r.bits_per_byte) ? Json() : Json(static_cast<int64_t>(r.bytes))},
         {"loss", number(r.mean.parts[0])},
         {"loss_stderr", number(r.loss_error[0])},
         {"perplexity", number(r.perplexity)},
         {"perplexity_stderr", number(r.perplexity * r.loss_error[0])},
         {"bits_per_byte", number(r.bits_per_byte)},
         {"bits_per_byte_stderr", number(r.bits_error)},
         {"accuracy", number(r.mean.accuracy[0])},
         {"accuracy_stderr", number(r.accuracy_error[0])}};
  for (size_t i = 1; i < r.losses.size(); ++i) {
    const std::string& name = r.losses[i].name;
    if (r.losses[i].hits) j[name + "s"] = r.count(i);
    j[name + "_loss"] = number(r.mean.parts[i]), j[name + "_loss_stderr"] = number(r.loss_error[i]);
    if (!r.losses[i].hits) continue;
    j[name + "_accuracy"] = number(r.mean.accuracy[i]), j[name + "_accuracy_stderr"] = number(r.accuracy_error[i]);
  }
  return j;
}

std::string text_of(const SplitResult& r, double seconds) {
  std::string others;
  for (size_t i = 1; i < r.losses.size(); ++i) {
    others += fmt::format("  {} loss {:.6f}", r.losses[i].name, r.mean.parts[i]);
    if (r.losses[i].hits)
      others +=
          fmt::format("  accuracy {:.6f} ({} {}s)", r.mean.accuracy[i], format_thousands(r.count(i)), r.losses[i].name);
  }
  if (!others.empty()) others += fmt::format("  sum {:.6f}", r.mean.sum());
  const std::string bits = std::isnan(r.bits_per_byte) ? "" : fmt::format("  bits per byte {:.6f}", r.bits_per_byte);
  return fmt::format("loss {:.6f}  perplexity {:.3f}  accuracy {:.6f}{}  ({} tokens, {}){}\n", r.mean.parts[0],
                     r.perplexity, r.mean.accuracy[0], bits, format_thousands(r.counts.targets),
                     format_duration(seconds), others);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The tokenizer of the data, for bits per byte: none for masked language models, whose targets are not text.
std::optional<Tokenizer> text_tokenizer(const Config& c, const std::string& step_dir) {
  if (c.model.predicts_pairs()) return std::nullopt;
  return c.data.tokenizer.empty() ? kept_tokenizer(step_dir) : std::optional(Tokenizer::load(c.data.tokenizer));
}

Exit eval_split(const ModelSource& source, const EvalArgs& args, GroupFactory& factory) {
  const auto m = load_model(source, factory);
  const Config& c = m->config;
  std::unique_ptr<Dataset> data;
  const std::vector<DataSource>& sources = args.split == "valid" && !c.data.valid.empty() ? c.data.valid : c.data.train;
  std::unique_ptr<Loader> loader;
  std::optional<Tokenizer> tokenizer;
  int64_t samples = 0;
  agree(m->mesh->world(), [&] {
    GT_REQUIRE(!sources.empty(), Exit::kUsage, "--split ", args.split, ": no data is given for it; give --data.",
               args.split == "valid" ? "valid" : "train", " PREFIX");
    GT_REQUIRE(sources.front().path != "mock" || args.steps > 0, Exit::kUsage, "--split ", args.split,
               ": mock data have no end; give --steps, the number of global batches");
    DatasetOptions options = training_data(c, factory.local_rank() == 0);
    options.split_tokens = true;  // as in a run that evaluates
    data = open_split(options, c, args.split);
    LoaderConfig l = training_loader(c, *m->mesh);
    l.total_samples = samples = args.steps > 0 ? args.steps * source.global_batch : data->size();
    loader = std::make_unique<Loader>(*data, l, m->stream.device(), *m->backend->device, m->stream);
    tokenizer = text_tokenizer(c, m->step_dir);
  });
  const auto begin = std::chrono::steady_clock::now();
  const SplitResult r = result_of(evaluate(*m, *loader, source.global_batch, samples, tokenizer),
                                  m->engine->spec().losses, tokenizer && sources.front().path != "mock");
  if (m->mesh->rank() != 0) return Exit::kOk;
  const std::string batches = args.steps > 0 ? fmt::format("{} global batch{} of {}", args.steps,
                                                           args.steps == 1 ? "" : "es", source.global_batch)
                                             : "the whole split";
  fmt::print("{} split of {}, {}, checkpoint {}\n{}", args.split, sources.front().path, batches, m->step_dir,
             text_of(r, seconds_since(begin)));
  if (!args.out.empty()) write_json_record(dump(json_of(r, args, sources.front().path, m->step_dir)), args.out);
  return Exit::kOk;
}

// Every rank gets the tokens that rank 0 read.
std::vector<ChoiceTokens> share(ProcessGroup& world, const std::vector<ChoiceTokens>& sequences) {
  std::vector<int32_t> words;
  for (const ChoiceTokens& s : sequences) {
    words.push_back(static_cast<int32_t>(s.ids.size())), words.push_back(static_cast<int32_t>(s.scored));
    words.insert(words.end(), s.ids.begin(), s.ids.end());
  }
  const std::string bytes =
      broadcast_bytes(world, {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int32_t)}, 0);
  words.resize(bytes.size() / sizeof(int32_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::vector<ChoiceTokens> out;
  for (size_t at = 0; at < words.size();) {
    const int32_t n = words[at], scored = words[at + 1];
    const auto first = words.begin() + static_cast<ptrdiff_t>(at) + 2;
    out.push_back({{first, first + n}, scored});
    at += 2 + static_cast<size_t>(n);
  }
  return out;
}

Exit eval_tasks(const ModelSource& source, const EvalArgs& args, GroupFactory& factory) {
  const auto m = load_model(source, factory);
  const Config& c = m->config;
  ProcessGroup& world = m->mesh->world();
  std::vector<ChoiceQuestion> questions;
  std::vector<ChoiceTokens> sequences;
  std::string begins;
  agree(world, [&] {
    if (world.rank() != 0) return;
    const Tokenizer t = model_tokenizer(c.data.tokenizer, "--data.tokenizer", m->step_dir, c.model.vocab);
    questions = read_questions(args.tasks);
    if (!c.data.no_bos) begins = t.names_of(t.before_text());
    for (const ChoiceQuestion& q : questions)
      for (ChoiceTokens& s : encode_choices(q, t, c.model.seq, !c.data.no_bos)) sequences.push_back(std::move(s));
  });
  sequences = share(world, sequences);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<ChoiceScore> scores = score_choices(*m, sequences);
  if (world.rank() != 0) return Exit::kOk;
  const TaskReport report(questions, sequences, scores);
  fmt::print("{} questions, checkpoint {}, {}{}\n{}", format_thousands(static_cast<int64_t>(questions.size())),
             m->step_dir, begins.empty() ? "" : "contexts begin with " + begins + ", ",
             format_duration(seconds_since(begin)), report.text());
  if (!args.out.empty()) write_json_record(report.json(m->step_dir, begins), args.out);
  return Exit::kOk;
}

// Rejects options that would be ignored. `flags`: of the config, as typed.
void require_effect(const EvalArgs& args, const std::vector<std::string>& flags) {
  if (args.tasks.empty()) return;
  GT_REQUIRE(args.split == EvalArgs().split && args.steps == 0, Exit::kUsage,
             "--tasks: questions are not a split; omit --split and --steps");
  static const std::set<std::string> kOfSplits{"data.train",        "data.valid",         "data.split",
                                               "data.pack",         "data.eod_mask_loss", "train.micro_batch",
                                               "train.global_batch"};
  for (const std::string& word : flags) {
    if (word.rfind("--", 0) != 0) continue;
    const std::string name = word.substr(2, word.find('=') - 2);
    const Alias* alias = find_alias(name);
    GT_REQUIRE(kOfSplits.count(alias != nullptr ? alias->key : name) == 0, Exit::kUsage, "--", name,
               ": has no effect on --tasks, which takes its texts from FILE, one sequence a microbatch");
  }
}

}  // namespace

Exit run_eval(const Command& command) {
  const auto& args = command.get<EvalArgs>();
  Command c = command;
  require_path("--load", args.load);
  require_effect(args, command.config_flags);
  if (!args.out.empty()) require_writable(args.out);
  std::vector<std::string> flags = command.config_flags;
  Vfs vfs;
  if (args.tasks.empty()) flags = flags_with_data(StepReader(vfs, resolve_step(args.load)), flags, command.words);
  ModelSource source = find_model(args.load, flags, InferencePrecision::kAsTrained, command.env);
  c.loaded = source.loaded;
  if (args.tasks.empty()) return run_ranks(c, [&](GroupFactory& factory) { return eval_split(source, args, factory); });
  GT_REQUIRE(!source.loaded.config.model.predicts_pairs(), Exit::kUsage, args.load, ": a ",
             source.loaded.config.model.arch, " model sees tokens on both sides and gives texts no probability; ",
             "omit --tasks to evaluate a split");
  use_single_sequences(source);
  return run_ranks(c, [&](GroupFactory& factory) { return eval_tasks(source, args, factory); });
}

}  // namespace gt
