// gpttrain completion: scripts for the completion of bash, zsh and fish, made from the tables of subcommands and
// options.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "launch/commands/flag_list.h"
#include "launch/commands/subcommand_args.h"

namespace gt {
namespace {

// Flags that the same subcommands take.
struct Group {
  std::vector<std::string> commands;
  std::vector<ListedFlag> flags;
};

std::vector<Group> groups() {
  using Key = std::tuple<std::string, std::string, std::vector<std::string>>;
  std::vector<std::pair<ListedFlag, std::vector<std::string>>> found;
  std::map<Key, size_t> number;
  for (const Subcommand& v : subcommands())
    for (const auto& flags : {own_flags(v), setting_flags(v), alias_flags(v)})
      for (const ListedFlag& f : flags) {
        const auto [at, fresh] = number.try_emplace(Key{f.name, f.meaning, f.values}, found.size());
        if (fresh) found.emplace_back(f, std::vector<std::string>());
        found[at->second].second.emplace_back(v.name);
      }
  std::vector<Group> out;
  for (auto& [flag, commands] : found) {
    const auto taken = [&names = commands](const Group& g) { return g.commands == names; };
    auto same = std::find_if(out.begin(), out.end(), taken);
    if (same == out.end()) same = out.insert(out.end(), Group{commands, {}});
    same->flags.push_back(flag);
  }
  return out;
}

// 'it'\''s': one word for bash and zsh.
std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return fmt::format("'{}'", text);
}

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return out + "'";
}

// The first clause of a meaning.
std::string brief(const std::string& meaning) { return meaning.substr(0, meaning.find(';')); }

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

// First words of the subcommands, and the second words of each.
std::map<std::string, std::vector<std::string>> command_words(std::vector<std::string>& first) {
  std::map<std::string, std::vector<std::string>> second;
  for (const Subcommand& v : subcommands()) {
    const std::string name = v.name, one = name.substr(0, name.find(' '));
    if (std::find(first.begin(), first.end(), one) == first.end()) first.push_back(one);
    if (one != name) second[one].push_back(name.substr(one.size() + 1));
  }
  return second;
}

std::string case_of(const Group& g) {
  std::vector<std::string> names;
  for (const std::string& c : g.commands) names.push_back(quoted(c));
  return joined(names, "|");
}

// `case $prev in --flag) values='a b' ;; esac`, `free` for flags whose value is any word.
std::string values_of(const Group& g) {
  std::string out = "      case $prev in\n", any;
  for (const ListedFlag& f : g.flags) {
    if (f.boolean) continue;
    if (!f.values.empty())
      out += fmt::format("        --{}) values={} ;;\n", f.name, quoted(joined(f.values)));
    else
      any += (any.empty() ? "--" : "|--") + f.name;
  }
  if (!any.empty()) out += fmt::format("        {}) free=yes ;;\n", any);
  return out + "      esac ;;\n";
}

// Sets `command` from the words `one` and `two` and the number of the word to complete, `at`.
std::string find_command(const std::map<std::string, std::vector<std::string>>& second) {
  std::string groups;
  for (const auto& [one, words] : second) groups += (groups.empty() ? "" : "|") + one;
  return fmt::format(
      "  case $one in\n"
      "    -*|'') ;;\n"
      "    {}) command=$one; if (( at > 2 )) && [[ $two != -* ]]; then command+=\" $two\"; fi ;;\n"
      "    *) command=$one ;;\n"
      "  esac\n",
      groups);
}

// The scripts hold all words: completing starts no process and reads no file of a run.
std::string bash_script() {
  std::vector<std::string> first;
  const auto second = command_words(first);
  std::string out =
      "# Completion of bash: gpttrain completion bash >/etc/bash_completion.d/gpttrain\n"
      "_gpttrain() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} at=$COMP_CWORD\n"
      "  local one=${COMP_WORDS[1]} two=${COMP_WORDS[2]} command=train flags='--help --help-all' values='' free=''\n";
  out += fmt::format("  (( at > 1 )) || {{ values={}; one=''; flags+=' --version'; }}\n", quoted(joined(first)));
  for (const auto& [one, words] : second)
    out += fmt::format("  (( at != 2 )) || [[ $one != {} ]] || values={}\n", one, quoted(joined(words)));
  out += find_command(second);
  for (const Group& g : groups()) {
    out += fmt::format("  case $command in\n    {})\n      flags+='", case_of(g));
    for (const ListedFlag& f : g.flags) out += " --" + f.name;
    out += "'\n" + values_of(g) + "  esac\n";
  }
  return out +
         "  if [[ $cur == -* && -z $free ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
         "  fi\n"
         "}\n"
         "complete -F _gpttrain -o default gpttrain\n";
}

