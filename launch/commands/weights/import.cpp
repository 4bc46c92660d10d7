#include "launch/commands/weights/import.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "checkpoint/store/dir_lock.h"
#include "checkpoint/store/steps.h"
#include "checkpoint/weights/int8_rows.h"
#include "checkpoint/weights/weights.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/backend.h"
#include "kernels/core/files.h"
#include "kernels/core/text.h"
#include "launch/commands/subcommands.h"
#include "launch/commands/weights/lora_weights.h"
#include "launch/commands/weights/model_weights.h"
#include "launch/commands/work_progress.h"
#include "launch/options/console_text.h"
#include "launch/options/version.h"
#include "launch/ranks/signals.h"
#include "launch/train/kept_tokenizer.h"
#include "parallel/comm/self_group.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Source of weights and what it states about their model.
struct Origin {
  std::unique_ptr<WeightFile> file;
  ModelConfig model;
  std::unique_ptr<PeftFolder> adapter;  // trained adapters; nullptr: none, and new ones begin at their initial values
  bool hf = false;                      // Hugging Face's names and orientation
  std::vector<AuxFile> aux;
  std::string tokenizer;  // its file or folder, or none
  std::string other_ids;  // other_ids() of a tokenizer that replaces the folder's
  std::vector<std::string> warnings;
};

// Strips the container's prefix: "layers.7.attn.qkv.weight". Norms of the first BERT folders have the names of
// TensorFlow, which transformers translates too.
std::string bare(const std::string& name, const Origin& o) {
  const std::string prefix = o.hf ? family_of(o.model).prefix : "model/";
  std::string out = name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
  for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, {".beta", ".bias"}})
    if (o.hf && out.ends_with(old)) out.replace(out.size() - std::strlen(old), std::string::npos, now);
  return out;
}

// Returns whether a tensor is a buffer saved by old versions of transformers: a mask, not a weight.
bool is_buffer(const std::string& name) {
  const auto ends = [&](const std::string& end) {
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends(".attn.bias") || ends(".attn.masked_bias") || ends(".rotary_emb.inv_freq") ||
         ends("embeddings.position_ids");
}

ModelConfig model_from_note(const std::string& text, const std::string& where) {
  Config c;
  c.model.ffn = 0;
  JsonValue json;
  try {
    json = parse_json(text, where + ", its note on the model");
  } catch (const Error& e) { throw Error(e.what(), Exit::kDamaged); }
  for (const Option& o : list_options(c)) {
    const JsonValue* v = o.section == "model" ? json.find(o.name) : nullptr;
    if (v == nullptr) continue;
    const std::string bad = set_from_json(o, *v);
    GT_REQUIRE(bad.empty(), Exit::kDamaged, where, ": note on the model, ", o.name, ": ", bad);
  }
  return c.model;
}

// Infers the model config of the first family from tensor shapes; only the number of heads cannot be inferred.
ModelConfig model_from_shapes(const Origin& o, int64_t heads, const std::string& where) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const WeightInfo& w : o.file->list()) shapes[bare(w.name, o)] = w.shape;
  ModelConfig m;
  const auto dim = [&](const std::string& name, size_t d) {
    const auto it = shapes.find(name);
    GT_REQUIRE(it != shapes.end() && it->second.size() == 2, Exit::kDamaged, where, ": holds no matrix ", name, ": no ",
               m.arch, " with our names");
    return it->second[d];
  };
  GT_REQUIRE(heads > 0, Exit::kUsage, where, ": the number of attention heads is missing; give --heads");
  m.vocab = dim("embed.weight", 0);
  m.hidden = dim("embed.weight", 1);
  m.seq = dim("pos_embed.weight", 0);
  m.ffn = dim("layers.0.mlp.up.weight", 0);
  m.heads = heads;
  // The fused projection minus the queries: a key and a value of head_dim for each group.
  const int64_t rest = dim("layers.0.attn.qkv.weight", 0) - m.hidden, each = 2 * (m.hidden / heads);
  if (each > 0 && rest > 0 && rest % each == 0) m.kv_heads = rest / each;
  m.layers = 0;
  while (shapes.count(fmt::format("layers.{}.norm1.weight", m.layers))) ++m.layers;
  m.tied = shapes.count("head.weight") == 0;
  return m;
}

