#include "launch/commands/flag_list.h"

#include <any>

#include "launch/config/config.h"
#include "launch/config/config_alias.h"
#include "launch/config/config_check.h"

namespace gt {
namespace {

ListedFlag listed(const Option& o) {
  const std::string value = value_text(o);
  return {.name = o.key(),
          .value = value_form(o),
          .meaning = o.meaning + (value.empty() ? "" : " [" + value + "]"),
          .values = is_flag(o) ? std::vector<std::string>{"true", "false"} : choices(o),
          .boolean = is_flag(o),
          .section = o.section};
}

}  // namespace

std::vector<ListedFlag> own_flags(const Subcommand& spec) {
  std::any args;
  std::vector<ListedFlag> out;
  for (const Option& o : spec.bind(args)) out.push_back(listed(o));
  if (spec.config == ConfigFlags::kNow)
    out.push_back({.name = "config", .value = "<text>", .meaning = "JSON file with settings; flags override it"});
  return out;
}

std::vector<ListedFlag> setting_flags(const Subcommand& spec) {
  std::vector<ListedFlag> out;
  if (spec.config == ConfigFlags::kNone) return out;
  Config defaults;
  for (Option& o : list_options(defaults))
    if (admits(spec.keys, o.key()) && restrict_to_implemented(o)) out.push_back(listed(o));
  return out;
}

std::vector<ListedFlag> alias_flags(const Subcommand& spec) {
  std::vector<ListedFlag> out;
  const std::vector<ListedFlag> settings = setting_flags(spec);
  for (const std::string& name :
       spec.config == ConfigFlags::kNone ? std::vector<std::string>() : alias_names(spec.keys))
    for (const ListedFlag& s : settings) {
      const Alias& a = *find_alias(name);
      if (s.name != a.key) continue;
      ListedFlag flag = s;
      flag.name = name;
      flag.meaning = "--" + s.name + (a.value != nullptr ? cat(" ", a.value) : "");
      if (a.value != nullptr) flag.value.clear(), flag.values.clear(), flag.boolean = true;
      out.push_back(std::move(flag));
    }
  return out;
}

}  // namespace gt
