// gpttrain export: writes a checkpoint's weights in FP32 (or rounded) to one HDF5 file or a Hugging Face folder, range
// by range. The output depends only on the weights, the model and the tokenizer.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "checkpoint/step_reader.h"
#include "checkpoint/weights/int8_rows.h"
#include "checkpoint/weights/weights.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/sentence_piece.h"
#include "data/tokenizer/tokenizer.h"
#include "kernels/core/json.h"
#include "launch/observe/work_progress.h"
#include "launch/options/near_path.h"
#include "launch/ranks/signals.h"
#include "launch/tools/weights/checkpoint_config.h"
#include "launch/tools/weights/exported_config.h"
#include "launch/tools/weights/lora_weights.h"
#include "launch/tools/weights/model_weights.h"
#include "launch/tools/weights/subcommands.h"
#include "launch/train/kept_files.h"
#include "launch/train/kept_tokenizer.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr const char* kTemplateFolder = "additional_chat_templates";
constexpr int64_t kOpenAiVocab = 50257;  // OpenAI's vocabulary, whose last entry is <|endoftext|>
std::string step_to_export(const ExportArgs& args) {
  require_path("--load", args.load);
  if (args.step < 0) return resolve_step(args.load);
  for (const std::string& dir : {args.load, args.load + "/checkpoints"})
    for (const auto& [n, path] : list_steps(dir))
      if (n == args.step) return path;
  fail(Exit::kUsage, args.load, ": holds no step ", args.step, "; gpttrain ckpt ls ", args.load, " lists them");
}

int64_t bytes_from(const std::string& text) {
  const std::pair<const char*, double> units[] = {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}};
  for (const auto& [unit, factor] : units) {
    const std::string end = unit;
    double n = 0;
    if (text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0 &&
        parse_double(text.substr(0, text.size() - end.size()), n) && n * factor >= 1 && n < 1e9)
      return static_cast<int64_t>(n * factor);
  }
  fail(Exit::kUsage, "--max-shard: expected a size as in 500MB or 5GB, found \"", text, "\"");
}

// A checkpoint step with its model. Adapters are added to the weights that they stand on.
class Source {
 public:
  explicit Source(const ExportArgs& args) : reader_(vfs_, step_to_export(args)) {
    model_ = checkpoint_config(reader_, {}).model;
    base_ = read_aux(reader_.path(), kBaseConfig);
    list_weights();
    if (model_.lora.rank > 0)
      merge_.emplace(model_, [&](const std::string& native, int64_t count) { return stored(native, 0, count); });
  }
  const std::string& path() const { return reader_.path(); }
  const ModelConfig& model() const { return model_; }
  const std::vector<ModelWeight>& weights() const { return weights_; }
  Vfs& vfs() { return vfs_; }
  // config.json of the Hugging Face folder that the run began from; "": none.
  const std::string& base_config() const { return base_; }
  // From then on the model is of this family.
  void set_family(const Family& family) {
    model_.arch = family.name;
    list_weights();
  }
  // Returns elements [first, first + count) of a native weight, without and with its adapter.
  std::vector<float> stored(const std::string& native, int64_t first, int64_t count) {
    return reader_.read(*stored_weight(reader_, native), first, count);
  }
  std::vector<float> read(const std::string& native, int64_t first, int64_t count) {
    std::vector<float> out = stored(native, first, count);
    if (merge_) merge_->add_to(native, first, out);
    return out;
  }

 private:
  void list_weights() {
    weights_ = model_weights(model_);
    std::erase_if(weights_, [](const ModelWeight& w) { return w.adapter; });
  }
  Vfs vfs_;
  StepReader reader_;
  std::string base_;
  ModelConfig model_;
  std::vector<ModelWeight> weights_;
  std::optional<AdapterMerge> merge_;
};

