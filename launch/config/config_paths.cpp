#include "launch/config/config_paths.h"

#include <fmt/format.h>

#include "kernels/core/text.h"
#include "launch/options/foreign_text.h"

namespace gt {

bool check_paths(Config& c, const RuleContext& rules) {
  bool paths = true;
  const auto check = [&](const Option& o, const std::string& value) {
    if (const UrlProblem url = url_problem(value)) rules.bad(o.key(), url.reason, url.fix), paths = false;
  };
  for (const Option& o : list_options(c)) {  // a URL is the value of no option
    if (const auto* text = std::get_if<std::string*>(&o.target)) check(o, **text);
    if (const auto* list = std::get_if<std::vector<DataSource>*>(&o.target))
      for (const DataSource& source : **list) check(o, source.path);
  }
  for (const auto& [key, path] : {std::pair{"log.dir", &c.log.dir}, {"checkpoint.dir", &c.checkpoint.dir}})
    if (printable(*path) != *path)
      rules.bad(key, fmt::format("\"{}\": expected a path without control characters", printable(*path)), "");
  return paths;
}

}  // namespace gt
