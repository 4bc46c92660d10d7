#include "launch/config/values/param_groups.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/options/near_word.h"
#include "launch/options/options.h"

namespace gt {

void require_regex(const std::string& pattern) {
  constexpr size_t kLongest = 1000;
  const std::string shown = pattern.substr(0, 60);
  GT_REQUIRE(pattern.size() <= kLongest, Exit::kUsage, "\"", shown, "…\" is longer than ", kLongest, " characters");
  try {
    std::regex{pattern};
  } catch (const std::regex_error& e) {
    fail(Exit::kUsage, "\"", shown, "\" is not a valid regular expression: ", e.what());
  }
}

namespace {

double number_in(const std::string& key, const std::string& text, double least, double most, bool below) {
  std::istringstream in(text);
  double x = 0;
  in.imbue(std::locale::classic());
  const bool ok = in >> x && in.eof() && x >= least && (below ? x < most : x <= most);
  GT_REQUIRE(ok, Exit::kUsage, key, "=", text.substr(0, 60), ": expected a number from ", least,
             below ? " to below " : " to ", most);
  return x;
}

}  // namespace

ParamGroup parse_param_group(const std::string& text) {
  std::istringstream words(text);
  ParamGroup g;
  words >> g.match;
  GT_REQUIRE(!g.match.empty(), Exit::kUsage, "a group begins with a regular expression");
  require_regex(g.match);
  int keys = 0;
  for (std::string word; words >> word; ++keys) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "lr_scale") {
      g.lr_scale = number_in(key, value, 0, 1000, false);
    } else if (key == "weight_decay") {
      g.weight_decay = static_cast<float>(number_in(key, value, 0, 10, false));
    } else if (key == "betas") {
      const size_t slash = value.find('/');
      GT_REQUIRE(slash != std::string::npos, Exit::kUsage, word.substr(0, 60),
                 ": expected two numbers, as betas=0.9/0.95");
      g.betas = {static_cast<float>(number_in(key, value.substr(0, slash), 0, 1, true)),
                 static_cast<float>(number_in(key, value.substr(slash + 1), 0, 1, true))};
    } else if (key == "rule") {
      GT_REQUIRE(value == "adamw", Exit::kUsage, word.substr(0, 60), ": expected rule=adamw");
      g.rule = value;
    } else {
      const std::string guess = did_you_mean(key, {"lr_scale", "weight_decay", "betas", "rule"});
      fail(Exit::kUsage, "\"", word.substr(0, 60), "\": expected lr_scale=, weight_decay=, betas= or rule=",
           guess.empty() ? "" : "; did you mean " + guess + "=?");
    }
  }
  GT_REQUIRE(keys > 0, Exit::kUsage, "\"", g.match,
             "\" changes nothing: add lr_scale=, weight_decay=, betas= or rule=");
  return g;
}

void mark_no_decay(std::span<const UnitSpec> units, const std::vector<std::string>& patterns) {
  for (const std::string& text : patterns) {
    const std::regex pattern(text);
    for (const UnitSpec& s : units)
      for (Parameter* p : s.params)
        if (std::regex_search(p->tied_to.empty() ? p->name : p->tied_to, pattern)) p->decay = false;
  }
}

void require_patterns_found(const OptimConfig& o, const ModelSpec& model) {
  std::vector<std::string> names;
  for (const ParamSpec& p : model.params)
    if (p.tied_to.empty()) names.push_back(p.name);
  const auto found = [&](const std::string& key, const std::string& pattern, std::vector<std::string>& among) {
    const std::regex regex(pattern);
    const auto matches = [&](const std::string& name) { return std::regex_search(name, regex); };
    const std::string guess = did_you_mean(pattern, names);
    GT_REQUIRE(std::any_of(names.begin(), names.end(), matches), Exit::kUsage, key, ": \"", pattern,
               "\" matches no parameter; their names are those of `gpttrain ckpt inspect`, such as ",
               guess.empty() ? names.front() : guess);
    return std::erase_if(among, matches);
  };
  std::vector<std::string> ungrouped = names;
  for (const std::string& text : o.group_texts) {
    const std::string pattern = parse_param_group(text).match;
    GT_REQUIRE(found("optim.groups", pattern, ungrouped) > 0, Exit::kUsage, "optim.groups: \"", pattern,
               "\" finds only parameters of groups before it; a parameter belongs to the first that finds it");
  }
  for (const std::string& pattern : o.no_decay) {
    std::vector<std::string> all = names;
    found("optim.no_decay", pattern, all);
  }
}

}  // namespace gt
