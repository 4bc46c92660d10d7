#include "launch/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "kernels/core/check.h"
#include "launch/config/config_alias.h"
#include "launch/config/config_check.h"
#include "launch/options/foreign_text.h"
#include "launch/options/near_word.h"
#include "launch/options/value_words.h"

namespace gt {
namespace {

struct SectionLister {
  std::vector<Option>& out;
  template <class S>
  void operator()(const char* name, S& section) {
    OptionCollector collect{out, name};
    section.fields(collect);
  }
};

template <class V>
void visit_sections(Config& c, V&& v) {
  v("model", c.model), v("parallel", c.parallel), v("zero", c.zero), v("precision", c.precision);
  v("optim", c.optim), v("schedule", c.schedule), v("train", c.train), v("data", c.data);
  v("checkpoint", c.checkpoint), v("log", c.log), v("device", c.device), v("launch", c.launch);
  v("comm", c.comm), v("fault", c.fault);
}

// Reads one file and one list of flags into a Config and collects every problem.
class Reader {
 public:
  Reader(LoadedConfig& loaded, const ConfigSource& source)
      : problems(source.problems),
        loaded_(loaded),
        options_(list_options(loaded.config)),
        source_(source),
        only_(source.only) {
    for (const Option& o : options_) {
      keys_.push_back(o.key());
      by_key_.emplace(o.key(), &o);
      if (sections_.empty() || sections_.back() != o.section) sections_.push_back(o.section);
    }
  }

  void file(const std::string& path) {
    if (const UrlProblem url = url_problem(path)) return problems.add("--config", "", url.reason, url.fix);
    std::string text;
    try {
      text = read_json_file(path);
    } catch (const Error& e) { return problems.add("--config", "", e.what()); }
    JsonValue root;
    try {
      root = parse_json(text, path);
    } catch (const Error& e) { return not_json(path, text, e); }
    if (root.kind != JsonValue::Kind::kObject)
      return problems.add(path, "", fmt::format("expected an object of sections, found {}", kind_name(root.kind)));
    for (size_t i = 0; i < root.keys.size(); ++i) section(path, root.keys[i], root.items[i]);
  }

  // Applied between file and flags. Notes the file settings that it replaces or overrides.
  void foreign(const ForeignConfig& theirs) {
    trainer_ = theirs.trainer;
    for (const std::string& line : theirs.report) note(line);
    set_aside(theirs);
    for (const ForeignSetting& s : theirs.settings) {
      const Option* option = find(s.key);
      GT_CHECK(option != nullptr, theirs.trainer, " sets ", s.key);
      const std::string before = value_text(*option), from = origin_of(s.key);
      store(*option, s.origin, set_from_words(*option, s.words));
      if (!from.empty() && !is_foreign(from) && before != value_text(*option))
        note(fmt::format("{} {} {} overrides {} of {}", s.origin, s.key, value_text(*option), before, from));
    }
  }

  void flags(const std::vector<std::string>& words) {
    for (size_t i = 0; i < words.size();) {
      std::string name = words[i++];
      if (name.rfind("--", 0) != 0 || name.size() < 3) {
        problems.add("", name, "expected a flag that begins with --", "values follow their flag: --train.steps 100");
        continue;
      }
      std::vector<std::string> values;
      bool attached = false;
      if (const size_t eq = name.find('='); eq != std::string::npos) {
        values.push_back(name.substr(eq + 1));
        name.resize(eq);
        attached = true;
      }
      std::string key = name.substr(2);
      const Alias* alias = find_alias(key);
      const Option* option = find(alias ? alias->key : key);
      const bool list = option && takes_list(*option);
      const bool bare = alias && alias->value;
      // launcher_args takes exactly one word, which nearly always begins with dashes.
      if (!attached && option && option->domain == "WORDS" && i < words.size()) values.push_back(words[i++]);
      while (!attached && !bare && i < words.size() && words[i].rfind("--", 0) != 0 &&
             (values.empty() || list || !option)) {
        values.push_back(words[i++]);
      }
      if (bare) values = {alias->value};
      if (!option) {
        unknown(name, key, values.empty() ? "" : values[0]);
      } else if (!admits(source_.keys, option->key())) {
        without_effect(name, *option);
      } else {
        // The last occurrence wins, so that a command can be repeated with a value appended.
        if (!given_flags_.insert(option->key()).second)
          loaded_.notes.push_back(fmt::format("{} was given more than once: the last value is used", name));
        if (alias && alias->note) loaded_.notes.push_back(fmt::format("{} = {}", name, option->key()));
        if (const std::string from = origin_of(option->key()); is_foreign(from))
          note(fmt::format("{} {} overrides {} {} {}", name, fmt::join(values, " "), from, option->key(),
                           value_text(*option)));
        store(*option, name, set_from_words(*option, values));
      }
    }
  }

