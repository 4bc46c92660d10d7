// gpttrain generate: text from a checkpoint, written by whatever layout. gpttrain eval: loss and perplexity of a split.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "data/index_store.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "kernels/core/rng.h"
#include "kernels/core/sha256.h"
#include "launch/logs/progress.h"
#include "launch/verbs/loaded_model.h"
#include "launch/verbs/sampler.h"
#include "launch/verbs/verbs.h"

namespace gt {
namespace {

Tokenizer load_tokenizer(const std::string& given, const LoadedModel& model) {
  if (!given.empty()) return Tokenizer::load(given);
  const std::string copy = read_aux(model.step_dir, "tokenizer.model");
  GT_REQUIRE(!copy.empty(), Exit::kUsage, model.step_dir,
             ": holds no tokenizer; give the SentencePiece model of the run with --tokenizer");
  return Tokenizer::from_bytes(copy, model.step_dir + "/tokenizer.model");
}

// Next-token logits after a context, one forward pass of the whole model each.
class Predictor {
 public:
  explicit Predictor(LoadedModel& m)
      : m_(m),
        seq_(m.config.model.seq),
        vocab_(m.config.model.vocab),
        tokens_(seq_ * size_of(DType::kI32), m.stream.device(), *m.backend->device),
        host_(static_cast<size_t>(vocab_)),
        arena_(Buffer(arena_bytes(m), m.stream.device(), *m.backend->device)),
        pool_(Buffer(kAlign, m.stream.device(), *m.backend->device)),
        tape_(arena_, pool_, *m.backend->ops, m.stream) {
    tape_.set_recording(false);
  }

  std::span<const float> next(std::span<const int32_t> context) {
    const auto n = static_cast<int64_t>(context.size());
    const DeviceApi& device = *m_.backend->device;
    device.copy(tokens_.data(), context.data(), n * size_of(DType::kI32), m_.stream);
    MicroBatch mb;
    mb.batch = 1;
    mb.seq = n;
    mb.tokens = tokens_.tensor({1, n}, DType::kI32);
    tape_.reset();
    const Tensor logits = m_.engine->stages().front()->next_logits(tape_, mb, n - 1);
    device.copy(host_.data(), logits.data, vocab_ * size_of(DType::kF32), m_.stream);
    device.synchronize(m_.stream);
    return host_;
  }

 private:
  // One sequence evaluated, loss and all, takes no less than its next logits.
  static int64_t arena_bytes(const LoadedModel& m) {
    EngineOptions o = m.engine->options();
    o.micro_batch = o.microbatches = 1;
    return plan_memory(o, {}, 0).eval.activation_bytes +
           align_up(padded_vocab(o.model.vocab, 1) * size_of(DType::kF32));
  }
  LoadedModel& m_;
  int64_t seq_, vocab_;
  Buffer tokens_;
  std::vector<float> host_;
  Arena arena_;
  Pool pool_;
  Tape tape_;
};

}  // namespace

Exit run_generate(const Command& command) {
  const auto& args = command.get<GenerateArgs>();
  const auto model = load_model(args.load, command.config_flags, Products::kHalf);
  const Tokenizer tokenizer = load_tokenizer(args.tokenizer, *model);
  GT_REQUIRE(tokenizer.vocab() <= model->config.model.vocab, Exit::kUsage, "the tokenizer has ", tokenizer.vocab(),
             " pieces, the model ", model->config.model.vocab, ": give the tokenizer that the run was trained with");
  std::vector<int32_t> ids = tokenizer.encode(args.prompt);
  const size_t prompt = ids.size();
  if (ids.empty()) ids.push_back(tokenizer.eod());  // a document begins after the end of another
  Predictor predictor(*model);
  const auto window = static_cast<size_t>(model->config.model.seq);
  const SamplerOptions sampler{.temperature = args.temperature, .top_k = args.top_k};
  const uint64_t key = stream_key(static_cast<uint64_t>(args.seed), "generate");

  fmt::print("{}", args.prompt);
  const size_t first = ids.size();
  std::string shown = tokenizer.decode(std::span(ids).first(prompt));
  for (int64_t k = 0; k < args.max_tokens; ++k) {
    const size_t from = ids.size() > window ? ids.size() - window : 0;
    const double u = philox(key, static_cast<uint64_t>(k), 0)[0] * 0x1p-32;
    const int32_t id = sample_token(predictor.next(std::span(ids).subspan(from)), sampler, u);
    if (id == tokenizer.eod()) break;
    ids.push_back(id);
    // Decode everything again: a character may take several byte pieces.
    std::string text = tokenizer.decode(std::span(ids).subspan(prompt == 0 ? first : 0));
    if (text.size() >= shown.size() && text.compare(0, shown.size(), shown) == 0)
      fmt::print("{}", text.substr(shown.size()));
    std::fflush(stdout);
    shown = std::move(text);
  }
  fmt::print("\n");
  return Exit::kOk;
}

Exit run_eval(const Command& command) {
  const auto& args = command.get<EvalArgs>();
  const auto model = load_model(args.load, command.config_flags, Products::kAsTrained);
  const Config& c = model->config;
  DatasetOptions o;
  o.sources = c.data.train;
  o.split = c.data.split;
  o.seq = c.model.seq;
  o.order = SampleOrder::kSequential;
  o.vocab = c.model.vocab;
  o.cache_dir = default_cache_dir();
  if (!c.data.tokenizer.empty()) o.tokenizer_sha256 = sha256_file_hex(c.data.tokenizer);
  o.whole = !c.data.valid.empty() && args.split != "test";
  if (o.whole && args.split == "valid") o.sources = c.data.valid;
  if (!o.whole) o.part = args.split == "train" ? 0 : args.split == "valid" ? 1 : 2;
  GT_REQUIRE(!o.sources.empty(), Exit::kUsage, "data.train: the run of ", model->step_dir,
             " names no data; give --data.valid PREFIX");
  const auto data = open_dataset(o);
  LoaderConfig l;
  l.seq = c.model.seq;
  l.micro_batch = c.train.micro_batch;
  l.total_samples = args.steps > 0 ? std::min(data->size(), args.steps * c.train.micro_batch) : data->size();
  Loader loader(*data, l, model->stream.device(), *model->backend->device, model->stream);
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  int64_t tokens = 0;
  for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) {
    sum += model->engine->evaluate(batch);
    tokens += loader.step_tokens();
  }
  const double loss = sum / static_cast<double>(tokens);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} split of {}, checkpoint {}\nloss {:.6f}  perplexity {:.3f}  ({} tokens, {})\n", args.split,
             o.sources.front().path, model->step_dir, loss, std::exp(std::min(20.0, loss)), format_thousands(tokens),
             format_duration(seconds));
  return Exit::kOk;
}

}  // namespace gt