// Metadata that a reader of the native format needs besides the tensors.
Notes native_notes(const ModelConfig& m) {
  nlohmann::ordered_json model{{"arch", m.arch}, {"layers", m.layers}, {"hidden", m.hidden}, {"heads", m.heads},
                               {"ffn", m.ffn},   {"vocab", m.vocab},   {"seq", m.seq},       {"tied", m.tied}};
  if (m.kv_heads != m.heads) model["kv_heads"] = m.kv_heads;
  Config ours, standard;
  ours.model = m;
  const std::vector<Option> all = list_options(ours), usual = list_options(standard);
  // settings that differ from GPT-2's; training settings are not part of the model
  for (size_t k = 0; k < all.size(); ++k) {
    const Option& o = all[k];
    if (o.section == "model" && !model.contains(o.name) && o.name != "kv_heads" && !of_training(o.name) &&
        value_text(o) != value_text(usual[k]))
      model[o.name] = parse_json<nlohmann::ordered_json>(to_json(o), o.name, kOwnJson);
  }
  Notes notes{{kModelNote, model.dump()}};
  if (m.tied) notes.emplace_back("ties", R"([["head.weight","embed.weight"]])");
  return notes;
}

int64_t end_of_text(const Source& source, const std::optional<Tokenizer>& tokenizer) {
  if (tokenizer) return tokenizer->eod();
  return source.model().vocab == kOpenAiVocab ? kOpenAiVocab - 1 : -1;
}

// Allows replacing only what an export could have written.
void require_replaceable(const std::string& path, bool folder, bool force) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(path, ec))) return;
  GT_REQUIRE(force, Exit::kUsage, path, ": exists; give another --output, or --force to replace it");
  GT_REQUIRE(fs::is_directory(path, ec) == folder, Exit::kUsage, path, ": is ", folder ? "no folder" : "a folder",
             "; give another --output");
  if (!folder) return;
  for (const auto& e : fs::directory_iterator(path)) {
    const std::string name = e.path().filename().string();
    const bool ours = e.is_regular_file() || (e.is_directory() && name == kTemplateFolder);
    GT_REQUIRE((is_folder_file(name) || name.rfind("model", 0) == 0) && ours, Exit::kUsage, path, ": holds ", name,
               ", which no export wrote; give another --output");
  }
}

// Writes to a temporary path, syncs, then renames, so that no partial export is ever visible.
void commit_output(Vfs& vfs, const std::string& temp, const std::string& path, bool folder) {
  std::error_code ec;
  const std::string parent = fs::path(path).parent_path().string();
  const std::string old = cat(path, ".old-", ::getpid());
  const bool replaces = folder && fs::exists(fs::symlink_status(path, ec));
  if (replaces) rename_file(vfs, path, old);
  rename_file(vfs, temp, path);
  sync_directory(vfs, parent.empty() ? "." : parent);
  if (replaces) remove_tree(vfs, old);
}

// Form of an exported tensor: the values, or one of the two tensors of its int8 form.
enum class Part { kValues, kInt8, kScale };

struct Exported {
  const ModelWeight* weight = nullptr;
  Part part = Part::kValues;
  int block = -1;  // block of the weight in a Hugging Face folder; -1: all of it

  OutTensor out;
};

constexpr const char* kScaleSuffix = ".scale";

// Returns the tensors to write, by name: matrices of an int8 export as <name> and <name>.scale, vectors in FP32.
std::vector<Exported> plan_export(const std::vector<ModelWeight>& weights, bool hf, DType dtype) {
  std::vector<Exported> plan;
  for (const ModelWeight& w : weights) {
    GT_REQUIRE(dtype != DType::kI8 || w.shape.size() <= 2, Exit::kUsage, "--dtype int8: ", w.native,
               " stacks the matrices of experts, which are not quantized yet; use --dtype bf16");
    const DType type = w.always_f32 ? DType::kF32 : dtype;
    if (hf) {
      for (size_t b = 0; b < w.hf.size(); ++b)
        plan.push_back({&w, Part::kValues, static_cast<int>(b), {w.hf[b].name, w.hf_shape(b), type}});
    } else if (dtype != DType::kI8) {
      plan.push_back({&w, Part::kValues, -1, {w.native, w.shape, type}});
    } else if (w.shape.size() != 2) {
      plan.push_back({&w, Part::kValues, -1, {w.native, w.shape, DType::kF32}});
    } else {
      plan.push_back({&w, Part::kInt8, -1, {w.native, w.shape, DType::kI8}});
      plan.push_back({&w, Part::kScale, -1, {w.native + kScaleSuffix, {w.shape[0]}, DType::kF32}});
    }
  }
  std::sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a.out.name < b.out.name; });
  return plan;
}