  Problems problems;

 private:
  void not_json(const std::string& path, const std::string& text, const Error& e) {
    const std::string foreign = foreign_config(path, text);
    if (foreign.empty()) return problems.add("", "", e.what());
    problems.add(path, "", foreign);
  }

  const Option* find(const std::string& key) const {
    const auto it = by_key_.find(key);
    return it == by_key_.end() ? nullptr : it->second;
  }

  // Returns whether `only` contains this section, a key of it, or this key.
  bool selected(const std::string& section, const std::string& key = "") const {
    return only_.empty() || std::any_of(only_.begin(), only_.end(), [&](const std::string& o) {
             return o == section || (key.empty() ? o.rfind(section + ".", 0) == 0 : o == key);
           });
  }

  std::string origin_of(const std::string& key) const {
    const auto it = loaded_.origin.find(key);
    return it == loaded_.origin.end() ? "" : it->second;
  }

  void note(const std::string& text) { loaded_.notes.push_back(trainer_ + ": " + text); }

  // Returns whether an origin is that of a ForeignSetting.
  static bool is_foreign(const std::string& origin) { return origin.ends_with(" ->"); }

  void set_aside(const ForeignConfig& theirs) {
    Config fresh;
    const std::vector<Option> defaults = list_options(fresh);
    std::string list;
    for (size_t i = 0; i < options_.size(); ++i) {
      const std::string& key = keys_[i];
      if (!theirs.determines(key) || loaded_.origin.erase(key) == 0) continue;
      GT_CHECK(set_from_words(options_[i], {value_text(defaults[i])}).empty(), "default of ", key);
      list += (list.empty() ? "" : ", ") + key;
    }
    if (!list.empty()) note(fmt::format("{} replaces {} of --config", theirs.name, list));
  }

  std::string key_elsewhere(std::string_view name) const {
    const std::string key = gt::key_elsewhere(name);
    return key.empty() && source_.names != nullptr ? source_.names->native(name) : key;
  }

  void store(const Option& option, const std::string& where, const std::string& error) {
    if (error.empty())
      loaded_.origin[option.key()] = where;
    else
      problems.add(where, option.key(), error);
  }

  void section(const std::string& path, const std::string& name, const JsonValue& value) {
    if (!selected(name)) return;
    const std::string where = fmt::format("{}:{}", path, value.line);
    if (std::find(sections_.begin(), sections_.end(), name) == sections_.end()) {
      if (problems.full()) return problems.add(where, name, "unknown section");
      const std::string guess = did_you_mean(name, sections_);
      std::string fix =
          guess.empty() ? fmt::format("sections are {}", fmt::join(sections_, ", ")) : "did you mean " + guess + "?";
      const std::string elsewhere = key_elsewhere(name);
      for (const std::string& k : keys_)  // suggests {"optim": {"lr": 1}} for {"lr": 1}
        if (k.substr(k.find('.') + 1) == name || k == elsewhere) fix = "did you mean " + k + "?";
      if (const std::string advice = source_.names != nullptr ? source_.names->advice(name, path) : ""; !advice.empty())
        fix = advice;
      if (name == "architectures") fix = "a key of Hugging Face's config.json: give a model's folder as --from";
      return problems.add(where, name.substr(0, 200), "unknown section", fix);
    }
    if (value.kind != JsonValue::Kind::kObject)
      return problems.add(where, name, fmt::format("expected an object, found {}", kind_name(value.kind)));
    for (size_t i = 0; i < value.keys.size(); ++i) {
      const std::string key = name + "." + value.keys[i];
      if (!selected(name, key)) continue;
      const std::string at = fmt::format("{}:{}", path, value.items[i].line);
      if (const Option* option = find(key))
        store(*option, at, set_from_json(*option, value.items[i]));
      else
        unknown(at, key);
    }
  }

  bool taken(const Option& o, bool flag) const { return !flag || admits(source_.keys, o.key()); }

  static std::string joined_words(std::string key) {  // "lora-rank", "lora.rank": "lora_rank"
    for (char& c : key)
      if (c == '-' || c == '.') c = '_';
    return key;
  }

