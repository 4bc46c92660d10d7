#include "launch/tools/weights/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "checkpoint/store/dir_lock.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/weights/int8_rows.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "kernels/core/text.h"
#include "launch/observe/work_progress.h"
#include "launch/options/console_text.h"
#include "launch/options/version.h"
#include "launch/ranks/signals.h"
#include "launch/tools/weights/lora_weights.h"
#include "launch/tools/weights/model_weights.h"
#include "launch/tools/weights/origin.h"
#include "launch/tools/weights/subcommands.h"
#include "launch/tools/weights/tensor_match.h"
#include "launch/train/kept_files.h"
#include "parallel/comm/self_group.h"

namespace gt {
namespace {

// Streams the weights in native form, range by range: checked, and transposed if the file stores [in, out].
class WeightStream {
 public:
  // seed: of initial values of adapters, and of tensors that the source lacks.
  WeightStream(Origin& o, const std::vector<ModelWeight>& weights, const Config& config, const ImportArgs& args)
      : origin_(o),
        args_(args),
        weights_(weights),
        spec_(describe(config.model)),
        seed_(static_cast<uint64_t>(config.train.seed)),
        match_(match_tensors(o, weights, args.from)),
        read_(o.file->list().size()) {
    for (size_t k = 0; k < weights.size(); ++k) by_name_["master/" + weights[k].native] = k;
  }

  std::vector<ShardView> views() const {
    std::vector<ShardView> out;
    for (const ModelWeight& w : weights_) {
      ShardView v;
      v.name = "master/" + w.native;
      for (int64_t d : w.shape) v.full.dim[static_cast<size_t>(v.full.rank++)] = d;
      v.local = v.full;
      v.shard = w.shard.tp().blocks > 1 ? w.shard : ShardSpec::replicate();
      v.data = {nullptr, {v.full.numel()}, DType::kF32, {}};
      out.push_back(v);
    }
    return out;
  }

  // Returns elements [first, first + count) of a native weight.
  std::vector<float> read(const std::string& name, int64_t first, int64_t count) {
    try {
      return checked(by_name_.at(name), first, count);
    } catch (const Error& e) {
      failure_ = e;
      throw;
    }
  }
  // Returns the error that read() threw, if any.
  const std::optional<Error>& failure() const { return failure_; }

  // Tensors of the source that belong to the model, and those whose every element has been read.
  size_t tensors() const { return match_.tensors; }
  size_t tensors_read() const {
    size_t n = 0;
    for (size_t k = 0; k < read_.size(); ++k) n += read_[k] > 0 && read_[k] >= origin_.file->list()[k].numel();
    return n;
  }

 private:
  std::vector<float> checked(size_t k, int64_t first, int64_t count) {
    GT_REQUIRE(!stop_requested(), Exit::kInterrupted, args_.from, ": interrupted, nothing was imported");
    const ModelWeight& w = weights_[k];
    if (w.adapter && !origin_.adapter) return initial_adapter(spec_.param(w.native), seed_, first, count);
    if (w.adapter) return finite(w, origin_.adapter->read(w.native, first, count), first);
    const std::vector<WeightPosition>& blocks = match_.positions[k];
    if (blocks.empty()) return initial_adapter(spec_.param(w.native), seed_, first, count);
    std::vector<float> out;
    out.reserve(static_cast<size_t>(count));
    int64_t begin = 0;  // of the block in the weight
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int64_t size = origin_.file->list()[blocks[b].values].numel();
      const int64_t from = std::max(first, begin), to = std::min(first + count, begin + size);
      if (from < to) {
        const std::vector<float> part = block(k, b, from - begin, to - from);
        out.insert(out.end(), part.begin(), part.end());
      }
      begin += size;
    }
    for (auto [copy, end] = match_.copies.equal_range(k); copy != end; ++copy)
      GT_REQUIRE(tensor(copy->second, first, count) == out, Exit::kDamaged, args_.from, ": ",
                 weights_[k].native == "embed.weight"
                     ? std::string("head and embedding differ although the config ties them (tie_word_embeddings)")
                     : cat(origin_.file->list()[copy->second].name, " differs from the tensor that it is a copy of"));
    return out;
  }

  // A range of a block in native orientation. A transposed matrix is read as a whole and kept for its next ranges.
  std::vector<float> block(size_t k, size_t b, int64_t first, int64_t count) {
    const ModelWeight& w = weights_[k];
    const WeightPosition& at = match_.positions[k][b];
    if (!origin_.hf || !w.transposed) return finite(w, values(at, first, count), first);
    if (turned_of_ != &at) {
      std::vector<float>().swap(turned_);
      const std::vector<int64_t> shape = w.hf_shape(b);
      turned_ = transpose(finite(w, values(at, 0, shape[0] * shape[1]), 0), shape[0], shape[1]);
      turned_of_ = &at;
    }
    return {turned_.begin() + first, turned_.begin() + first + count};
  }

  // A range of a tensor of the file, counted.
  std::vector<float> tensor(size_t k, int64_t first, int64_t count) {
    read_[k] += count;
    return origin_.file->read(k, first, count);
  }

  // A range of a weight in the file; int8 is scaled by its rows.
  std::vector<float> values(const WeightPosition& at, int64_t first, int64_t count) {
    if (!at.scale) return tensor(at.values, first, count);
    const int64_t cols = origin_.file->list()[at.values].shape[1], row = first / cols;
    const int64_t rows = (first + count + cols - 1) / cols - row;
    const std::vector<float> all =
        restore_rows({tensor(at.values, row * cols, rows * cols), tensor(*at.scale, row, rows)});
    const auto begin = all.begin() + (first - row * cols);
    return {begin, begin + count};
  }

