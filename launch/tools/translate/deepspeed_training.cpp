// Progressive layer drop, sequence-length curriculum and step profile of a DeepSpeed file.
#include <string>
#include <utility>
#include <vector>

#include "launch/tools/translate/deepspeed_translation.h"

namespace gt {
namespace {

// Returns whether the block is enabled; reports a block that is present but disabled.
bool enabled(DsTranslation& t, const std::string& block) {
  const std::string key = block + ".enabled";
  const bool on = t.flag(key, false);
  if (!on && t.given(key)) t.report(key, "off");
  return on;
}

void layer_drop(DsTranslation& t) {
  const std::string block = "progressive_layer_drop";
  if (!enabled(t, block)) return;
  t.set(block + ".enabled", "train.pld", "true");
  for (const char* key : {"theta", "gamma"})
    if (const std::string path = block + "." + key; t.given(path))
      t.set(path, std::string("train.pld_") + key, t.text(path, ""));
}

std::vector<std::string> words(const DsValue& v) {
  std::vector<std::string> out;
  for (const JsonValue& item : v.value.items) out.push_back(item.text);
  return out;
}

void curriculum(DsTranslation& t) {
  const std::string block = "curriculum_learning", config = block + ".schedule_config.";
  if (!enabled(t, block)) return;
  const std::string type = t.text(block + ".schedule_type", "");
  if (type.empty())
    return t.refuse(block, "is enabled without a schedule_type", "give fixed_linear, fixed_root or fixed_discrete");
  const bool discrete = type == "fixed_discrete";
  std::vector<std::pair<std::string, std::string>> required;
  if (discrete) {
    required = {{config + "difficulty", "data.curriculum_lengths"}, {config + "max_step", "data.curriculum_until"}};
  } else {
    required = {{block + ".min_difficulty", "data.curriculum_min"},
                {block + ".max_difficulty", "data.curriculum_max"},
                {config + "total_curriculum_step", "data.curriculum_steps"},
                {config + "difficulty_step", "data.curriculum_step"}};
    if (type == "fixed_root") required.push_back({config + "root_degree", "data.curriculum_root"});
  }
  t.set(block + ".schedule_type", "data.curriculum", type);
  t.report(block + ".enabled", "-> data.curriculum " + type);
  if (discrete)
    for (const char* key : {".min_difficulty", ".max_difficulty"})
      if (t.given(block + key)) t.report(block + key, "no effect: fixed_discrete lists its lengths");
  for (const auto& [path, native] : required) {
    if (const DsValue* v = t.given(path); v == nullptr)
      t.refuse(block, "has no " + path.substr(block.size() + 1) + ", which " + type + " needs", "add it");
    else if (discrete)
      t.set(path, native, words(*v));
    else
      t.set(path, native, v->value.text);
  }
}

void profiler(DsTranslation& t) {
  const std::string block = "flops_profiler";
  if (!enabled(t, block)) return;
  t.set(block + ".enabled", "log.flops_step", std::to_string(t.integer(block + ".profile_step", 1)));
  constexpr std::pair<const char*, const char*> kKeys[] = {{".module_depth", "log.flops_depth"},
                                                           {".top_modules", "log.flops_top"},
                                                           {".output_file", "log.flops_file"},
                                                           {".recompute_fwd_factor", "log.flops_recompute_factor"}};
  for (const auto& [key, native] : kKeys)
    if (t.given(block + key)) t.set(block + key, native, t.text(block + key, ""));
  if (t.given(block + ".detailed"))
    t.set(block + ".detailed", "log.flops_detailed", t.flag(block + ".detailed", true) ? "true" : "false");
}

}  // namespace

void translate_training(DsTranslation& t) {
  layer_drop(t);
  curriculum(t);
  profiler(t);
}

}  // namespace gt