std::vector<OutTensor> tensors_of(const std::vector<Exported>& plan) {
  std::vector<OutTensor> out;
  for (const Exported& e : plan) out.push_back(e.out);
  return out;
}

// Values of the tensors of an export, range by range, with progress.
class ExportStream {
 public:
  ExportStream(Source& source, const std::vector<Exported>& plan)
      : source_(source), plan_(plan), progress_(bytes_of(plan)) {}

  // Returns elements [first, first + count) of tensor k of the plan.
  std::vector<float> operator()(size_t k, int64_t first, int64_t count) {
    GT_REQUIRE(!stop_requested(), Exit::kInterrupted, source_.path(), ": interrupted, nothing was exported");
    progress_.add(count * size_of(plan_[k].out.dtype));
    const Exported& e = plan_[k];
    if (e.block >= 0) return block(e, first, count);
    if (e.part == Part::kValues) return source_.read(e.weight->native, first, count);
    return e.part == Part::kInt8 ? int8_values(e, first, count) : int8_scales(e, first, count);
  }

 private:
  static int64_t bytes_of(const std::vector<Exported>& plan) {
    int64_t bytes = 0;
    for (const Exported& e : plan) bytes += e.out.numel() * size_of(e.out.dtype);
    return bytes;
  }

  // A range of a tensor of a Hugging Face folder. A transposed matrix is read as a whole and kept for its next ranges.
  std::vector<float> block(const Exported& e, int64_t first, int64_t count) {
    const ModelWeight& w = *e.weight;
    const int64_t columns = w.shape.size() > 1 ? w.shape.back() : 1;
    int64_t begin = 0;
    for (int b = 0; b < e.block; ++b) begin += w.hf[static_cast<size_t>(b)].rows * columns;
    if (!w.transposed) return source_.read(w.native, begin + first, count);
    if (turned_of_ != &e) {
      const int64_t rows = w.hf[static_cast<size_t>(e.block)].rows;
      std::vector<float>().swap(turned_);
      turned_ = transpose(source_.read(w.native, begin, rows * columns), rows, columns);
      turned_of_ = &e;
    }
    return {turned_.begin() + first, turned_.begin() + first + count};
  }

  Int8Rows quantized(const Exported& e, int64_t row, int64_t rows) {
    const int64_t columns = e.weight->shape[1];
    return quantize_rows(source_.read(e.weight->native, row * columns, rows * columns), rows);
  }
  std::vector<float> int8_values(const Exported& e, int64_t first, int64_t count) {
    const int64_t columns = e.weight->shape[1], row = first / columns;
    const Int8Rows q = quantized(e, row, (first + count + columns - 1) / columns - row);
    const auto begin = q.values.begin() + (first - row * columns);
    return {begin, begin + count};
  }
  std::vector<float> int8_scales(const Exported& e, int64_t first, int64_t count) {
    const int64_t step = std::max<int64_t>(kWindowValues / e.weight->shape[1], 1);
    std::vector<float> out;
    for (int64_t row = first; row < first + count; row += step) {
      const Int8Rows q = quantized(e, row, std::min(step, first + count - row));
      out.insert(out.end(), q.scale.begin(), q.scale.end());
    }
    return out;
  }

  Source& source_;
  const std::vector<Exported>& plan_;
  WorkProgress progress_;
  const Exported* turned_of_ = nullptr;  // whose transposed values `turned_` holds
  std::vector<float> turned_;
};

