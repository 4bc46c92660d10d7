#include "launch/tools/translate/megatron_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/options/json_text.h"

namespace gt {
namespace {

const MegatronFlag* find(std::string_view name) {
  for (const MegatronFlag& f : megatron_flags())
    if (f.name == name) return &f;
  return nullptr;
}

}  // namespace

// Arguments are the words up to the next flag, at most as many as the flag takes.
MegatronLine::MegatronLine(std::vector<std::string>& words, std::span<const std::string> own, Problems& problems)
    : words_(words) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < words_.size(); ++i) {
    const size_t eq = words_[i].find('=');
    const bool dashes = words_[i].rfind("--", 0) == 0;
    const MegatronFlag* flag = dashes ? find(std::string_view(words_[i]).substr(2, eq - 2)) : nullptr;
    if (flag == nullptr || std::find(own.begin(), own.end(), flag->name) != own.end()) {
      rest.push_back(words_[i]);
      continue;
    }
    Given g{flag, {}};
    const size_t most = flag->values < 0 ? words_.size() : static_cast<size_t>(flag->values);
    if (eq != std::string::npos) g.values.push_back(words_[i].substr(eq + 1));
    while (g.values.size() < most && i + 1 < words_.size() && words_[i + 1].rfind("--", 0) != 0)
      g.values.push_back(words_[++i]);
    if (flag->values >= 0 ? g.values.size() != most : g.values.empty())
      problems.add(g.name(), "",
                   fmt::format("expected {} value{}, found {}", flag->values < 0 ? 1 : flag->values,
                               flag->values == 1 || flag->values < 0 ? "" : "s", g.values.size()));
    else
      given_.push_back(std::move(g));
  }
  words_ = std::move(rest);
}

std::string MegatronLine::value(std::string_view name) const {
  for (auto it = given_.rbegin(); it != given_.rend(); ++it)
    if (it->flag->name == name && !it->values.empty()) return it->values[0];
  const std::string flag = fmt::format("--{}", name);
  for (size_t i = words_.size(); i-- > 0;) {
    if (words_[i] == flag && i + 1 < words_.size()) return words_[i + 1];
    if (words_[i].rfind(flag + "=", 0) == 0) return words_[i].substr(flag.size() + 1);
  }
  return "";
}

std::optional<int64_t> MegatronLine::number(std::string_view name) const {
  int64_t n = 0;
  return parse_int(value(name), n) && n > 0 ? std::optional(n) : std::nullopt;
}

bool MegatronLine::has(std::string_view name) const {
  const std::string flag = fmt::format("--{}", name);
  return std::any_of(given_.begin(), given_.end(), [&](const Given& g) { return g.flag->name == name; }) ||
         std::any_of(words_.begin(), words_.end(),
                     [&](const std::string& w) { return w == flag || w.rfind(flag + "=", 0) == 0; });
}

bool MegatronLine::whole() const {
  constexpr std::string_view kSigns[] = {"num-layers",       "hidden-size",       "num-attention-heads",
                                         "micro-batch-size", "global-batch-size", "train-iters"};
  return !has("config") && std::count_if(std::begin(kSigns), std::end(kSigns),
                                         [&](std::string_view s) { return !value(s).empty(); }) >= 4;
}

}  // namespace gt