// Returns the folder's tokenizer, or "". Weights are useful without one, so an unsupported tokenizer.json is only a
// warning.
std::string tokenizer_in(const std::string& folder, std::vector<std::string>& warnings) {
  std::error_code ec;
  if (fs::exists(folder + "/tokenizer.model", ec)) return folder + "/tokenizer.model";
  if (!holds_tokenizer(folder)) return "";
  try {
    Tokenizer::load(folder);
    return folder;
  } catch (const Error& e) {
    if (e.code() != Exit::kUsage) throw;
    warnings.push_back(cat(e.what(), "; imported without a tokenizer"));
    return "";
  }
}

// Returns how the ids of a given tokenizer differ from those of the folder's own; "": they do not, as far as some text
// shows. The same tokenizer may be there in two forms.
std::string other_ids(const std::string& given, const std::string& folder) {
  std::vector<std::string> unread;
  const std::string own = tokenizer_in(folder, unread);
  if (own.empty() || given.empty()) return "";
  const Tokenizer a = Tokenizer::load(given), b = Tokenizer::load(own);
  if (a.sha256() == b.sha256()) return "";
  for (const char* text : {"The model was trained on text", "if (x[13] != 0) return f(x);", "Über naïve café 日本"}) {
    const auto first = [&](const Tokenizer& t) {
      std::vector<int32_t> ids = t.encode(text);
      ids.resize(std::min<size_t>(ids.size(), 8));
      return fmt::format("{}", fmt::join(ids, " "));
    };
    if (a.encode(text) != b.encode(text))
      return fmt::format("\"{}\" begins with the tokens {} in {} and {} in {}, which the weights were trained with",
                         text, first(a), given, first(b), own);
  }
  return "";
}

Origin open_folder(Vfs& vfs, const std::string& path, bool ignore_unknown) {
  Origin o;
  o.file = open_safetensors(vfs, path);
  std::error_code ec;
  if (const std::string note = o.file->note("model"); !note.empty()) {
    o.model = model_from_note(note, path);
  } else {
    GT_REQUIRE(fs::exists(path + "/config.json", ec), Exit::kUsage, path,
               ": holds no config.json; give the whole Hugging Face folder");
    const std::string text = read_whole_file(path + "/config.json", kMaxJsonBytes);
    HfConfig c = parse_hf_config(text, path + "/config.json", ignore_unknown);
    o.model = c.model;
    o.hf = true;
    o.warnings = c.warnings;
    o.aux.push_back({.name = "hf-config.json", .path = "", .text = text});
  }
  return o;
}

// The model that a file or folder states, completed and checked.
ModelConfig checked_model(const ModelConfig& model, const std::string& where) {
  try {
    return load_config({.flags = model_flags(model)}).config.model;
  } catch (const Error& e) { throw Error(where + ": " + e.what(), Exit::kDamaged); }
}

// Returns nullptr unless it is a PEFT folder.
std::unique_ptr<PeftFolder> open_adapter(Vfs& vfs, const std::string& folder, bool ignore_unknown) {
  if (!is_peft_folder(folder)) return nullptr;
  return std::make_unique<PeftFolder>(vfs, folder, [ignore_unknown](const std::string& base) {
    const std::string file = base + "/config.json";
    return checked_model(parse_hf_config(read_whole_file(file, kMaxJsonBytes), file, ignore_unknown).model, file);
  });
}

