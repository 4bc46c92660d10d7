#include "launch/tools/weights/origin.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "checkpoint/weights/source_file.h"
#include "data/bpe/tiktoken.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/file_kind.h"
#include "kernels/core/files.h"
#include "kernels/core/text.h"
#include "launch/tools/weights/exported_config.h"
#include "launch/tools/weights/hub_paths.h"
#include "launch/tools/weights/import.h"
#include "launch/tools/weights/model_weights.h"
#include "launch/tools/weights/tensor_match.h"
#include "launch/train/kept_files.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Keys that every note of our exports has.
constexpr const char* kSizes[] = {"layers", "hidden", "heads", "ffn", "vocab", "seq"};

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
  for (const WeightInfo& w : o.file->list()) shapes[bare_name(w.name, o)] = w.shape;
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

// Throws kUsage if tokenizer.model is damaged.
void require_sound_model(const std::string& folder) {
  const std::string model = folder + "/tokenizer.model";
  std::error_code ec;
  if (!fs::exists(model, ec)) return;
  const std::string bytes = read_whole_file(model, kMaxTokenizerFile);
  if (!is_tiktoken(bytes)) Tokenizer::from_bytes(bytes, model);
}

// Returns the folder if its tokenizer can be read, or "". Weights are useful without one, so an unsupported tokenizer
// is only a warning. Throws kUsage if tokenizer.model is damaged.
std::string tokenizer_in(const std::string& folder, std::vector<std::string>& warnings) {
  if (!holds_tokenizer(folder)) return "";
  require_sound_model(folder);
  try {
    Tokenizer::load(folder);
    return folder;
  } catch (const Error& e) {
    if (e.code() != Exit::kUsage) throw;
    warnings.push_back(cat(e.what(), "; imported without a tokenizer, whose files are kept for gpttrain export"));
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

// Whether a text of a file's metadata is the note of our exports before kModelNote, which foreign files may have too.
bool is_older_note(const std::string& text) {
  JsonValue json;
  try {
    json = parse_json(text, "");
  } catch (const Error&) { return false; }
  return std::all_of(std::begin(kSizes), std::end(kSizes), [&](const char* key) {
    const JsonValue* v = json.find(key);
    return v != nullptr && v->kind == JsonValue::Kind::kNumber;
  });
}

// Returns what our own export states about its model; "": it is none of ours.
std::string own_note(const WeightFile& file) {
  if (const std::string note = file.note(kModelNote); !note.empty()) return note;
  const std::string older = file.note("model");
  return is_older_note(older) ? older : "";
}

// A config.json decides; without one it is an export with our names, which describes itself.
Origin open_folder(Vfs& vfs, const std::string& path, bool ignore_unknown) {
  Origin o;
  const std::string config = path + "/config.json";
  if (is_there(config)) {
    HfConfig c = parse_hf_config(read_json_file(config), config, ignore_unknown);
    o.model = c.model;
    o.hf = true;
    o.warnings = c.warnings;
    o.file = open_safetensors(vfs, path);
    o.aux = base_configs(path);
    return o;
  }
  GT_REQUIRE(snapshot_in(path).empty(), Exit::kUsage, path, ": holds no config.json", without_config(path));
  o.file = open_safetensors(vfs, path);
  const std::string note = own_note(*o.file);
  GT_REQUIRE(!note.empty(), Exit::kUsage, path, ": holds no config.json", without_config(path));
  o.model = model_from_note(note, path);
  return o;
}

// Returns nullptr unless it is a PEFT folder.
std::unique_ptr<PeftFolder> open_adapter(Vfs& vfs, const std::string& folder, bool ignore_unknown) {
  if (!is_peft_folder(folder)) return nullptr;
  return std::make_unique<PeftFolder>(vfs, folder, [ignore_unknown](const std::string& base) {
    const std::string file = base + "/config.json";
    return checked_model(parse_hf_config(read_json_file(file), file, ignore_unknown).model, file);
  });
}

// Whether the tokenizer is stored in another form than the folder's, which an export then writes as it came.
bool is_converted(const std::string& folder) {
  const std::vector<TokenizerFile> files = tokenizer_files(folder);
  return std::any_of(files.begin(), files.end(), [](const TokenizerFile& f) { return !f.text.empty(); });
}

// Settles the tokenizer: the folder's, unless another is given, whose ids then take the place of the folder's.
void settle_tokenizer(Origin& o, const std::string& folder, const std::string& given) {
  std::error_code ec;
  if (given.empty() || fs::equivalent(given, folder, ec)) {
    o.tokenizer = tokenizer_in(folder, o.warnings);
    if (o.hf && (o.tokenizer.empty() || is_converted(folder))) {
      const std::vector<AuxFile> files = base_tokenizer(folder);
      o.aux.insert(o.aux.end(), files.begin(), files.end());
    }
    return;
  }
  o.tokenizer = given;
  o.other_ids = other_ids(given, folder);
  if (o.other_ids.empty()) return;
  std::erase_if(o.aux, [](const AuxFile& f) { return f.name == kBaseGeneration; });
  for (AuxFile& f : o.aux)
    if (f.name == kBaseConfig) f.text = with_ids_of(Tokenizer::load(given), f.text);
}

}  // namespace

ModelConfig checked_model(const ModelConfig& model, const std::string& where) {
  try {
    return load_config({.flags = model_flags(model)}).config.model;
  } catch (const Error& e) { throw Error(where + ": " + e.what(), Exit::kDamaged); }
}

Origin open_origin(Vfs& vfs, const ImportArgs& args) {
  std::error_code ec;
  GT_REQUIRE(is_there(args.from), Exit::kUsage, args.from, ": does not exist", how_to_get(args.from));
  link_target(args.from);  // leads somewhere
  if (fs::is_directory(args.from, ec)) {
    std::unique_ptr<PeftFolder> adapter = open_adapter(vfs, args.from, args.ignore_unknown);
    const std::string base = adapter ? adapter->base() : args.from;
    Origin folder = open_folder(vfs, base, args.ignore_unknown);
    if (adapter) folder.model = adapter->model();
    folder.adapter = std::move(adapter);
    settle_tokenizer(folder, base, args.tokenizer);
    return folder;
  }
  GT_REQUIRE(fs::is_regular_file(args.from, ec), Exit::kUsage, args.from, ": is neither a file nor a folder");
  std::string head(kKindBytes, '\0');
  const ssize_t n = pread(open_to_read(args.from).get(), head.data(), head.size(), 0);
  GT_REQUIRE(n >= 0, Exit::kIo, args.from, ": cannot be read: ", std::strerror(errno));
  int32_t magic = 0;
  std::memcpy(&magic, head.data(), sizeof magic);
  Origin o{.tokenizer = args.tokenizer};
  if (head.starts_with("\x89HDF\r\n\x1a\n")) {
    o.file = open_h5(vfs, args.from);
  } else if (magic == 20240326) {
    o.file = open_llmc(vfs, args.from, llmc_tensors);
  } else {
    head.resize(static_cast<size_t>(n));
    const std::string kind = other_kind(head);
    fail(Exit::kDamaged, args.from, ": ", kind.empty() ? "" : kind + "; it ",
         "is neither HDF5 nor an llm.c model (.bin, magic 20240326); a Hugging Face model is given as its folder");
  }
  const std::string note = own_note(*o.file);
  o.model = note.empty() ? model_from_shapes(o, args.heads, args.from) : model_from_note(note, args.from);
  return o;
}

GivenModel model_of_folder(const std::string& folder, bool ignore_unknown) {
  std::error_code ec;
  if (is_there(folder)) link_target(folder);  // leads somewhere
  GT_REQUIRE(fs::is_directory(folder, ec), Exit::kUsage, "--from: ", folder, " is not a folder", how_to_get(folder));
  Vfs vfs;
  const std::unique_ptr<PeftFolder> adapter = open_adapter(vfs, folder, ignore_unknown);
  const std::string base = adapter ? adapter->base() : folder, file = base + "/config.json";
  GT_REQUIRE(is_there(file), Exit::kUsage, "--from: ", folder, " holds no config.json", without_config(folder));
  HfConfig hf = parse_hf_config(read_json_file(file), file, ignore_unknown);
  GivenModel out{.model = checked_model(adapter ? adapter->model() : hf.model, file), .file = file};
  out.folder = fs::absolute(base).lexically_normal().string();
  out.tokenizer = tokenizer_in(base, hf.warnings);
  const fs::path path = fs::absolute(folder).lexically_normal();
  out.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return out;
}

}  // namespace gt