int64_t export_hdf5(Source& source, const ExportArgs& args, DType dtype, const std::string& temp) {
  GT_REQUIRE(args.naming == "native", Exit::kUsage,
             "--naming hf: an HDF5 file has native names; use --naming native, "
             "or --format safetensors");
  const std::vector<Exported> plan = plan_export(source.weights(), false, dtype);
  ExportStream values(source, plan);
  write_h5(source.vfs(), temp, tensors_of(plan), native_notes(source.model()), std::ref(values));
  return static_cast<int64_t>(plan.size());
}

// Class of a folder with tokenizer.model alone: transformers 5 makes a tokenizer of it by the model's own settings,
// whatever the family, but for those with a fixed class (kOwnClass); transformers 4 refuses it.
constexpr const char* kGenericClass = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n";
constexpr std::string_view kOwnClass[] = {"qwen2"};

bool holds(const std::vector<AuxFile>& files, std::string_view name) {
  return std::any_of(files.begin(), files.end(), [&](const AuxFile& f) { return f.name == name; });
}

bool ends_with_own_token(const Tokenizer& t) { return t.id_of("<|endoftext|>") >= 0; }

// Writes what transformers needs of a SentencePiece model that came without any other file.
void write_hf_tokenizer(Source& source, const Tokenizer& t, const std::string& folder) {
  Vfs& vfs = source.vfs();
  const std::string obstacle = hf_tokenizer_obstacle(t);
  if (obstacle.empty()) {
    write_synced(vfs, folder + "/tokenizer.json", hf_tokenizer_json(t));
    write_synced(vfs, folder + "/tokenizer_config.json", hf_tokenizer_config_json(t, source.model().seq));
    write_synced(vfs, folder + "/special_tokens_map.json", hf_special_tokens_json(t));
    return;
  }
  const bool read = (t.sentence_piece()->bpe() || t.sentence_piece()->unigram()) &&
                    std::find(std::begin(kOwnClass), std::end(kOwnClass), source.model().arch) == std::end(kOwnClass);
  if (read) write_synced(vfs, folder + "/tokenizer_config.json", kGenericClass);
  fmt::print(stderr, "warning: {}: no tokenizer.json, which cannot reproduce its ids on every text: {}; {}\n", t.name(),
             obstacle,
             read ? "AutoTokenizer of transformers 5 reads tokenizer.model itself, with sentencepiece installed and "
                    "without BOS, as this run did; that of transformers 4 refuses it"
                  : "no tokenizer_config.json either: AutoTokenizer would make other ids; read tokenizer.model with "
                    "sentencepiece, or give the tokenizer as the Hugging Face folder that it is from");
}

// Writes the tokenizer's files as the checkpoint stores them, and for transformers (hf) what they lack.
void write_tokenizer(Source& source, bool hf, const std::string& folder) {
  const std::vector<AuxFile> files = exported_tokenizer(source.path());
  for (const AuxFile& f : files) {
    if (f.name.starts_with(kTemplateFolder)) make_directory(source.vfs(), folder + "/" + kTemplateFolder);
    write_synced(source.vfs(), folder + "/" + f.name, f.text);
  }
  if (!hf || holds(files, "tokenizer_config.json")) return;
  if (!holds(files, "tokenizer.model") && !holds(files, "tokenizer.json")) return;
  const auto tokenizer = kept_tokenizer(source.path());
  if (!tokenizer) return;
  // A Hugging Face folder with tokenizer.model alone is read by the class of its model_type, as before.
  if (!source.base_config().empty() && !holds(files, "tokenizer.json") && !ends_with_own_token(*tokenizer)) return;
  if (holds(files, "tokenizer.json"))
    write_synced(source.vfs(), folder + "/tokenizer_config.json",
                 hf_tokenizer_config_json(*tokenizer, source.model().seq));
  else if (tokenizer->sentence_piece() != nullptr)
    write_hf_tokenizer(source, *tokenizer, folder);
}

