#include "launch/tools/weights/checkpoint_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/weights.h"
#include "kernels/core/text.h"
#include "launch/tools/weights/model_weights.h"

namespace gt {
namespace {

constexpr const char* kFile = "config.json";
constexpr int64_t kMostTokens = 1 << 20;  // per microbatch: more than any device can hold
// Keys read from an untrusted config.json. None is a path, host, command or file name.
const std::vector<std::string> kTaken = {"model",
                                         "precision",
                                         "train.micro_batch",
                                         "train.global_batch",
                                         "train.seed",
                                         "data.split",
                                         "data.order",
                                         "data.pack",
                                         "data.eod_mask_loss",
                                         "data.no_bos",
                                         "data.mask_prob",
                                         "data.max_predictions",
                                         "data.whole_words",
                                         "data.short_prob",
                                         "data.mask_token",
                                         "data.cls_token",
                                         "data.sep_token",
                                         "data.pad_token"};

void require_weights(const StepReader& step, const ModelConfig& model) {
  const std::string where = step.path() + "/" + kFile;
  // Layer names are only generated if the step has at least as many tensors.
  GT_REQUIRE(model.layers <= static_cast<int64_t>(step.manifest().tensors.size()), Exit::kDamaged, where,
             ": model.layers is ", model.layers, ", but the checkpoint holds ", step.manifest().tensors.size(),
             " tensors in all");
  for (const ModelWeight& w : model_weights(model)) {
    const TensorEntry* t = stored_weight(step, w.native);
    GT_REQUIRE(t != nullptr, Exit::kDamaged, step.path(), ": has no weights of ", w.native, ", which ", kFile,
               " requires");
    GT_REQUIRE(std::equal(w.shape.begin(), w.shape.end(), t->shape.dim.begin(), t->shape.dim.begin() + t->shape.rank),
               Exit::kDamaged, step.path(), ": ", t->name, " is ", to_string(t->shape), ", ", kFile, " requires ",
               to_string(w.shape));
  }
}

// Returns the data keys of config.json for display or comparison; defaults if unreadable.
DataConfig recorded_data(const StepReader& step) {
  Config config;
  try {
    const JsonValue saved = parse_json(read_aux(step.path(), kFile), step.path() + "/" + kFile);
    const JsonValue* data = saved.find("data");
    for (const Option& o : list_options(config))
      if (o.section == "data" && (o.name == "train" || o.name == "valid" || o.name == "split"))
        if (const JsonValue* value = data == nullptr ? nullptr : data->find(o.name)) set_from_json(o, *value);
  } catch (const Error&) {}
  return config.data;
}

// Returns "--data.train 'my corpus' --data.split 90,10".
std::string data_flags(const DataConfig& data) {
  std::string out;
  const auto add = [&](const char* flag, const std::vector<DataSource>& sources) {
    if (sources.empty()) return;
    out += fmt::format("{}--data.{}", out.empty() ? "" : " ", flag);
    for (const DataSource& s : sources)
      out += s.weight != 0 ? fmt::format(" {} {}", s.weight, shell_word(printable(s.path)))
                           : " " + shell_word(printable(s.path));
  };
  add("train", data.train);
  add("valid", data.valid);
  return out;
}

bool is_mock(const DataConfig& data) {
  return data.train.size() == 1 && data.train[0].path == "mock" && data.valid.empty();
}

}  // namespace

const TensorEntry* stored_weight(const StepReader& step, const std::string& native) {
  const TensorEntry* t = step.find("master/" + native);
  return t != nullptr ? t : step.find("model/" + native);
}

LoadedConfig load_checkpoint_config(const StepReader& step, ConfigSource source) {
  const std::string file = step.path() + "/" + kFile;
  const auto& aux = step.manifest().aux;
  GT_REQUIRE(std::any_of(aux.begin(), aux.end(), [](const AuxEntry& a) { return a.name == kFile; }), Exit::kUsage,
             step.path(), ": has no config.json, so the model is unknown");
  LoadedConfig alone;
  try {
    alone = load_config({.file = file, .only = kTaken});
  } catch (const Error& e) {
    const std::string what = e.what();
    throw Error(what.find(file) == std::string::npos ? file + ": " + what : what, Exit::kDamaged);
  }
  require_weights(step, alone.config.model);
  const Config& c = alone.config;
  GT_REQUIRE(c.train.micro_batch <= kMostTokens / c.model.seq, Exit::kDamaged, file, ": train.micro_batch ",
             c.train.micro_batch, " of ", c.model.seq, " tokens each, expected at most ", kMostTokens,
             " tokens in all");
  if (source.flags.empty() && source.external_world == 0) return alone;
  source.file = file;
  source.only = kTaken;
  return load_config(source);
}

Config checkpoint_config(const StepReader& step, const std::vector<std::string>& flags) {
  return load_checkpoint_config(step, {.flags = flags}).config;
}

std::vector<std::string> flags_with_data(const StepReader& step, const std::vector<std::string>& flags,
                                         const std::vector<std::string>& words) {
  std::vector<std::string> alone{"--train.grad_accum", "1", "--train.global_batch", "0"};  // valid for any layout
  alone.insert(alone.end(), flags.begin(), flags.end());
  const DataConfig given = checkpoint_config(step, alone).data, recorded = recorded_data(step);
  if (!given.train.empty() || !given.valid.empty()) return flags;
  std::vector<std::string> out = flags;
  if (is_mock(recorded)) {
    out.insert(out.end(), {"--data.train", "mock"});
    return out;
  }
  const std::string data = data_flags(recorded);
  GT_REQUIRE(!data.empty(), Exit::kUsage, "data.train: the run of ", step.path(),
             " names no data; give --data.valid PREFIX");
  std::string line = "gpttrain";
  for (const std::string& w : words) line += " " + shell_word(w);
  fail(Exit::kUsage,
       "data.train: missing; paths recorded in a checkpoint are not opened automatically. To use them:\n  ", line, " ",
       data);
}

}  // namespace gt
