#include <algorithm>

#include "model/families/family.h"

namespace gt {

extern const Family kGpt2, kLlama, kMistral, kQwen2, kQwen3, kOlmo2, kGemma2, kGemma3, kBert, kMixtral, kQwen3Moe,
    kOlmoe, kQwen2Moe, kDots1;

namespace {

std::vector<const Family*>& table() {
  static std::vector<const Family*> all{&kGpt2,   &kLlama, &kMistral, &kQwen2,    &kQwen3, &kOlmo2,    &kGemma2,
                                        &kGemma3, &kBert,  &kMixtral, &kQwen3Moe, &kOlmoe, &kQwen2Moe, &kDots1};
  return all;
}

const NameRule* rule_of(const Family& f, const ParamSpec& p, std::vector<int64_t>* numbers) {
  const std::string name = leaf_class(p.name, numbers);
  const auto it = std::find_if(f.names.begin(), f.names.end(), [&](const NameRule& r) { return r.ours == name; });
  return it == f.names.end() ? nullptr : &*it;
}

}  // namespace

std::span<const Family* const> families() { return table(); }

void add_family(const Family& f) { table().push_back(&f); }

const Family* find_family(std::string_view name) {
  const auto it = std::find_if(table().begin(), table().end(), [&](const Family* f) { return f->name == name; });
  return it == table().end() ? nullptr : *it;
}

const char* family_choices() {
  static const std::string choices = [] {
    std::string out;
    for (const Family* f : families()) out += (out.empty() ? "" : "|") + std::string(f->name);
    return out;
  }();
  return choices.c_str();
}

std::vector<std::string> loss_keys(const std::vector<LossTerm>& of_model) {
  std::vector<std::string> out;
  const auto add = [&](const std::vector<LossTerm>& losses) {
    for (size_t i = 1; i < losses.size(); ++i)
      if (std::find(out.begin(), out.end(), losses[i].key()) == out.end()) out.push_back(losses[i].key());
  };
  add(of_model);
  for (const Family* f : families()) add(describe(f->defaults).losses);
  return out;
}

namespace {

// Names of a rule, with `numbers` instead of their stars.
std::vector<std::string> names_with(std::string_view rule, const std::vector<int64_t>& numbers) {
  std::vector<std::string> out;
  for (std::string_view rest = rule; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    std::string name(rest.substr(0, end));
    for (const int64_t number : numbers)
      if (const size_t star = name.find('*'); star != std::string::npos) name.replace(star, 1, std::to_string(number));
    out.push_back(std::move(name));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

}  // namespace

std::vector<std::string> hf_names(const Family& f, const ParamSpec& p) {
  std::vector<int64_t> numbers;  // of the block, then of the expert
  const NameRule* rule = rule_of(f, p, &numbers);
  if (rule == nullptr) return {};
  if (p.role != Role::kExpert || p.shape.rank < 3) return names_with(rule->theirs, numbers);
  std::vector<std::string> out;
  numbers.push_back(0);
  for (; numbers.back() < p.shape[0]; ++numbers.back())
    for (std::string& name : names_with(rule->theirs, numbers)) out.push_back(std::move(name));
  return out;
}

std::vector<std::string> hf_copies(const Family& f, const ModelSpec& spec, const std::string& parameter) {
  std::vector<std::string> out;
  for (const ParamSpec& p : spec.params)
    if (p.tied_to == parameter)
      for (std::string& name : hf_names(f, p)) out.push_back(std::move(name));
  for (const NameRule& r : f.copies)
    if (r.ours == parameter) out.emplace_back(r.theirs);
  return out;
}

bool hf_transposed(const Family& f, const ParamSpec& p) {
  const NameRule* rule = rule_of(f, p, nullptr);
  return rule != nullptr && rule->transposed && p.shape.rank == 2;
}

}  // namespace gt
