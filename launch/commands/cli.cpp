#include "launch/commands/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <optional>

#include "kernels/core/check.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config_alias.h"
#include "launch/options/foreign_text.h"
#include "launch/options/help_text.h"
#include "launch/options/near_word.h"
#include "launch/options/version.h"
#include "launch/tools/translate/deepspeed.h"
#include "launch/tools/translate/deepspeed_flags.h"
#include "launch/tools/translate/megatron_flags.h"
#include "launch/tools/weights/import.h"

namespace gt {
namespace {

constexpr const char* kShortHelp =
    "gpttrain trains Transformer language models with tensor, pipeline and data parallelism.\n"
    "\n"
    "  ./launch/demo.sh                        download text, tokenize, train, generate: start here\n"
    "  gpttrain --config configs/demo.json --tp 2 --pp 4 --dp 2\n"
    "  gpttrain --help                         all subcommands\n"
    "  gpttrain train --help                   the options that most runs give; --help-all: every option\n";

std::string overview() {
  std::string out = "usage: gpttrain [subcommand] [flags]\n\nsubcommands (gpttrain SUBCOMMAND --help):\n";
  for (const Subcommand& v : subcommands()) out += help_entry(cat("  ", v.name), v.meaning);
  return out + "\n  --version          versions of the program and its libraries\n";
}

// Help of a group of subcommands ("tokenizer", "data", "ckpt"); empty if `name` is not a group.
std::string group_help(const std::string& name) {
  std::string out;
  for (const Subcommand& v : subcommands())
    if (std::string(v.name).rfind(name + " ", 0) == 0) out += help_entry(cat("  ", v.name), v.meaning);
  return out.empty() ? out
                     : fmt::format(
                           "usage: gpttrain {} subcommand [flags]\n"
                           "\n"
                           "subcommands (gpttrain SUBCOMMAND --help):\n"
                           "{}",
                           name, out);
}

std::vector<std::string> subcommand_names() {
  std::vector<std::string> out;
  for (const Subcommand& v : subcommands()) out.emplace_back(v.name);
  return out;
}

// Settings that most runs give; --help shows those that the subcommand takes, --help-all shows every setting.
constexpr const char* kCommonKeys[] = {"data.train",         "parallel.tp",       "parallel.pp", "parallel.dp",
                                       "train.global_batch", "train.micro_batch", "train.steps", "optim.lr",
                                       "precision.amp",      "log.name"};

// Help on those of `all` whose keys are listed, with the short form where the last part of the key is one: --tp.
template <class Keys>
std::string help_of(const std::vector<Option>& all, const Keys& keys) {
  std::vector<Option> some;
  std::copy_if(all.begin(), all.end(), std::back_inserter(some),
               [&](const Option& o) { return std::find(std::begin(keys), std::end(keys), o.key()) != std::end(keys); });
  for (Option& o : some)
    if (const Alias* a = find_alias(o.name); a != nullptr && a->key == o.key()) o.meaning += "; short: --" + o.name;
  return help_lines(some);
}

std::string common_help(const Subcommand& spec) {
  Config defaults;
  std::vector<Option> all = list_options(defaults);
  std::erase_if(all, [&](const Option& o) { return !admits(spec.keys, o.key()); });
  return fmt::format("\ncommon settings of {} (gpttrain {} --help-all: all):\n", all.size(), spec.name) +
         help_of(all, kCommonKeys);
}

std::string full_help(const Subcommand& spec) {
  std::string out = config_help(spec.keys) + "\naliases:\n" + alias_help(spec.keys);
  return spec.config == ConfigFlags::kNow ? out + megatron_help() : out;
}

std::string subcommand_help(const Subcommand& spec, const std::vector<Option>& options, bool all) {
  std::string out = help_words(fmt::format("gpttrain {}: {}", spec.name, spec.meaning), 0);
  out += fmt::format("\nusage: gpttrain {}{} [flags]\n", spec.name, spec.plain ? fmt::format(" [{}]", spec.plain) : "");
  out += fmt::format("example: gpttrain {} {}\n", spec.name, spec.example);
  for (const Subcommand& v : subcommands())  // subcommands of which this one is a prefix
    if (std::string_view(v.name).starts_with(cat(spec.name, " ")))
      out += help_entry(cat("also: gpttrain ", v.name), v.meaning);
  Config defaults;
  if (!options.empty())
    out += fmt::format("\n{}:\n{}{}", spec.name, help_of(list_options(defaults), spec.own_keys), help_lines(options));
  if (spec.config == ConfigFlags::kNone) return out;
  if (spec.config == ConfigFlags::kNow)
    out += '\n' + help_entry("  --config <text>", "JSON file with the settings below; flags override it") +
           deepspeed_help();
  else
    out += "\nAll other settings come from the checkpoint; these override it:\n";
  return out + (all ? full_help(spec) : common_help(spec));
}

const Subcommand* find_subcommand(const std::string& name) {
  for (const Subcommand& v : subcommands())
    if (name == v.name) return &v;
  return nullptr;
}

// Last words of the subcommands of a group: "train" of "tokenizer train".
std::vector<std::string> members(const std::string& group) {
  std::vector<std::string> out;
  for (const std::string& v : subcommand_names())
    if (v.rfind(group + " ", 0) == 0) out.push_back(v.substr(group.size() + 1));
  return out;
}

[[noreturn]] void unknown_subcommand(const std::string& name) {
  if (const auto all = members(name); !all.empty())
    throw Error(fmt::format("gpttrain {}: expected one of: {}", name, fmt::join(all, " ")), Exit::kUsage);
  const std::string group = name.substr(0, name.find(' '));
  std::vector<std::string> near = members(group);
  std::string guess, others = "see gpttrain --help";
  if (!near.empty()) {
    others = fmt::format("expected one of: {}", fmt::join(near, " "));
    guess = did_you_mean(std::string_view(name).substr(group.size() + 1), near);
    if (!guess.empty()) guess = group + " " + guess;
  } else {
    near = subcommand_names();
    for (const Subcommand& v : subcommands())
      if (const std::string_view n = v.name; n.find(' ') != std::string_view::npos)
        near.emplace_back(n.substr(0, n.find(' ')));
    guess = did_you_mean(name, near);
  }
  throw Error(
      fmt::format("gpttrain {}: unknown subcommand; {}", name, guess.empty() ? others : "did you mean " + guess + "?"),
      Exit::kUsage);
}

// Removes the subcommand from the front of `words`. Without one, train is the default.
const Subcommand& take_subcommand(std::vector<std::string>& words) {
  if (words.empty() || words[0].empty() || words[0][0] == '-') return subcommands()[0];
  std::string name = words[0];
  const bool two = words.size() > 1 && !words[1].empty() && words[1][0] != '-' && !members(name).empty();
  if (two) name += " " + words[1];
  const Subcommand* spec = find_subcommand(name);
  if (!spec) unknown_subcommand(name);
  words.erase(words.begin(), words.begin() + (two ? 2 : 1));
  return *spec;
}

// Handles gpttrain launch [launcher flags] -- [train flags]: both sides take the same flags.
void join_launch_flags(std::vector<std::string>& words) {
  if (const auto dashes = std::find(words.begin(), words.end(), "--"); dashes != words.end())
    if (const auto subcommand = words.erase(dashes); subcommand != words.end() && *subcommand == "train")
      words.erase(subcommand);
}

bool has_full_help_flag(const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), "--help-all") != words.end();
}