  std::vector<float> finite(const ModelWeight& w, std::vector<float> v, int64_t first) {
    const auto bad = std::find_if(v.begin(), v.end(), [](float x) { return !std::isfinite(x); });
    GT_REQUIRE(bad == v.end() || args_.allow_nonfinite, Exit::kDamaged, args_.from, ": ", w.native, ", element ",
               first + (bad - v.begin()), " is ", *bad, "; --allow-nonfinite accepts it");
    return v;
  }

  Origin& origin_;
  const ImportArgs& args_;
  const std::vector<ModelWeight>& weights_;
  const ModelSpec spec_;
  const uint64_t seed_;
  const TensorMatch match_;
  std::vector<int64_t> read_;  // elements of each tensor of the file
  std::map<std::string, size_t> by_name_;
  const WeightPosition* turned_of_ = nullptr;  // whose transposed values `turned_` holds
  std::vector<float> turned_;
  std::optional<Error> failure_;
};

std::string random_uuid() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Imported import_weights(const ImportArgs& args, const Config* run) {
  const auto there = list_steps(args.output);
  GT_REQUIRE(there.empty(), Exit::kUsage, args.output, ": holds step ", there.empty() ? 0 : there.front().first,
             " of a run already; give another --output");
  const DirLock lock(args.output);
  Vfs vfs;
  Origin origin = open_origin(vfs, args);
  if (!origin.other_ids.empty()) {
    GT_REQUIRE(run == nullptr, Exit::kUsage, "data.tokenizer: ", origin.other_ids, "; leave --data.tokenizer out");
    origin.warnings.push_back(origin.other_ids);
  }
  Config config;
  if (run != nullptr)
    config = *run;
  else
    config.model = checked_model(origin.model, args.from);
  const std::vector<ModelWeight> weights = model_weights(config.model);
  WeightStream stream(origin, weights, config, args);

  std::vector<AuxFile> aux{{.name = "config.json", .path = "", .text = config_json(config)}};
  aux.insert(aux.end(), origin.aux.begin(), origin.aux.end());
  std::vector<AuxFile> tokenizer = whole_tokenizer(origin.tokenizer);
  if (!tokenizer.empty())  // refused here rather than by all readers of the step
    if (std::string note = Tokenizer::load(origin.tokenizer).undecided_bos(); !note.empty())
      origin.warnings.push_back(std::move(note));
  aux.insert(aux.end(), tokenizer.begin(), tokenizer.end());
  TrainState state;
  state.origin = "import";
  state.run_uuid = random_uuid();
  SaveOptions options;
  options.retention.keep = 0;
  options.require_finite = !args.allow_nonfinite;
  options.git = git_hash();
  if (config.model.tied) options.ties = {{"master/head.weight", "master/embed.weight"}};
  SelfFactory factory;
  const Mesh mesh(MeshShape{}, factory);
  const std::vector<ShardView> views = stream.views();
  int64_t elements = 0;
  for (const ShardView& v : views) elements += v.full.numel();
  SaveReport report;
  try {
    WorkProgress progress(elements * 4);
    report = save_streamed(
        args.output, state, views,
        [&](const std::string& name, int64_t first, int64_t count) {
          progress.add(count * 4);
          return stream.read(name, first, count);
        },
        aux, options, mesh, *cpu_backend().device);
  } catch (const Error&) {
    if (stream.failure()) throw Error(*stream.failure());  // report the source file, not a failed save
    throw;
  }
  GT_CHECK(stream.tensors_read() == stream.tensors(), "read ", stream.tensors_read(), " of ", stream.tensors(),
           " tensors of ", args.from);
  Imported out{.path = report.path,
               .tensors = weights.size(),
               .read = stream.tensors_read(),
               .in_source = stream.tensors(),
               .bytes = report.bytes,
               .tokenizer = std::move(tokenizer),
               .generates = !config.model.predicts_pairs()};
  for (const ShardView& v : views) out.parameters += v.full.numel();
  for (const auto& list : {origin.warnings, report.warnings})
    out.warnings.insert(out.warnings.end(), list.begin(), list.end());
  return out;
}

Exit run_import(const Command& command) {
  const auto& args = command.get<ImportArgs>();
  install_stop_signals();
  const Imported made = import_weights(args);
  for (const std::string& w : made.warnings) fmt::print(stderr, "warning: {}\n", w);
  fmt::print("{}: {} tensors, {} parameters, {}\n", made.path, made.tensors, format_thousands(made.parameters),
             format_bytes(static_cast<double>(made.bytes)));
  fmt::print("read {} of {} tensors of {}\n", made.read, made.in_source, args.from);
  fmt::print("train on: gpttrain --config {} --checkpoint.dir {} --data.train PREFIX{}\n",
             shell_word(made.path + "/config.json"), shell_word(args.output),
             made.tokenizer.empty() ? "" : " --data.tokenizer " + shell_word(made.path + "/" + made.tokenizer[0].name));
  if (!made.tokenizer.empty() && made.generates)
    fmt::print("generate: gpttrain generate --load {} --prompt \"…\"\n", shell_word(args.output));
  else if (made.tokenizer.empty())
    fmt::print(
        "it has no tokenizer that can be read: import it again with --tokenizer FILE if you have one. Without it,\n"
        "PREFIX: tokens written by other tools, as .bin + .idx of Megatron or .bin of llm.c; to generate text, use "
        "transformers after gpttrain export\n");
  return Exit::kOk;
}

}  // namespace gt