Origin open_origin(Vfs& vfs, const ImportArgs& args) {
  std::error_code ec;
  GT_REQUIRE(fs::exists(args.from, ec), Exit::kUsage, args.from, ": does not exist");
  if (fs::is_directory(args.from, ec)) {
    std::unique_ptr<PeftFolder> adapter = open_adapter(vfs, args.from, args.ignore_unknown);
    const std::string base = adapter ? adapter->base() : args.from;
    Origin folder = open_folder(vfs, base, args.ignore_unknown);
    if (adapter) folder.model = adapter->model();
    folder.adapter = std::move(adapter);
    folder.tokenizer = args.tokenizer.empty() ? tokenizer_in(base, folder.warnings) : args.tokenizer;
    folder.other_ids = other_ids(args.tokenizer, base);
    return folder;
  }
  GT_REQUIRE(fs::is_regular_file(args.from, ec), Exit::kUsage, args.from, ": is neither a file nor a folder");
  char head[8] = {};
  GT_REQUIRE(pread(open_to_read(args.from).get(), head, sizeof head, 0) >= 0, Exit::kIo, args.from,
             ": cannot be read: ", std::strerror(errno));
  int32_t magic = 0;
  std::memcpy(&magic, head, sizeof magic);
  Origin o{.tokenizer = args.tokenizer};
  if (std::memcmp(head, "\x89HDF\r\n\x1a\n", 8) == 0)
    o.file = open_h5(vfs, args.from);
  else if (magic == 20240326)
    o.file = open_llmc(vfs, args.from, llmc_tensors);
  else
    fail(Exit::kDamaged, args.from,
         ": is neither HDF5 nor an llm.c model (.bin, magic 20240326); a Hugging Face model is given as its folder");
  const std::string note = o.file->note("model");
  o.model = note.empty() ? model_from_shapes(o, args.heads, args.from) : model_from_note(note, args.from);
  return o;
}

// Position of a weight in the file; int8 weights have separate scales.
struct WeightPosition {
  size_t values = 0;
  std::optional<size_t> scale;
};

// Returns "" or why this tensor cannot be the weight. Finds the scales of int8 and removes them from the list.
std::string position_of(const WeightFile& file, std::map<std::string, size_t>& found, const std::string& name,
                        const std::vector<int64_t>& expected, WeightPosition& position) {
  const auto it = found.find(name);
  if (it == found.end()) return "missing";
  const WeightInfo& info = file.list()[position.values = it->second];
  found.erase(it);
  if (info.shape != expected) return fmt::format("{}, expected {}", to_string(info.shape), to_string(expected));
  if (info.dtype == "f32" || info.dtype == "bf16" || info.dtype == "f16") return "";
  if (info.dtype != "i8" || info.shape.size() != 2)
    return fmt::format("{}, expected f32, bf16 or f16, or a matrix of i8", info.dtype);
  const auto scale = found.find(name + ".scale");
  if (scale == found.end()) return "i8 without " + name + ".scale";
  const WeightInfo& s = file.list()[*(position.scale = scale->second)];
  found.erase(scale);
  if (s.dtype == "f32" && s.shape == std::vector<int64_t>{info.shape[0]}) return "";
  return fmt::format("its scale is {} {}, expected f32 [{}]", s.dtype, to_string(s.shape), info.shape[0]);
}

