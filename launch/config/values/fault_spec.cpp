#include "launch/config/values/fault_spec.h"

#include <algorithm>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

#ifdef GPT_TESTING
constexpr bool kBuiltIn = true;
#else
constexpr bool kBuiltIn = false;
#endif

struct SiteActions {
  const char *site, *actions;
};
constexpr SiteActions kSites[] = {{"layout", " skip "},         {"step", " kill stop segv abort terminate exit delay "},
                                  {"save", " stop delay "},     {"forward", " nan inf "},
                                  {"backward", " nan inf "},    {"grad", " nan inf scale "},
                                  {"master", " nan inf flip "}, {"value", " flip "}};

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  fail(Exit::kUsage, "\"", what, "\": ", why, "; expected ACTION@SITE[:key=value,...], see ",
       "launch/config/values/fault_spec.h");
}

void set_key(Injection& f, const std::string& whole, const std::string& key, const std::string& value) {
  if (key == "param") {
    f.param = value;
    return;
  }
  int64_t x = 0;
  if (!parse_int(value, x)) refuse(whole, cat(key, "=", value, " is not a whole number"));
  for (const auto& [name, to] : {std::pair{"rank", &f.rank},
                                 {"step", &f.step},
                                 {"until", &f.until},
                                 {"index", &f.index},
                                 {"mb", &f.microbatch},
                                 {"bit", &f.bit},
                                 {"ms", &f.ms}})
    if (key == name) {
      *to = x;
      return;
    }
  if (key != "n") refuse(whole, cat("unknown key ", key));
  f.n = static_cast<double>(x);
}

Injection parse_one(const std::string& text) {
  Injection f;
  const size_t at = text.find('@'), colon = std::min(text.find(':'), text.size());
  if (at == std::string::npos || at > colon) refuse(text, "no @");
  f.action = text.substr(0, at);
  f.site = text.substr(at + 1, colon - at - 1);
  const auto site =
      std::find_if(std::begin(kSites), std::end(kSites), [&](const SiteActions& s) { return f.site == s.site; });
  if (site == std::end(kSites))
    refuse(text, cat("no site ", f.site, "; there are layout, step, save, forward, backward, grad, master and value"));
  if (std::string(site->actions).find(" " + f.action + " ") == std::string::npos)
    refuse(text, cat("at ", f.site, " there are", site->actions));
  std::istringstream keys(colon < text.size() ? text.substr(colon + 1) : "");
  for (std::string pair; std::getline(keys, pair, ',');) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) refuse(text, pair + ": no =");
    set_key(f, text, pair.substr(0, equals), pair.substr(equals + 1));
  }
  if (f.until < 0) f.until = f.step;
  if ((f.site == "layout" || f.site == "step" || f.site == "save" || f.site == "value") && !f.param.empty())
    refuse(text, cat("at ", f.site, " there is no param="));
  if ((f.site == "forward" || f.site == "backward") && f.param.empty()) refuse(text, "no param=");
  return f;
}

}  // namespace

std::vector<Injection> parse_injections(const std::string& spec) {
  std::vector<Injection> out;
  std::istringstream in(spec);
  for (std::string one; in >> one;) out.push_back(parse_one(one));
  GT_REQUIRE(out.empty() || kBuiltIn, Exit::kUsage, "this binary was built without it (cmake -DGPT_TESTING=ON)");
  return out;
}

}  // namespace gt