bool has_help_flag(const std::vector<std::string>& words) {
  return has_full_help_flag(words) ||
         std::any_of(words.begin(), words.end(), [](const std::string& w) { return w == "--help" || w == "-h"; });
}

// `ckpt verify --deep DIR`: a word after a boolean flag that is neither true nor false is the positional argument.
// Removes such flags, because CLI11 would consume the word.
std::vector<size_t> take_lone_flags(const std::vector<Option>& options, std::vector<std::string>& words) {
  std::vector<size_t> found;
  for (size_t i = 0; i < options.size(); ++i)
    for (size_t k = 0; is_flag(options[i]) && k + 1 < words.size(); ++k) {
      if (words[k] != "--" + options[i].name || words[k + 1][0] == '-' || is_boolean_word(words[k + 1])) continue;
      words.erase(words.begin() + static_cast<ptrdiff_t>(k));
      found.push_back(i);
    }
  return found;
}

// Splits off the subcommand's own flags as raw words with CLI11; returns the unrecognized words in order.
std::vector<std::string> split_flags(const Subcommand& spec, const std::vector<Option>& options,
                                     std::vector<std::string> words, std::vector<std::vector<std::string>>& given,
                                     std::string* config_file) {
  CLI::App app{"", "gpttrain"};
  app.set_help_flag();
  app.allow_extras();
  given.assign(options.size(), {});
  for (size_t i = 0; i < options.size(); ++i) {
    CLI::Option* o = app.add_option("--" + options[i].name, given[i]);
    if (is_flag(options[i]))
      o->expected(0, 1)->default_str("true");
    else if (takes_list(options[i]))
      o->expected(1, 1 << 20);
    else
      o->expected(1);
  }
  if (config_file) app.add_option("--config", *config_file);
  const auto lone = spec.plain ? take_lone_flags(options, words) : std::vector<size_t>();
  std::reverse(words.begin(), words.end());  // CLI11 expects reversed order
  try {
    app.parse(words);
  } catch (const CLI::ParseError& e) {
    fail(Exit::kUsage, "gpttrain ", spec.name, ": ", e.what(), "; see gpttrain ", spec.name, " --help");
  }
  for (size_t i = 0; i < options.size(); ++i)  // "--quiet" without a value
    if (is_flag(options[i]) && app.count("--" + options[i].name) > 0 && (given[i].empty() || given[i][0].empty()))
      given[i] = {"true"};
  for (const size_t i : lone) given[i] = {"true"};
  return app.remaining();
}

