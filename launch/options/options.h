// The option registry: a struct lists its fields once, `template <class V> void fields(V& v)`, with
//   v("layers", layers, "1.. blocks", "transformer blocks");
// and that list serves JSON in and out, flags, --help and "did you mean". Knows values and their domains, no option by
// name.
//
// Domain: the first word says what is legal, the rest is the unit. "1..1024 layers" (both ends optional), ">0..",
// "0..<1"; "a|b|c" choices, a choice in capitals ("STEP") admits free text that the config checker reads. Anything else
// is only a unit; of an enum its names are the domain; of numbers, "1.. list of steps" admits any number of them, others as many as the default has.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "data/blend.h"
#include "launch/options/json_text.h"

namespace gt {

// An enum of which names_of(E) lists the names, in the order of its values.
struct EnumTarget {
  uint8_t* value;
  std::span<const char* const> names;
};

using OptionTarget = std::variant<std::string*, int64_t*, double*, bool*, EnumTarget, std::vector<double>*,
                                  std::vector<std::string>*, std::vector<DataSource>*>;

struct Option {
  std::string section;  // "" for a verb's own options
  std::string name;     // key inside the section
  OptionTarget target;
  std::string domain, meaning;
  std::string key() const { return section.empty() ? name : section + "." + name; }
};

// The visitor that fields() is called with.
struct OptionCollector {
  std::vector<Option>& out;
  std::string section;
  template <class T>
  void operator()(const char* name, T& field, const char* domain, const char* meaning) {
    out.push_back({section, name, OptionTarget(&field), domain, meaning});
  }
  template <class E>
    requires std::is_enum_v<E>
  void operator()(const char* name, E& field, const char*, const char* meaning) {
    static_assert(sizeof(E) == 1);
    static constexpr auto kNames = names_of(E{});
    std::string domain;
    for (const char* n : kNames) domain += (domain.empty() ? "" : "|") + std::string(n);
    out.push_back({section, name, EnumTarget{reinterpret_cast<uint8_t*>(&field), kNames}, domain, meaning});
  }
};

// A thing that is wrong with what the user gave.
struct Problem {
  std::string where;   // "configs/x.json:14", "--tp", "" when it is a matter of several
  std::string key;     // "train.global_batch"
  std::string reason;  // what was expected and what was found
  std::string fix;     // nearest valid values; may be empty
};

// The first kListed problems are listed, further ones counted: a hostile file of 70,000 unknown keys costs what 32 cost.
class Problems {
 public:
  static constexpr size_t kListed = 32;
  void add(std::string where, std::string key, std::string reason, std::string fix = "");
  bool empty() const { return list_.empty(); }
  bool full() const { return list_.size() >= kListed; }  // a suggestion for the next one would be read by nobody
  const std::vector<Problem>& list() const { return list_; }
  std::string text() const;   // one line each and "3 problems, nothing was started"
  void throw_if_any() const;  // one kUsage error with text()

 private:
  std::vector<Problem> list_;
  size_t unlisted_ = 0;
};

// Set a value. The empty string is returned on success, else what was expected and found ("expected a whole number 1..,
// found \"abc\""). Domain included. `words` are the flag's arguments: one for scalars, any number for lists.
std::string set_from_words(const Option& option, const std::vector<std::string>& words);
std::string set_from_json(const Option& option, const JsonValue& value);

bool takes_list(const Option& option);
bool is_flag(const Option& option);                      // bool: may stand alone
bool says_true_or_false(const std::string& word);          // is a value of such a flag
std::string to_json(const Option& option);               // the value as JSON text
std::string value_text(const Option& option);            // the value as a user writes it: fp16, 3e-4, 0.9,0.95
std::string type_name(const Option& option);             // "int", "number", "text", "flag", "list"
std::vector<std::string> choices(const Option& option);  // of an "a|b|c" domain; else empty

// One block of --help, a line an option: flag, type and domain, default, meaning.
std::string help_lines(const std::vector<Option>& options);

// Levenshtein distance with swaps of neighbours counting one.
int edit_distance(std::string_view a, std::string_view b);

// The best candidate within distance 2 (or a third of the length), or one that contains or is contained in the word,
// else "". First candidate wins ties.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace gt