  // Names of other trainers first, then the same section, then all. For flags, only those that the subcommand accepts.
  // `value`: what follows a flag. One of letters is none of the subcommand's numbers: --device H100 is no --devices.
  std::string nearest(const std::string& key, bool flag, const std::string& value) const {
    std::vector<std::string> in_section, keys, names;
    const size_t dot = key.find('.');
    const std::string section = key.substr(0, dot == std::string::npos ? 0 : dot);
    const std::string last = key.substr(dot == std::string::npos ? 0 : dot + 1);
    const std::string elsewhere = key_elsewhere(last), words = joined_words(key);
    std::string same;
    for (const Option& o : options_) {
      if (!taken(o, flag)) continue;
      if (o.key() == elsewhere || words == o.name || words == joined_words(o.key())) return o.key();
      keys.push_back(o.key()), names.push_back(o.name);
      if (dot != std::string::npos && o.section == section) in_section.push_back(o.name);
      if (same.empty() && o.name == last) same = o.key();
    }
    if (const std::string guess = did_you_mean(last, in_section); !guess.empty()) return section + "." + guess;
    if (!same.empty()) return same;
    if (const std::string guess = flag ? did_you_mean(key, source_.other_flags) : ""; !guess.empty()) {
      int64_t number;
      for (const std::string& other : source_.other_flags)
        if (!value.empty() && !parse_int(value, number) && guess == key + "s" && other.starts_with(key + "_"))
          return other;
      return guess;
    }
    if (const std::string guess = did_you_mean(key, keys); !guess.empty()) return guess;
    if (const std::string guess = flag ? did_you_mean(key, alias_names(source_.keys)) : ""; !guess.empty())
      return guess;
    if (const std::string guess = dot == std::string::npos ? did_you_mean(last, names) : ""; !guess.empty())
      for (const Option& o : options_)
        if (o.name == guess && taken(o, flag)) return o.key();
    return "";
  }

  std::string see_help() const { return fmt::format("see gpttrain {} --help", source_.command); }

  void unknown(const std::string& where, const std::string& key, const std::string& value = "") {
    const bool flag = where[0] == '-';
    if (problems.full()) return problems.add(where, key.substr(0, 200), flag ? "unknown flag" : "unknown key");
    const std::string guess = nearest(key, flag, value);
    problems.add(where, key.substr(0, 200), flag ? "unknown flag" : "unknown key",
                 guess.empty() ? see_help() : fmt::format("did you mean {}{}?", flag ? "--" : "", guess));
  }

  void without_effect(const std::string& flag, const Option& option) {
    std::string guess;  // subcommand flag of the same name: --seed for --train.seed
    for (const std::string& own : source_.other_flags)
      if (own == option.name) guess = own;
    if (guess.empty()) guess = nearest(option.key(), true, "");
    problems.add(
        flag, option.key(), fmt::format("has no effect on gpttrain {}", source_.command),
        guess.empty() ? "leave it out; " + see_help() : fmt::format("leave it out, or did you mean --{}?", guess));
  }

  LoadedConfig& loaded_;
  std::vector<Option> options_;
  const ConfigSource& source_;
  std::vector<std::string> keys_, sections_, only_;
  std::string trainer_;  // of the foreign file
  std::unordered_map<std::string, const Option*> by_key_;
  std::set<std::string> given_flags_;
};

bool shapes_adapter(const std::string& key) {
  return key == "lora_rank" || key == "lora_targets" || key == "lora_separate_qkv";
}

// Applies the values of a model that exists to fields that the user did not set, and reports those that contradict it.
void take_model(LoadedConfig& loaded, const GivenModel& given, Problems& problems) {
  Config theirs;
  theirs.model = given.model;
  const std::vector<Option> to = list_options(loaded.config), from = list_options(theirs);
  for (size_t k = 0; k < to.size(); ++k) {
    if (to[k].section != "model") continue;
    const std::string requested = value_text(to[k]), is = value_text(from[k]);
    const auto set = loaded.origin.find(to[k].key());
    if (set == loaded.origin.end())
      set_from_words(to[k], value_words(from[k]));
    else if (requested != is &&
             (!of_training(to[k].name) || (given.model.lora.rank > 0 && shapes_adapter(to[k].name))) &&
             !(to[k].name == "seq" && given.model.position == PositionKind::kRotary))
      problems.add(set->second, to[k].key(),
                   fmt::format("{}, but the weights are those of a model with {} ({})", requested, is, given.file),
                   "leave it out");
  }
  Config& c = loaded.config;
  if (c.model.lora.rank > 0) c.model.lora_base = given.folder;
  if (loaded.origin.count("data.tokenizer") == 0) c.data.tokenizer = given.tokenizer;
  if (c.log.name.empty()) c.log.name = given.name;
}

// Applies the model family's defaults to fields that the user did not set.
void apply_family_defaults(LoadedConfig& loaded) {
  const Family* family = find_family(loaded.config.model.arch);
  if (family == nullptr) return;  // unknown family: already reported by the domain check
  Config usual;
  static_cast<TransformerConfig&>(usual.model) = family->defaults;
  usual.model.ffn = 0;
  const std::vector<Option> to = list_options(loaded.config), from = list_options(usual);
  for (size_t k = 0; k < to.size(); ++k)
    if (to[k].section == "model" && to[k].name != "arch" && loaded.origin.count(to[k].key()) == 0)
      set_from_words(to[k], value_words(from[k]));
}

// Applies the defaults of another trainer's command line, and lists those that are not ours too.
void take_absent(LoadedConfig& loaded, const ConfigSource& source, const ForeignConfig& theirs) {
  const std::vector<Option> options = list_options(loaded.config);
  std::string list;
  for (const AbsentSetting& s : source.absent)
    for (const Option& o : options) {
      if (o.key() != s.key || loaded.origin.count(s.key) > 0 || theirs.determines(s.key)) continue;
      if (source.given != nullptr && o.section == "model" && !of_training(o.name)) continue;
      const std::string before = value_text(o);
      GT_CHECK(set_from_words(o, s.words).empty(), "default of ", s.key);
      loaded.origin[s.key] = "Megatron's default " + s.there;
      if (value_text(o) != before) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", s.key, value_text(o));
    }
  if (!list.empty()) loaded.notes.push_back("megatron: absent flags have Megatron's values: " + list);
}

std::string default_name(const std::string& file, const ModelConfig& m) {
  if (const std::string stem = std::filesystem::path(file).stem().string(); !stem.empty()) return stem;
  return fmt::format("{}-{}x{}", m.arch, m.layers, m.hidden);
}

}  // namespace

bool ForeignConfig::determines(const std::string& key) const {
  return std::find(left.begin(), left.end(), key) == left.end() && !replaced.empty() && admits(replaced, key);
}

std::vector<Option> list_options(Config& config) {
  std::vector<Option> out;
  visit_sections(config, SectionLister{out});
  return out;
}

bool admits(const std::vector<std::string>& patterns, const std::string& key) {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& p) {
           return p.back() == '.' ? key.rfind(p, 0) == 0 : key == p;
         });
}