// Words that CLI11 did not recognize: unknown flags, and words that belong to no flag.
struct Extras {
  struct Unknown {
    std::string word;
    std::string guess;  // most similar own flag; "" if none
  };
  std::vector<Unknown> flags;
  std::vector<std::string> words;
  bool may_hold_words = false;  // an unknown flag without a guess consumed a word as its value
  bool meant(const std::string& name) const {
    return std::any_of(flags.begin(), flags.end(), [&](const Unknown& u) { return u.guess == name; });
  }
};

// A word after an unknown flag counts as its value, unless the suggested flag takes none, so that one typo is one
// problem.
Extras take_apart(const std::vector<Option>& options, const std::vector<std::string>& extras) {
  std::vector<std::string> names;
  for (const Option& o : options) names.push_back(o.name);
  Extras out;
  int values = 0;  // values that the last unknown flag still takes
  for (const std::string& w : extras) {
    if (w.rfind('-', 0) != 0) {
      if (values == 0) {
        out.words.push_back(w);
      } else {
        --values;
      }
      continue;
    }
    const std::string name = w.substr(w.find_first_not_of('-') == std::string::npos ? 0 : w.find_first_not_of('-'));
    const std::string guess = did_you_mean(name.substr(0, name.find('=')), names);
    out.flags.push_back({w, guess});
    const auto option = std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.name == guess; });
    const bool attached = w.find('=') != std::string::npos;
    values = attached || (option != options.end() && is_flag(*option)) ? 0
             : option != options.end() && takes_list(*option)          ? 1 << 20
                                                                       : 1;
    out.may_hold_words |= option == options.end() && values > 0;
  }
  return out;
}

void store_own(const Subcommand& spec, const std::vector<Option>& options,
               const std::vector<std::vector<std::string>>& given, const Extras& extras, Problems& problems) {
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string flag = "--" + options[i].name;
    const bool plain = spec.plain && options[i].name == spec.plain;
    if (!given[i].empty()) {
      const bool path = options[i].name != "prompt" && options[i].name != "stop";
      for (const std::string& word : given[i])
        if (const UrlProblem url = path ? url_problem(word) : UrlProblem{})
          problems.add(flag, options[i].name, url.reason, url.fix);
      if (const std::string bad = set_from_words(options[i], given[i]); !bad.empty())
        problems.add(flag, options[i].name, bad);
    } else if (options[i].domain.rfind("required", 0) == 0 && !extras.meant(options[i].name) &&
               !(plain && extras.may_hold_words)) {
      problems.add(flag, options[i].name, "missing: " + options[i].meaning,
                   fmt::format("see gpttrain {} --help", spec.name));
    }
  }
}

void refuse_extras(const Subcommand& spec, const Extras& extras, Problems& problems) {
  const std::string help = fmt::format("see gpttrain {} --help", spec.name);
  for (const Extras::Unknown& u : extras.flags)
    problems.add(u.word, u.word, "unknown flag", u.guess.empty() ? help : "did you mean --" + u.guess + "?");
  for (const std::string& w : extras.words) problems.add("", w, "unexpected argument", help);
}

// Suggestions among the subcommand's own flags, for subcommands that also take config flags.
Extras misspelt_own(const std::vector<Option>& options, std::vector<std::string> extras) {
  std::erase_if(extras, [](const std::string& w) {
    return w.rfind("--", 0) != 0 || is_config_flag(w.substr(2, w.find('=') - 2));
  });
  return take_apart(options, extras);
}

// Replaces flags in problems by those that the user typed and that were translated to them.
std::string as_given(std::string text, const std::map<std::string, std::string>& spelled) {
  for (const auto& [flag, given] : spelled)
    for (size_t at = 0; (at = text.find(flag + ":", at)) != std::string::npos; at += given.size())
      if (at == 0 || text[at - 1] == '\n') text.replace(at, flag.size(), given);
  return text;
}

}  // namespace