nlohmann::json generation_config(int64_t end, const std::optional<Tokenizer>& tokenizer) {
  nlohmann::json out = nlohmann::json::object();
  const bool piece_model = tokenizer && tokenizer->sentence_piece() != nullptr;
  if (end >= 0 && (!piece_model || ends_with_own_token(*tokenizer)))
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) out[key] = end;
  if (!tokenizer || (piece_model && ends_with_own_token(*tokenizer))) return out;
  const std::pair<const char*, int32_t> named[] = {
      {"bos_token_id", tokenizer->bos()}, {"eos_token_id", tokenizer->eos()}, {"pad_token_id", tokenizer->pad()}};
  for (const auto& [key, id] : named)
    if (id >= 0) out[key] = id;
  return out;
}

// Files that transformers needs besides the weights and the tokenizer: those of the folder that the run began from, as
// far as the run did not change them.
void write_hf_configs(Source& source, DType dtype, const std::string& folder) {
  Vfs& vfs = source.vfs();
  const std::string generation = read_aux(source.path(), kBaseGeneration), &base = source.base_config();
  if (!generation.empty()) {
    write_synced(vfs, folder + "/generation_config.json", generation);
  } else if (base.empty()) {
    const auto tokenizer = kept_tokenizer(source.path());
    write_synced(vfs, folder + "/generation_config.json",
                 generation_config(end_of_text(source, tokenizer), tokenizer).dump(2) + "\n");
  }
  const auto tokenizer = base.empty() ? kept_tokenizer(source.path()) : std::nullopt;
  const int64_t end = base.empty() ? end_of_text(source, tokenizer) : -1;
  std::string config = exported_config(source.model(), base, end, dtype);
  if (tokenizer && tokenizer->sentence_piece() != nullptr && !ends_with_own_token(*tokenizer))
    config = with_ids_of(*tokenizer, config);
  // Last: without it no reader takes the folder for a model.
  write_synced(vfs, folder + "/config.json", config);
}

std::vector<std::string> lost_in_hf_form(const ModelConfig& m) {
  return lost_in_hf_config(m, hf_config_json(m, -1, "float32"));
}

// Whether the family's Hugging Face config describes the model completely.
bool describes(const Family& family, ModelConfig m) {
  m.arch = family.name;
  try {
    return lost_in_hf_form(m).empty();
  } catch (const Error&) { return false; }
}

// Hugging Face's config must describe the model completely. If that of its own family does not, takes another family's:
// a model may be given by its keys alone (Megatron's flags name no family).
void require_hf_form(Source& source) {
  if (const std::vector<std::string> lost = lost_in_hf_form(source.model()); !lost.empty()) {
    const auto all = families();
    const auto other = std::find_if(all.begin(), all.end(), [&](auto* f) { return describes(*f, source.model()); });
    GT_REQUIRE(other != all.end(), Exit::kUsage, "--naming hf: ", source.path(), ": ",
               fmt::format("{}", fmt::join(lost, "; ")), ": use --naming native, or --format hdf5");
    fmt::print("model.arch is {}, but the model is that of {}: exported as {}\n", source.model().arch, (*other)->name,
               (*other)->architecture);
    source.set_family(**other);
  }
  const ModelConfig& m = source.model();
  if (parse_hf_config(hf_config_json(m, -1, "float32"), "config.json", true).model.dropout != m.dropout)
    fmt::print("model.dropout {} is not in config.json: Hugging Face's {} has none; it acts in training alone\n",
               m.dropout, m.arch);
}

int64_t export_safetensors(Source& source, const ExportArgs& args, DType dtype, const std::string& temp) {
  const bool hf = args.naming == "hf";
  if (hf) require_hf_form(source);
  GT_REQUIRE(!hf || dtype != DType::kI8, Exit::kUsage,
             "--naming hf: transformers reads no int8 weights with scales; use --naming native");
  const std::vector<Exported> plan = plan_export(source.weights(), hf, dtype);
  make_directory(source.vfs(), temp);
  ExportStream values(source, plan);
  write_safetensors(source.vfs(), temp, tensors_of(plan), hf ? Notes() : native_notes(source.model()),
                    bytes_from(args.max_shard), std::ref(values));
  write_tokenizer(source, hf, temp);
  if (hf) write_hf_configs(source, dtype, temp);
  sync_directory(source.vfs(), temp);
  return static_cast<int64_t>(plan.size());
}

