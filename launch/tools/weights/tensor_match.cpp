#include "launch/tools/weights/tensor_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "kernels/core/text.h"

namespace gt {
namespace {

constexpr std::string_view kPairs = "pairs.";

// Returns whether a tensor is a buffer saved by old versions of transformers: a mask, not a weight.
bool is_buffer(const std::string& name) {
  const auto ends = [&](const std::string& end) {
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  return ends(".attn.bias") || ends(".attn.masked_bias") || ends(".rotary_emb.inv_freq") ||
         ends("embeddings.position_ids");
}

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

// What wraps a model and puts its name before those of all tensors.
struct Wrapper {
  std::string_view prefix;
  const char* text;
};
constexpr Wrapper kWrappers[] = {
    {"_orig_mod.", "that of torch.compile: save the module that it compiled, model._orig_mod"},
    {"module.", "that of DistributedDataParallel: save the module that it wraps, model.module"},
    {"_fsdp_wrapped_module.", "that of FSDP: save its full state dictionary"},
    {"_forward_module.", "that of a training library: save the module that it wraps"},
    {"base_model.model.", "PEFT's: merge the adapters, model.merge_and_unload(), and save the result"},
};

// Returns the prefix that all tensors of a folder have before their names; "": none.
std::string extra_prefix(const Origin& o, const std::vector<ModelWeight>& weights) {
  const std::vector<WeightInfo>& list = o.file->list();
  if (!o.hf || list.empty() || weights.empty() || weights.front().hf.empty()) return "";
  const std::string own = family_of(o.model).prefix, known = bare_name(weights.front().hf.front().name, o);
  for (const WeightInfo& w : list) {
    if (!w.name.ends_with("." + known)) continue;
    std::string prefix = w.name.substr(0, w.name.size() - known.size());
    if (prefix.ends_with(own)) prefix.resize(prefix.size() - own.size());
    const bool all = std::all_of(list.begin(), list.end(), [&](const auto& t) { return t.name.starts_with(prefix); });
    if (all) return prefix;
  }
  return "";
}

// Reports a prefix of all names once, instead of every name that is missing for it.
void require_no_prefix(const Origin& o, const std::vector<ModelWeight>& weights, const std::string& where) {
  const std::string prefix = extra_prefix(o, weights);
  if (prefix.empty()) return;
  std::string whose = "which the names of this family do not have: rename the tensors, or save the model itself";
  for (const Wrapper& w : kWrappers)
    if (prefix.starts_with(w.prefix)) whose = w.text;
  fail(Exit::kDamaged, where, ": all ", o.file->list().size(), " tensors have the prefix \"", printable(prefix), "\", ",
       whose, ", with save_pretrained");
}

using Found = std::map<std::string, size_t>;

// Returns whether a BERT has been saved without the pooler and the classes of sentence pairs: BertForMaskedLM.
bool lacks_pairs(const Origin& o, const std::vector<ModelWeight>& weights, const Found& found) {
  if (!o.hf || !o.model.predicts_pairs()) return false;
  return std::none_of(weights.begin(), weights.end(), [&](const ModelWeight& w) {
    return w.native.starts_with(kPairs) && !w.hf.empty() && found.count(bare_name(w.hf[0].name, o)) > 0;
  });
}

// Second copies of weights, compared with the first later.
void match_copies(const Origin& o, const std::vector<ModelWeight>& weights, Found& found, TensorMatch& out,
                  std::vector<std::string>& problems) {
  for (size_t k = 0; k < weights.size(); ++k) {
    const bool tied = !o.hf && o.model.tied && weights[k].native == "embed.weight";
    for (const std::string& name :
         o.hf ? weights[k].hf_copies : std::vector<std::string>(tied ? 1 : 0, "head.weight")) {
      const auto copy = found.find(o.hf ? bare_name(name, o) : name);
      if (copy == found.end()) continue;
      const WeightInfo& info = o.file->list()[copy->second];
      if (info.shape == weights[k].shape)
        out.copies.emplace(k, copy->second);
      else
        problems.push_back(
            fmt::format("{}: {}, expected {}", info.name, to_string(info.shape), to_string(weights[k].shape)));
      found.erase(copy);
    }
  }
}

}  // namespace

// Norms of the first BERT folders have the names of
// TensorFlow, which transformers translates too.
std::string bare_name(const std::string& name, const Origin& o) {
  const std::string prefix = o.hf ? family_of(o.model).prefix : "model/";
  std::string out = name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
  for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, {".beta", ".bias"}})
    if (o.hf && out.ends_with(old)) out.replace(out.size() - std::strlen(old), std::string::npos, now);
  return out;
}

TensorMatch match_tensors(Origin& o, const std::vector<ModelWeight>& weights, const std::string& where) {
  Found found;
  std::vector<std::string> problems;
  for (size_t k = 0; k < o.file->list().size(); ++k) {
    const std::string name = bare_name(o.file->list()[k].name, o);
    if (o.hf && is_buffer(name)) continue;
    if (!found.emplace(name, k).second) problems.push_back(name + ": occurs twice, with and without its prefix");
  }
  TensorMatch out{.positions = std::vector<std::vector<WeightPosition>>(weights.size()), .copies = {}};
  out.tensors = found.size();
  const bool no_pairs = lacks_pairs(o, weights, found);
  if (no_pairs)
    o.warnings.push_back(
        "the folder has no pooler and no classes of sentence pairs, as BertForMaskedLM: both begin at their initial "
        "values");
  for (size_t k = 0; k < weights.size(); ++k) {
    const ModelWeight& w = weights[k];
    if (w.adapter || (no_pairs && w.native.starts_with(kPairs))) continue;
    out.positions[k].resize(o.hf ? w.hf.size() : 1);
    if (out.positions[k].empty())
      problems.push_back(fmt::format("{}: the family {} has no such tensor", w.native, o.model.arch));
    for (size_t b = 0; b < out.positions[k].size(); ++b) {
      const std::string name = o.hf ? w.hf[b].name : w.native;
      const std::string bad = position_of(*o.file, found, o.hf ? bare_name(name, o) : name,
                                          o.hf ? w.hf_shape(b) : w.shape, out.positions[k][b]);
      if (!bad.empty()) problems.push_back(fmt::format("{}: {}", name, bad));
    }
  }
  match_copies(o, weights, found, out, problems);
  for (const auto& [name, k] : found) problems.push_back(o.file->list()[k].name + ": unknown");
  if (problems.empty()) return out;
  require_no_prefix(o, weights, where);
  constexpr size_t kShown = 40;
  const size_t all = problems.size();
  if (all > kShown) problems.resize(kShown), problems.push_back(fmt::format("… and {} more", all - kShown));
  fail(Exit::kDamaged, where,
       ": does not fit the model that it describes:", fmt::format("\n  {}", fmt::join(problems, "\n  ")));
}

}  // namespace gt
