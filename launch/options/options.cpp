#include "launch/options/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/core/check.h"
#include "launch/options/help_text.h"
#include "launch/options/near_word.h"
#include "launch/options/value_words.h"

namespace gt {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

struct Range {
  bool present = false, low_open = false, high_open = false;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};

std::string_view first_word(std::string_view s) { return s.substr(0, s.find_first_of(" ,")); }

Range range_of(const Option& option) {
  std::string_view w = first_word(option.domain);
  const size_t dots = w.find("..");
  Range r;
  if (dots == std::string_view::npos || w.find('|') != std::string_view::npos) return r;
  r.present = true;
  std::string_view low = w.substr(0, dots), high = w.substr(dots + 2);
  if (!low.empty() && low[0] == '>') r.low_open = true, low.remove_prefix(1);
  if (!high.empty() && high[0] == '<') r.high_open = true, high.remove_prefix(1);
  if (!low.empty()) GT_CHECK(parse_double(low, r.low), "domain of ", option.key());
  if (!high.empty()) GT_CHECK(parse_double(high, r.high), "domain of ", option.key());
  return r;
}

std::string quote(std::string_view s) {
  std::string out;
  append_json_string(out, s.size() > 60 ? std::string(s.substr(0, 57)) + "..." : std::string(s));
  return out;
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

// Returns the error for a number outside its domain, "" if it is inside.
std::string outside(const Option& option, double x) {
  const Range r = range_of(option);
  const bool above = r.low_open ? x > r.low : x >= r.low, below = r.high_open ? x < r.high : x <= r.high;
  return !r.present || (above && below) ? "" : fmt::format("{:g} is outside {}", x, option.domain);
}

bool is_free_choice(const std::string& c) {
  return !c.empty() && std::all_of(c.begin(), c.end(), [](char x) { return x >= 'A' && x <= 'Z'; });
}

// Parses "80GB" given where a plain number is expected. Returns the number of bytes; 0 if it is not of this form.
int64_t with_byte_unit(std::string_view s) {
  static constexpr struct {
    const char* suffix;
    double factor;
  } kUnits[] = {{"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0},
                {"KB", 1e3},     {"MB", 1e6},        {"GB", 1e9},
                {"K", 1e3},      {"k", 1e3},         {"M", 1e6},
                {"m", 1e6},      {"G", 1e9}};
  for (const auto& u : kUnits) {
    const std::string_view suffix = u.suffix;
    double x;
    if (s.size() > suffix.size() && s.substr(s.size() - suffix.size()) == suffix &&
        parse_double(s.substr(0, s.size() - suffix.size()), x) && x * u.factor < 9e15)
      return static_cast<int64_t>(x * u.factor);
  }
  return 0;
}

// Domain "0..1000, or true or false": a count that also accepts a boolean.
bool counts_or_not(const Option& option) { return option.domain.find("or true or false") != std::string::npos; }

std::string set_int(const Option& option, int64_t& out, const std::string& word) {
  int64_t x;
  if (counts_or_not(option) && (word == "true" || word == "false")) return out = word == "true", "";
  if (!parse_int(word, x)) {
    double d;
    std::string hint;
    if (const int64_t n = with_byte_unit(word))
      hint = fmt::format(" (write {})", n);
    else if (parse_double(word, d) && d == std::floor(d) && std::fabs(d) < 9e15)
      hint = fmt::format(" (write {:.0f})", d);
    return fmt::format("expected a whole number {}, found {}{}", option.domain, quote(word), hint);
  }
  if (std::string bad = outside(option, static_cast<double>(x)); !bad.empty()) return bad;
  return out = x, "";
}

std::string set_int(const Option& option, int& out, const std::string& word) {
  int64_t x = 0;
  if (std::string bad = set_int(option, x, word); !bad.empty()) return bad;
  if (!std::in_range<int>(x)) return fmt::format("{} does not fit in 32 bits", x);
  return out = static_cast<int>(x), "";
}

std::string set_double(const Option& option, double& out, const std::string& word) {
  double x;
  if (!parse_double(word, x)) return fmt::format("expected a number {}, found {}", option.domain, quote(word));
  if (std::string bad = outside(option, x); !bad.empty()) return bad;
  return out = x, "";
}

std::string set_double(const Option& option, float& out, const std::string& word) {
  double x = 0;
  if (std::string bad = set_double(option, x, word); !bad.empty()) return bad;
  return out = static_cast<float>(x), "";
}

std::optional<bool> truth_of(const std::string& word) {
  if (word == "true" || word == "on" || word == "1" || word == "yes") return true;
  if (word == "false" || word == "off" || word == "0" || word == "no") return false;
  return std::nullopt;
}

std::string set_bool(bool& out, const std::string& word) {
  if (const auto value = truth_of(word)) return out = *value, "";
  return "expected true or false, found " + quote(word);
}

// Synonyms of one number format (f16, fp16, float16). Each is mapped to the spelling that the domain lists.
const std::vector<std::vector<std::string>> kSameFormat = {
    {"f32", "fp32", "float32"}, {"f16", "fp16", "float16", "half"}, {"bf16", "bfloat16"}};

std::string as_legal(const std::string& word, const std::vector<std::string>& legal) {
  for (const auto& names : kSameFormat)
    if (std::find(names.begin(), names.end(), word) != names.end())
      for (const std::string& choice : legal)
        if (std::find(names.begin(), names.end(), choice) != names.end()) return choice;
  return word;
}

// Values by their names in other trainers; for suggestions.
constexpr struct {
  std::string_view key, there, here;
} kElsewhere[] = {
    {"device.kind", "gpu", "cuda"},
    {"model.activation", "swiglu", "silu with model.gated true"},
    {"model.activation", "geglu", "gelu with model.gated true"},
    {"model.activation", "gelu_new", "gelu"},
    {"model.activation", "gelu_pytorch_tanh", "gelu"},
    {"model.activation", "squared_relu", "relu2"},
    {"model.position", "rope", "rotary"},
    {"parallel.recompute", "block", "full"},
    {"parallel.schedule", "zero_bubble", "zb-h1"},
    {"precision.amp", "bf16", "O2 with precision.dtype bf16"},
    {"precision.amp", "fp16", "O2 with precision.dtype fp16"},
    {"precision.amp", "fp32", "O0"},
    {"precision.fp8", "hybrid", "current"},
};

std::string nearest_value(const Option& option, const std::string& word, const std::vector<std::string>& legal) {
  for (const auto& v : kElsewhere)
    if (v.key == option.key() && v.there == word) return std::string(v.here);
  return did_you_mean(word, legal);
}

std::string set_string(const Option& option, std::string& out, const std::string& given) {
  const std::vector<std::string> legal = choices(option);
  const bool open = legal.empty() || std::any_of(legal.begin(), legal.end(), is_free_choice);
  const bool known = std::find(legal.begin(), legal.end(), given) != legal.end();
  const std::string word = known ? given : as_legal(given, legal);
  if (!open && std::find(legal.begin(), legal.end(), word) == legal.end()) {
    const std::string guess = nearest_value(option, given, legal);
    const size_t remark = first_word(option.domain).size();
    return fmt::format("expected {}{}, found {}{}", join(legal, " or "), option.domain.substr(remark), quote(word),
                       guess.empty() ? "" : fmt::format(" (did you mean {}?)", guess));
  }
  return out = word, "";
}

std::string set_enum(const Option& option, const EnumTarget& out, const std::string& word) {
  std::string name;
  if (std::string bad = set_string(option, name, word); !bad.empty()) return bad;
  const auto it = std::find(out.names.begin(), out.names.end(), name);
  *out.value = static_cast<uint8_t>(it - out.names.begin());
  return "";
}

template <class T>
std::string set_numbers(const Option& option, std::vector<T>& out, const std::vector<std::string>& words) {
  std::vector<T> list;
  for (const std::string& w : words) {
    if (w.empty() && words.size() == 1) break;  // an empty list
    double x = 0;
    if (std::string bad = set_double(option, x, w); !bad.empty()) return bad;
    if (std::is_integral_v<T> && (x != std::floor(x) || std::fabs(x) > 9e15))
      return fmt::format("expected whole numbers as in 8,16,32 ({}), found {}", option.domain, quote(w));
    list.push_back(static_cast<T>(x));
  }
  const bool any = option.domain.empty() || option.domain.find(" list of ") != std::string::npos;
  if (!any && list.size() != out.size()) return fmt::format("expected {} numbers, found {}", out.size(), list.size());
  return out = list, "";
}

// Parses "P1 P2" or "0.7 P1 0.3 P2"; data/samples/blend.h defines the syntax.
std::string set_sources(std::vector<DataSource>& out, const std::vector<std::string>& words) {
  try {
    return out = parse_sources(words, nullptr), "";
  } catch (const Error& e) {
    const std::string what = e.what();  // strip the prefix "data.train: ": the caller names the key
    return what.rfind("data.train: ", 0) == 0 ? what.substr(12) : what;
  }
}

std::string set_sources_json(std::vector<DataSource>& out, const JsonValue& value) {
  using Kind = JsonValue::Kind;
  std::vector<DataSource> list;
  size_t with_weight = 0;
  for (const JsonValue& v : value.items) {
    if (v.kind == Kind::kString) {
      list.push_back({v.text, 0});
      continue;
    }
    const JsonValue *path = v.find("path"), *weight = v.find("weight");
    double w = 0;
    if (!path || path->kind != Kind::kString || v.items.size() != (weight ? 2u : 1u) ||
        (weight && (weight->kind != Kind::kNumber || !parse_double(weight->text, w) || w <= 0)))
      return fmt::format("expected paths or {{\"path\": P, \"weight\": w above 0}}, found {} at line {}",
                         kind_name(v.kind), v.line);
    list.push_back({path->text, w});
    with_weight += weight != nullptr;
  }
  if (with_weight != 0 && with_weight != list.size()) return "give a weight to every path or to none";
  return out = list, "";
}

}  // namespace

void Problems::add(std::string where, std::string key, std::string reason, std::string fix) {
  if (full())
    ++unlisted_;
  else
    list_.push_back({std::move(where), std::move(key), std::move(reason), std::move(fix)});
}

std::string Problems::text() const {
  std::string out;
  for (const Problem& p : list_) {
    const bool flag = p.where.rfind("--", 0) == 0;  // the flag already names the key
    std::string location = p.where;
    if (!flag && !p.key.empty()) location += (location.empty() ? "" : " ") + p.key;
    out += location + (location.empty() ? "" : ": ") + p.reason;
    if (!p.fix.empty()) out += "; " + p.fix;
    out += '\n';
  }
  if (unlisted_ > 0) out += fmt::format("… and {} more\n", unlisted_);
  const size_t all = list_.size() + unlisted_;
  return out + fmt::format("{} problem{}, nothing was started", all, all == 1 ? "" : "s");
}

void Problems::throw_if_any() const {
  if (!list_.empty()) throw Error(text(), Exit::kUsage);
}

std::vector<std::string> choices(const Option& option) {
  const std::string_view w = first_word(option.domain);
  std::vector<std::string> out;
  if (w.find('|') == std::string_view::npos) return out;
  for (size_t i = 0; i <= w.size();) {
    const size_t end = std::min(w.find('|', i), w.size());
    out.emplace_back(w.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

constexpr size_t kFirstList = 7;  // of the alternatives of OptionTarget

bool takes_list(const Option& option) { return option.target.index() >= kFirstList; }
bool takes_numbers(const Option& option) {  // a list of them
  return std::holds_alternative<std::vector<int64_t>*>(option.target) ||
         std::holds_alternative<std::vector<double>*>(option.target);
}
bool is_flag(const Option& option) { return std::holds_alternative<bool*>(option.target); }
bool is_boolean_word(const std::string& word) { return truth_of(word).has_value(); }

namespace {
// Domain "auto|true|false": the flag may stand alone, and JSON's true and false are accepted.
bool takes_truth(const Option& option) {
  const std::vector<std::string> legal = choices(option);
  return std::find(legal.begin(), legal.end(), "true") != legal.end();
}

// Domain "off|current": JSON's false is accepted, as in files written when the option was a boolean.
bool takes_off(const Option& option) {
  const std::vector<std::string> legal = choices(option);
  return std::find(legal.begin(), legal.end(), "off") != legal.end();
}
}  // namespace

std::string set_from_words(const Option& option, const std::vector<std::string>& words) {
  if (words.empty()) {
    if (bool* const* b = std::get_if<bool*>(&option.target)) return **b = true, "";
    if (takes_truth(option)) return set_from_words(option, {"true"});
    if (counts_or_not(option)) return *std::get<int64_t*>(option.target) = 1, "";
    return fmt::format("expected a value {}, found none", option.domain);
  }
  return std::visit(Overloaded{
                        [&](std::string* s) { return set_string(option, *s, words[0]); },
                        [&](int64_t* n) { return set_int(option, *n, words[0]); },
                        [&](int* n) { return set_int(option, *n, words[0]); },
                        [&](double* x) { return set_double(option, *x, words[0]); },
                        [&](float* x) { return set_double(option, *x, words[0]); },
                        [&](bool* b) { return set_bool(*b, words[0]); },
                        [&](const EnumTarget& e) { return set_enum(option, e, words[0]); },
                        [&](std::vector<int64_t>* v) { return set_numbers(option, *v, split_commas(words)); },
                        [&](std::vector<double>* v) { return set_numbers(option, *v, split_commas(words)); },
                        [&](std::vector<std::string>* v) { return *v = words, std::string(); },
                        [&](std::vector<DataSource>* v) { return set_sources(*v, words); },
                    },
                    option.target);
}

namespace {
// Returns the word that a JSON value gives to an option of words; nullopt: it is of another type.
std::optional<std::string> word_of(const Option& option, const JsonValue& value) {
  using Kind = JsonValue::Kind;
  // Domain "auto|never|STEP": a number is accepted where free text is.
  if (value.kind == Kind::kNumber && option.domain.find('|') != std::string::npos) return value.text;
  if (value.kind == Kind::kBool && takes_truth(option)) return value.boolean ? "true" : "false";
  if (value.kind == Kind::kBool && !value.boolean && takes_off(option)) return "off";
  return value.kind == Kind::kString ? std::optional(value.text) : std::nullopt;
}
}  // namespace

std::string set_from_json(const Option& option, const JsonValue& value) {
  using Kind = JsonValue::Kind;
  const auto wrong = [&](const char* expected) {
    return fmt::format("expected {}, found {}", expected, kind_name(value.kind));
  };
  const auto is = [&](Kind kind) { return value.kind == kind; };
  if (takes_list(option) && !is(Kind::kArray)) {
    if (is(Kind::kString) && !takes_numbers(option)) return set_from_words(option, {value.text});
    return wrong("a list");
  }
  std::vector<std::string> texts;
  for (const JsonValue& v : value.items) texts.push_back(v.text);
  const auto all = [&](Kind kind) {
    return std::all_of(value.items.begin(), value.items.end(), [&](const JsonValue& v) { return v.kind == kind; });
  };
  return std::visit(
      Overloaded{
          [&](std::string* s) {
            const auto word = word_of(option, value);
            return word ? set_string(option, *s, *word) : wrong("a string");
          },
          [&](int64_t* n) {
            if (is(Kind::kBool) && counts_or_not(option)) return *n = value.boolean, std::string();
            return is(Kind::kNumber) ? set_int(option, *n, value.text) : wrong("a whole number");
          },
          [&](int* n) { return is(Kind::kNumber) ? set_int(option, *n, value.text) : wrong("a whole number"); },
          [&](double* x) { return is(Kind::kNumber) ? set_double(option, *x, value.text) : wrong("a number"); },
          [&](float* x) { return is(Kind::kNumber) ? set_double(option, *x, value.text) : wrong("a number"); },
          [&](bool* b) { return is(Kind::kBool) ? (*b = value.boolean, std::string()) : wrong("true or false"); },
          [&](const EnumTarget& e) {
            const auto word = word_of(option, value);
            return word ? set_enum(option, e, *word) : wrong("a string");
          },
          [&](std::vector<int64_t>* v) {
            return all(Kind::kNumber) ? set_numbers(option, *v, texts) : std::string("expected a list of numbers");
          },
          [&](std::vector<double>* v) {
            return all(Kind::kNumber) ? set_numbers(option, *v, texts) : std::string("expected a list of numbers");
          },
          [&](std::vector<std::string>* v) {
            return all(Kind::kString) ? (*v = texts, std::string()) : std::string("expected a list of strings");
          },
          [&](std::vector<DataSource>* v) { return set_sources_json(*v, value); },
      },
      option.target);
}

namespace {
// The double whose shortest decimal is that of x: 0.9 for 0.9f.
double shortest(float x) {
  double out = x;
  parse_double(fmt::format("{}", x), out);
  return out;
}
}  // namespace

std::string to_json(const Option& option) {
  const auto text = [](const std::string& s) {
    std::string out;
    append_json_string(out, s);
    return out;
  };
  const auto list = [](const auto& v, auto&& one) {
    std::string out = "[";
    for (const auto& x : v) out += (out.size() > 1 ? ", " : "") + one(x);
    return out + "]";
  };
  return std::visit(Overloaded{
                        [&](std::string* s) { return text(*s); },
                        [&](int64_t* n) { return std::to_string(*n); },
                        [&](int* n) { return std::to_string(*n); },
                        [&](double* x) { return json_number(*x); },
                        [&](float* x) { return json_number(shortest(*x)); },
                        [&](bool* b) { return std::string(*b ? "true" : "false"); },
                        [&](const EnumTarget& e) { return text(e.names[*e.value]); },
                        [&](std::vector<int64_t>* v) {
                          return list(*v, [](int64_t n) { return json_number(static_cast<double>(n)); });
                        },
                        [&](std::vector<double>* v) { return list(*v, json_number); },
                        [&](std::vector<std::string>* v) { return list(*v, text); },
                        [&](std::vector<DataSource>* v) {
                          return list(*v, [&](const DataSource& p) {
                            if (p.weight == 0) return text(p.path);
                            return "{\"path\": " + text(p.path) + ", \"weight\": " + json_number(p.weight) + "}";
                          });
                        },
                    },
                    option.target);
}

std::string value_text(const Option& option) {
  return std::visit(Overloaded{
                        [&](std::string* s) { return *s; },
                        [&](const EnumTarget& e) { return std::string(e.names[*e.value]); },
                        [&](std::vector<int64_t>* v) { return fmt::format("{}", fmt::join(*v, ",")); },
                        [&](std::vector<double>* v) { return fmt::format("{}", fmt::join(*v, ",")); },
                        [&](std::vector<std::string>* v) { return join(*v, " "); },
                        [&](std::vector<DataSource>* v) {
                          std::vector<std::string> words;
                          for (const DataSource& p : *v) {
                            if (p.weight != 0) words.push_back(json_number(p.weight));
                            words.push_back(p.path);
                          }
                          return join(words, " ");
                        },
                        [&](const auto&) { return to_json(option); },
                    },
                    option.target);
}

std::vector<std::string> split_commas(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& w : words)
    for (size_t i = 0; i <= w.size();) {
      const size_t end = std::min(w.find(',', i), w.size());
      out.push_back(w.substr(i, end - i));
      i = end + 1;
    }
  return out;
}

std::vector<std::string> value_words(const Option& option) {
  const auto* list = std::get_if<std::vector<std::string>*>(&option.target);
  return list != nullptr ? **list : std::vector<std::string>{value_text(option)};
}

std::string type_name(const Option& option) {
  static constexpr const char* kNames[] = {"text", "int",     "int",     "number", "number", "flag",
                                           "text", "numbers", "numbers", "texts",  "paths"};
  return kNames[option.target.index()];
}

std::string value_form(const Option& o) {
  return o.domain.find('|') != std::string::npos
             ? std::string(first_word(o.domain))
             : fmt::format("<{}{}>", type_name(o), o.domain.empty() ? "" : " " + o.domain);
}

std::string help_lines(const std::vector<Option>& options) {
  std::string out;
  for (const Option& o : options) {
    const std::string value = value_text(o);
    out += help_entry(fmt::format("  --{} {}", o.key(), value_form(o)),
                      o.meaning + (value.empty() ? "" : fmt::format(" [{}]", value)));
  }
  return out;
}

}  // namespace gt
