#include "launch/tools/generate/generation_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

using Json = nlohmann::json;

// Keys that change no text, or that were read.
constexpr std::string_view kRead[] = {"do_sample",    "temperature",  "top_k",          "top_p",     "max_new_tokens",
                                      "stop_strings", "eos_token_id", "bos_token_id",   "use_cache", "pad_token_id",
                                      "chat_format",  "low_memory",   "max_window_size"};
constexpr std::string_view kUnrelated[] = {"_",         "transformers_version", "cache_",   "output_",      "return_",
                                           "assistant", "num_assistant",        "decoder_", "renormalize_", "disable_",
                                           "prefill_"};

// Whether a key without an option here has the value that changes nothing.
bool is_neutral(const std::string& key, const Json& value) {
  const bool limit = key.starts_with("min_") || key.starts_with("no_");
  if (value.is_number()) return value == 0 || (value == 1 && !limit);
  return value.is_null() || value == false || value.empty();
}

std::string shown(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60); }

class Reader {
 public:
  Reader(const Json& config, const std::vector<std::string>& words) : config_(config), words_(words) {}

  template <class T>
  void take(const char* key, const char* option, double low, double high, T* to) {
    const auto at = config_.find(key);
    if (at == config_.end() || at->is_null() || given(option)) return;
    const bool fits = std::is_integral_v<T> ? at->is_number_integer() : at->is_number();
    if (!fits || at->get<double>() < low || at->get<double>() > high) return ignore(key, *at);
    set(option, at->get<T>(), to);
  }
  template <class T>
  void set(const char* option, T value, T* to) {
    if (given(option)) return;
    *to = value;
    append(applied_, option, Json(value));
  }
  void take_stops(std::vector<std::string>* to) {
    const auto at = config_.find("stop_strings");
    if (at == config_.end() || at->is_null() || given("stop")) return;
    const Json all = at->is_array() ? *at : Json::array({*at});
    for (const Json& s : all)
      if (!s.is_string() || s.empty() || s == "") return ignore("stop_strings", *at);
    *to = all.get<std::vector<std::string>>();
    append(applied_, "stop", all);
  }
  void read_others() {
    const bool limited = config_.contains("max_new_tokens");
    for (const auto& [key, value] : config_.items()) {
      const auto begins = [&key = key](std::string_view s) { return key.starts_with(s); };
      if (std::find(std::begin(kRead), std::end(kRead), key) != std::end(kRead) || is_neutral(key, value) ||
          std::any_of(std::begin(kUnrelated), std::end(kUnrelated), begins) || (limited && key == "max_length"))
        continue;
      ignore(key.substr(0, 60), value);
    }
  }
  std::string note() const {
    if (applied_.empty() && ignored_.empty()) return "";
    return cat("by generation_config.json of the model's folder: ", applied_.empty() ? "no option" : applied_,
               ignored_.empty() ? "" : "; not applied: " + ignored_);
  }

 private:
  bool given(const std::string& option) const {
    return std::any_of(words_.begin(), words_.end(),
                       [&](const std::string& w) { return w == "--" + option || w.starts_with("--" + option + "="); });
  }
  static void append(std::string& list, const std::string& name, const Json& value) {
    list += cat(list.empty() ? "" : ", ", name, ' ', shown(value));
  }
  void ignore(const std::string& key, const Json& value) { append(ignored_, key, value); }

  const Json& config_;
  const std::vector<std::string>& words_;
  std::string applied_, ignored_;
};

}  // namespace

FolderGeneration take_generation_config(const std::string& text, const std::vector<std::string>& words,
                                        GenerateArgs* args) {
  FolderGeneration out;
  const auto config = parse_json_if_valid<Json>(text);
  if (!config.is_object()) return out;
  if (const auto ids = config.find("eos_token_id"); ids != config.end())
    for (const auto& id : ids->is_array() ? *ids : Json::array({*ids}))
      if (id.is_number_integer()) out.ends.push_back(id.get<int64_t>());
  Reader r(config, words);
  const auto sample = config.find("do_sample");
  if (sample != config.end() && *sample == false) r.set("temperature", 0.0, &args->temperature);
  if (sample != config.end() && *sample == true) {
    r.take("temperature", "temperature", 0, 100, &args->temperature);
    r.take("top_k", "top-k", 0, 1e9, &args->top_k);
    r.take("top_p", "top-p", 1e-9, 1, &args->top_p);
  }
  r.take("max_new_tokens", "max-tokens", 1, 1 << 20, &args->max_tokens);
  r.take_stops(&args->stop);
  r.read_others();
  out.note = r.note();
  return out;
}

}  // namespace gt