// Matches the file's tensors to the model's weights, in the order of their blocks. Throws listing every mismatch.
std::vector<std::vector<WeightPosition>> match(const Origin& o, const std::vector<ModelWeight>& weights,
                                               const std::string& where, std::multimap<size_t, size_t>& copies) {
  std::map<std::string, size_t> found;
  std::vector<std::string> problems;
  for (size_t k = 0; k < o.file->list().size(); ++k) {
    const std::string name = bare(o.file->list()[k].name, o);
    if (o.hf && is_buffer(name)) continue;
    if (!found.emplace(name, k).second) problems.push_back(name + ": occurs twice, with and without its prefix");
  }
  std::vector<std::vector<WeightPosition>> out(weights.size());
  for (size_t k = 0; k < weights.size(); ++k) {
    const ModelWeight& w = weights[k];
    if (w.adapter) continue;
    out[k].resize(o.hf ? w.hf.size() : 1);
    if (out[k].empty()) problems.push_back(fmt::format("{}: the family {} has no such tensor", w.native, o.model.arch));
    for (size_t b = 0; b < out[k].size(); ++b) {
      const std::string name = o.hf ? w.hf[b].name : w.native;
      const std::string bad =
          position_of(*o.file, found, o.hf ? bare(name, o) : name, o.hf ? w.hf_shape(b) : w.shape, out[k][b]);
      if (!bad.empty()) problems.push_back(fmt::format("{}: {}", name, bad));
    }
  }
  for (size_t k = 0; k < weights.size(); ++k) {  // second copies, compared with the first later
    const bool tied = !o.hf && o.model.tied && weights[k].native == "embed.weight";
    for (const std::string& name :
         o.hf ? weights[k].hf_copies : std::vector<std::string>(tied ? 1 : 0, "head.weight")) {
      const auto copy = found.find(o.hf ? bare(name, o) : name);
      if (copy == found.end()) continue;
      const WeightInfo& info = o.file->list()[copy->second];
      if (info.shape == weights[k].shape)
        copies.emplace(k, copy->second);
      else
        problems.push_back(
            fmt::format("{}: {}, expected {}", info.name, to_string(info.shape), to_string(weights[k].shape)));
      found.erase(copy);
    }
  }
  for (const auto& [name, k] : found) problems.push_back(o.file->list()[k].name + ": unknown");
  constexpr size_t kShown = 40;
  const size_t all = problems.size();
  if (all > kShown) problems.resize(kShown), problems.push_back(fmt::format("… and {} more", all - kShown));
  GT_REQUIRE(all == 0, Exit::kDamaged, where,
             ": does not fit the model that it describes:", fmt::format("\n  {}", fmt::join(problems, "\n  ")));
  return out;
}