bool of_training(const std::string& model_key) {
  constexpr std::string_view kKeys[] = {"dropout", "attn_dropout", "init",          "init_std",
                                        "z_loss",  "moe_balance",  "moe_bias_rate", "loss_chunk"};
  return model_key.starts_with("lora_") || std::find(std::begin(kKeys), std::end(kKeys), model_key) != std::end(kKeys);
}

bool is_config_flag(const std::string& name) {
  Config defaults;
  const std::vector<Option> all = list_options(defaults);
  return find_alias(name) != nullptr ||
         std::any_of(all.begin(), all.end(), [&](const Option& o) { return o.key() == name; });
}

Problems check_flags(const ConfigSource& source) {
  LoadedConfig loaded;
  Reader reader(loaded, source);
  reader.flags(source.flags);
  return reader.problems;
}

LoadedConfig load_config(const ConfigSource& source) {
  LoadedConfig loaded;
  Reader reader(loaded, source);
  if (!source.file.empty()) reader.file(source.file);
  ForeignConfig theirs;
  if (source.foreign) reader.foreign(theirs = source.foreign(reader.problems));
  reader.flags(source.flags);
  if (theirs.finish) theirs.finish(loaded.config, loaded.origin, loaded.notes);
  take_absent(loaded, source, theirs);
  if (source.given != nullptr)
    take_model(loaded, *source.given, reader.problems);
  else
    apply_family_defaults(loaded);
  if (loaded.config.log.name.empty()) loaded.config.log.name = default_name(source.file, loaded.config.model);
  resolve_and_check(loaded.config,
                    {loaded.origin, source.external_world, source.needs_data, source.foreign != nullptr,
                     source.world_source, source.given != nullptr ? source.given->folder : ""},
                    reader.problems, loaded.notes);
  reader.problems.throw_if_any();
  return loaded;
}

std::string config_json(const Config& config) {
  Config copy = config;
  std::string out = "{", section;
  for (const Option& o : list_options(copy)) {
    if (o.section != section) {
      out += fmt::format("{}\n  \"{}\": {{\n", section.empty() ? "" : "\n  },", o.section);
      section = o.section;
    } else {
      out += ",\n";
    }
    out += fmt::format("    \"{}\": {}", o.name, to_json(o));
  }
  return out + "\n  }\n}\n";
}

std::string config_help(const std::vector<std::string>& patterns) {
  Config defaults;
  std::string out, section;
  std::vector<Option> block;
  std::vector<Option> all = list_options(defaults);
  for (size_t i = 0; i < all.size(); ++i) {
    if (admits(patterns, all[i].key()) && restrict_to_implemented(all[i])) block.push_back(all[i]);
    if (!block.empty() && (i + 1 == all.size() || all[i + 1].section != all[i].section)) {
      out += fmt::format("\n{}:\n{}", all[i].section, help_lines(block));
      block.clear();
    }
  }
  return out;
}

}  // namespace gt