Command parse_command(const std::vector<std::string>& all, const RankEnv& env) {
  Command command;
  command.words = all;
  command.env = env;
  const auto show = [&](std::string text) {
    command.text = std::move(text);
    return command;
  };
  if (all.empty()) return show(kShortHelp);
  if (all[0] == "--version") return show(version_text());
  std::vector<std::string> words = all;
  if (words[0] == "help" && words.size() > 1) {  // gpttrain help data prepare
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  if (words[0] == "help" || has_help_flag({words[0]})) return show(overview());
  if (words.size() > 1 && has_help_flag({words[1]}) && find_subcommand(words[0]) == nullptr)
    if (std::string text = group_help(words[0]); !text.empty()) return show(std::move(text));
  if (words[0] == "launch") join_launch_flags(words);
  const Subcommand& spec = take_subcommand(words);
  command.name = spec.name;
  const std::vector<Option> options = spec.bind(command.args);
  if (has_help_flag(words)) return show(subcommand_help(spec, options, has_full_help_flag(words)));
  command.run = spec.run;

  std::vector<std::string> own{"config", "help", "help-all"};
  for (const Option& o : options) own.push_back(o.name);

  std::vector<std::vector<std::string>> given;
  const bool config = spec.config != ConfigFlags::kNone;
  Problems problems;
  DsFlags deepspeed;
  MegatronReport megatron;
  // Other trainers' flags leave the line first: some have the names of ours with another meaning (--profile).
  if (spec.config == ConfigFlags::kNow) {
    deepspeed = consume_deepspeed_flags(words, env, problems);
    megatron = consume_megatron_flags(words, own, problems);
    inline_standard_input(deepspeed, command.words);
  }
  std::vector<std::string> extras =
      split_flags(spec, options, words, given, spec.config == ConfigFlags::kNow ? &command.config_file : nullptr);
  Extras unknown = config ? misspelt_own(options, extras) : take_apart(options, extras);
  // Among config flags a word may be a value: only one before them is the positional argument.
  for (size_t i = 0; config && i < options.size(); ++i)
    if (spec.plain && options[i].name == spec.plain && given[i].empty() && !extras.empty() &&
        extras[0].rfind('-', 0) != 0)
      given[i].push_back(extras[0]), extras.erase(extras.begin());
  for (size_t i = 0; !config && i < options.size(); ++i)
    if (spec.plain && options[i].name == spec.plain && given[i].empty())
      while (!unknown.words.empty() && (given[i].empty() || takes_list(options[i])))
        given[i].push_back(unknown.words[0]), unknown.words.erase(unknown.words.begin());
  store_own(spec, options, given, unknown, problems);
  if (!config)
    refuse_extras(spec, unknown, problems);
  else
    command.config_flags = extras;
  if (spec.config == ConfigFlags::kLater)
    problems = check_flags({.flags = extras,
                            .names = &kDeepspeedNames,
                            .other_flags = own,
                            .command = spec.name,
                            .keys = spec.keys,
                            .problems = problems});
  if (spec.config == ConfigFlags::kNow) {
    for (const auto& names : {deepspeed_flag_names(), megatron_flag_names()})
      own.insert(own.end(), names.begin(), names.end());
    // The model of --from is read before the rules run, since its sizes stand in for model.*.
    const auto* train = std::any_cast<TrainArgs>(&command.args);
    std::optional<GivenModel> given;
    if (train != nullptr && !train->from.empty() && !url_problem(train->from))
      given = model_of_folder(train->from, train->ignore_unknown);
    try {
      command.loaded = load_config({.file = command.config_file,
                                    .flags = extras,
                                    .external_world = env.launched() ? env.world : 0,
                                    .needs_data = spec.needs_data,
                                    .foreign = deepspeed_reader(deepspeed.config, deepspeed.allow_unknown_keys),
                                    .world_source = env.source,
                                    .names = &kDeepspeedNames,
                                    .other_flags = own,
                                    .command = spec.name,
                                    .keys = spec.keys,
                                    .problems = problems,
                                    .given = given ? &*given : nullptr,
                                    .absent = std::move(megatron.absent)});
    } catch (const Error& e) { throw Error(as_given(e.what(), megatron.spelled), e.code()); }
    auto& notes = command.loaded.notes;
    notes.insert(notes.begin(), deepspeed.notes.begin(), deepspeed.notes.end());
    notes.insert(notes.end(), megatron.lines.begin(), megatron.lines.end());
  }
  problems.throw_if_any();
  return command;
}

Command parse_command(int argc, const char* const* argv) {
  return parse_command(std::vector<std::string>(argv + std::min(argc, 1), argv + argc), find_rank_env());
}

}  // namespace gt