// Streams the weights in native form, range by range: checked, and transposed if the file stores [in, out].
class WeightStream {
 public:
  // seed: of initial values of adapters.
  WeightStream(Origin& o, const std::vector<ModelWeight>& weights, const Config& config, const ImportArgs& args)
      : origin_(o),
        args_(args),
        weights_(weights),
        spec_(describe(config.model)),
        seed_(static_cast<uint64_t>(config.train.seed)),
        positions_(match(o, weights, args.from, copies_)) {
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

 private:
  std::vector<float> checked(size_t k, int64_t first, int64_t count) {
    GT_REQUIRE(!stop_requested(), Exit::kInterrupted, args_.from, ": interrupted, nothing was imported");
    const ModelWeight& w = weights_[k];
    if (w.adapter && !origin_.adapter) return initial_adapter(spec_.param(w.native), seed_, first, count);
    if (w.adapter) return finite(w, origin_.adapter->read(w.native, first, count), first);
    std::vector<float> out;
    out.reserve(static_cast<size_t>(count));
    int64_t begin = 0;  // of the block in the weight
    for (size_t b = 0; b < positions_[k].size(); ++b) {
      const int64_t size = origin_.file->list()[positions_[k][b].values].numel();
      const int64_t from = std::max(first, begin), to = std::min(first + count, begin + size);
      if (from < to) {
        const std::vector<float> part = block(k, b, from - begin, to - from);
        out.insert(out.end(), part.begin(), part.end());
      }
      begin += size;
    }
    for (auto [copy, end] = copies_.equal_range(k); copy != end; ++copy)
      GT_REQUIRE(origin_.file->read(copy->second, first, count) == out, Exit::kDamaged, args_.from, ": ",
                 weights_[k].native == "embed.weight"
                     ? std::string("head and embedding differ although the config ties them (tie_word_embeddings)")
                     : cat(origin_.file->list()[copy->second].name, " differs from the tensor that it is a copy of"));
    return out;
  }

  // A range of a block in native orientation. A transposed matrix is read as a whole and kept for its next ranges.
  std::vector<float> block(size_t k, size_t b, int64_t first, int64_t count) {
    const ModelWeight& w = weights_[k];
    const WeightPosition& at = positions_[k][b];
    if (!origin_.hf || !w.transposed) return finite(w, values(at, first, count), first);
    if (turned_of_ != &at) {
      std::vector<float>().swap(turned_);
      const std::vector<int64_t> shape = w.hf_shape(b);
      turned_ = transpose(finite(w, values(at, 0, shape[0] * shape[1]), 0), shape[0], shape[1]);
      turned_of_ = &at;
    }
    return {turned_.begin() + first, turned_.begin() + first + count};
  }

  // A range of a tensor of the file; int8 is scaled by its rows.
  std::vector<float> values(const WeightPosition& at, int64_t first, int64_t count) {
    WeightFile& file = *origin_.file;
    if (!at.scale) return file.read(at.values, first, count);
    const int64_t cols = file.list()[at.values].shape[1], row = first / cols;
    const int64_t rows = (first + count + cols - 1) / cols - row;
    const std::vector<float> all =
        restore_rows({file.read(at.values, row * cols, rows * cols), file.read(*at.scale, row, rows)});
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
  std::multimap<size_t, size_t> copies_;                // weight -> tensors of the file
  std::vector<std::vector<WeightPosition>> positions_;  // by weight and block
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

GivenModel model_of_folder(const std::string& folder, bool ignore_unknown) {
  std::error_code ec;
  GT_REQUIRE(fs::is_directory(folder, ec), Exit::kUsage, "--from: ", folder,
             " is not a folder; give a Hugging Face folder");
  Vfs vfs;
  const std::unique_ptr<PeftFolder> adapter = open_adapter(vfs, folder, ignore_unknown);
  const std::string base = adapter ? adapter->base() : folder, file = base + "/config.json";
  GT_REQUIRE(fs::exists(file, ec), Exit::kUsage, "--from: ", folder,
             " holds no config.json; give the whole Hugging Face folder");
  HfConfig hf = parse_hf_config(read_whole_file(file, kMaxJsonBytes), file, ignore_unknown);
  GivenModel out{.model = checked_model(adapter ? adapter->model() : hf.model, file), .file = file};
  out.folder = fs::absolute(base).lexically_normal().string();
  out.tokenizer = tokenizer_in(base, hf.warnings);
  const fs::path path = fs::absolute(folder).lexically_normal();
  out.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return out;
}

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
  std::vector<AuxFile> tokenizer = tokenizer_aux(origin.tokenizer);
  if (!tokenizer.empty()) Tokenizer::load(origin.tokenizer);  // refused here rather than by all readers of the step
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
  Imported out{.path = report.path,
               .tensors = weights.size(),
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
  fmt::print("train on: gpttrain --config {} --checkpoint.dir {} --data.train PREFIX{}\n",
             shell_word(made.path + "/config.json"), shell_word(args.output),
             made.tokenizer.empty() ? "" : " --data.tokenizer " + shell_word(made.path + "/" + made.tokenizer[0].name));
  if (!made.tokenizer.empty() && made.generates)
    fmt::print("generate: gpttrain generate --load {} --prompt \"…\"\n", shell_word(args.output));
  else if (made.tokenizer.empty())
    fmt::print(
        "it has no tokenizer that can be read (SentencePiece's tokenizer.model; byte-level BPE as tokenizer.json, as "
        "vocab.json with merges.txt, or as tiktoken's ranks): import it again with --tokenizer FILE if you have one. "
        "Without it,\n"
        "PREFIX: tokens written by other tools, as .bin + .idx of Megatron or .bin of llm.c; to generate text, use "
        "transformers after gpttrain export\n");
  return Exit::kOk;
}

}  // namespace gt