// PEFT's folder: the adapters alone.
int64_t export_peft(Source& source, DType dtype, const std::string& temp) {
  const ModelConfig& model = source.model();
  GT_REQUIRE(model.lora.rank > 0, Exit::kUsage, "--format peft: ", source.path(),
             " has no adapters: it was not trained with model.lora_rank; use --format safetensors");
  GT_REQUIRE(dtype != DType::kI8, Exit::kUsage,
             "--format peft: PEFT reads no int8 weights with scales; use --dtype f32");
  const std::vector<PeftTensor> tensors = peft_tensors(model);
  std::vector<OutTensor> out;
  for (const PeftTensor& t : tensors) out.push_back({t.name, {t.rows, t.columns}, dtype});
  make_directory(source.vfs(), temp);
  write_safetensors(source.vfs(), temp, out, {}, std::numeric_limits<int64_t>::max(),
                    [&](size_t k, int64_t first, int64_t count) {
                      const PeftTensor& t = tensors[k];
                      return source.stored(t.native, t.first_row * t.columns + first, count);
                    });
  rename_file(source.vfs(), temp + "/model.safetensors", temp + "/adapter_model.safetensors");
  write_synced(source.vfs(), temp + "/adapter_config.json", peft_config_json(model));
  sync_directory(source.vfs(), temp);
  return static_cast<int64_t>(tensors.size());
}

// The dtype that was given; else, for a Hugging Face folder, that of the folder that the run began from; else f32.
DType dtype_from(const std::string& name, bool hf, const Source& source) {
  if (name.empty()) return hf ? stated_dtype(source.base_config()).value_or(DType::kF32) : DType::kF32;
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
    if (name == name_of(t)) return t;
  return DType::kI8;
}

}  // namespace

Exit run_export(const Command& command) {
  auto args = command.get<ExportArgs>();
  install_stop_signals();
  const bool folder = args.format != "hdf5", adapters = args.format == "peft";
  GT_REQUIRE(!adapters || args.naming != "native", Exit::kUsage, "--naming native: PEFT's names are Hugging Face's");
  if (args.naming.empty()) args.naming = folder && args.dtype != "int8" ? "hf" : "native";
  while (args.output.size() > 1 && args.output.back() == '/') args.output.pop_back();
  require_replaceable(args.output, folder, args.force);
  Source source(args);
  const DType dtype = dtype_from(args.dtype, args.naming == "hf" && !adapters, source);
  const std::string temp = cat(args.output, ".tmp-", ::getpid());
  int64_t tensors = 0;
  try {
    tensors = adapters ? export_peft(source, dtype, temp)
              : folder ? export_safetensors(source, args, dtype, temp)
                       : export_hdf5(source, args, dtype, temp);
    commit_output(source.vfs(), temp, args.output, folder);
  } catch (...) {
    std::error_code ec;
    fs::remove_all(temp, ec);
    throw;
  }
  fmt::print("{}: {} tensors of {} as {}, {} names\n", args.output, tensors, source.path(),
             dtype == DType::kI8 ? "int8" : name_of(dtype), args.naming);
  if (adapters)
    fmt::print("load it with peft: PeftModel.from_pretrained(base, \"{}\")\n", args.output);
  else if (folder && args.naming == "hf")
    fmt::print("load it with transformers 4.45 or later: {2}.from_pretrained(\"{0}\"){1}\n", args.output,
               fs::exists(args.output + "/tokenizer.json")
                   ? fmt::format(", AutoTokenizer.from_pretrained(\"{}\")", args.output)
                   : "",
               family_of(source.model()).auto_class);
  return Exit::kOk;
}

}  // namespace gt