std::string zsh_script() {
  std::vector<std::string> first;
  const auto second = command_words(first);
  std::string out =
      "#compdef gpttrain\n"
      "# Completion of zsh: gpttrain completion zsh >FOLDER_IN_FPATH/_gpttrain\n"
      "_gpttrain() {\n"
      "  local cur=${words[CURRENT]} prev=${words[CURRENT-1]} one=${words[2]} two=${words[3]}\n"
      "  local command=train values='' free=''\n"
      "  local -i at=$(( CURRENT - 1 ))\n"
      "  local -a flags=('--help:flags' '--help-all:flags, and every setting') choices=()\n"
      "  if (( at == 1 )); then\n"
      "    one=''\n"
      "    flags+=('--version:versions of the program and its libraries')\n"
      "    choices=(";
  for (const std::string& one : first) {
    const auto found =
        std::find_if(subcommands().begin(), subcommands().end(), [&](const Subcommand& v) { return v.name == one; });
    const std::string words = second.count(one) > 0 ? joined(second.at(one), ", ") : "";
    out += ' ' + quoted(one + ":" + (found != subcommands().end() ? found->meaning : words));
  }
  out += ")\n  fi\n";
  for (const auto& [one, words] : second) {
    out += fmt::format("  if (( at == 2 )) && [[ $one == {} ]]; then\n    choices=(", one);
    for (const Subcommand& v : subcommands())
      if (std::string_view(v.name).starts_with(one + " "))
        out += ' ' + quoted(fmt::format("{}:{}", std::string_view(v.name).substr(one.size() + 1), v.meaning));
    out += ")\n  fi\n";
  }
  out += find_command(second);
  for (const Group& g : groups()) {
    out += fmt::format("  case $command in\n    {})\n      flags+=(", case_of(g));
    for (const ListedFlag& f : g.flags) out += "\n        " + quoted(fmt::format("--{}:{}", f.name, brief(f.meaning)));
    out += ")\n" + values_of(g) + "  esac\n";
  }
  return out +
         "  if [[ $cur == -* && -z $free ]]; then\n"
         "    _describe -o 'flag' flags\n"
         "  elif (( $#choices )); then\n"
         "    _describe 'subcommand' choices\n"
         "  elif [[ -n $values ]]; then\n"
         "    compadd -- ${=values}\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "_gpttrain \"$@\"\n";
}

std::string fish_script() {
  std::vector<std::string> first;
  const auto second = command_words(first);
  std::string names;
  for (const Subcommand& v : subcommands()) names += ' ' + fish_quoted(v.name);
  std::string out = fmt::format(
      "# Completion of fish: gpttrain completion fish >~/.config/fish/completions/gpttrain.fish\n"
      "function __gpttrain_command\n"
      "  set -l words (commandline -opc)[2..-1] '' ''\n"
      "  for name in \"$words[1] $words[2]\" $words[1]\n"
      "    contains -- $name{} && echo $name && return\n"
      "  end\n"
      "  string match -q -- '-*' \"$words[1]\"(commandline -ct) && echo train\n"
      "end\n"
      "function __gpttrain_is\n"
      "  contains -- (__gpttrain_command; echo none)[1] $argv\n"
      "end\n"
      "function __gpttrain_has\n"
      "  test \"$(commandline -opc | string collect)\" = \"$(string join \\n gpttrain $argv)\"\n"
      "end\n",
      names);
  for (const std::string& one : first)
    out += fmt::format("complete -c gpttrain -n __gpttrain_has -f -a {} -d {}\n", one, [&] {
      for (const Subcommand& v : subcommands())
        if (v.name == one) return fish_quoted(v.meaning);
      return fish_quoted(joined(second.at(one), ", "));
    }());
  for (const Subcommand& v : subcommands())
    if (const std::string name = v.name; name.find(' ') != std::string::npos)
      out += fmt::format("complete -c gpttrain -n '__gpttrain_has {}' -f -a {} -d {}\n", name.substr(0, name.find(' ')),
                         name.substr(name.find(' ') + 1), fish_quoted(v.meaning));
  size_t number = 0;
  for (const Group& g : groups()) {
    std::string commands;
    for (const std::string& c : g.commands) commands += ' ' + fish_quoted(c);
    out += fmt::format("function __gpttrain_{}\n  __gpttrain_is{}\nend\n", ++number, commands);
    for (const ListedFlag& f : g.flags)
      out += fmt::format("complete -c gpttrain -n __gpttrain_{} -l {}{} -d {}\n", number, f.name,
                         f.boolean          ? ""
                         : f.values.empty() ? " -r"
                                            : " -x -a " + fish_quoted(joined(f.values)),
                         fish_quoted(brief(f.meaning)));
  }
  return out;
}

}  // namespace

Exit run_completion(const Command& command) {
  const std::string& shell = command.get<CompletionArgs>().shell;
  fmt::print("{}", shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script());
  return Exit::kOk;
}

}  // namespace gt
