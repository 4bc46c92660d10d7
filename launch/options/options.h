// Option registry. A struct lists its fields once, `template <class V> void fields(V& v)`, with
//   v("layers", layers, "1.. blocks", "transformer blocks");
// JSON input and output, flags, --help and "did you mean" are derived from that list. The registry handles values and
// domains only; it refers to no option by name.
//
// Domain syntax: the first word is the set of legal values, the rest is the unit.
//  "1..1024 layers"   closed range, both ends optional; ">0.." and "0..<1" exclude an end
//  "a|b|c"            choices; a choice in capitals ("STEP") admits free text, which the config checker validates
//  "1.. list of steps"  a list of any length; other number lists have the length of their default
// Any other text is only a unit. An enum has its list of names as choices; its domain is only a unit. A DType has those
// of its names (float_name) that the domain lists.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "data/samples/blend.h"
#include "kernels/core/enum_names.h"
#include "kernels/core/tensor.h"
#include "launch/options/json_text.h"

namespace gt {

// "auto": the run decides.
enum class AutoBool : uint8_t { kAuto, kTrue, kFalse };
constexpr std::array<const char*, 3> names_of(AutoBool) { return {"auto", "true", "false"}; }
constexpr AutoBool auto_bool(bool x) { return x ? AutoBool::kTrue : AutoBool::kFalse; }
constexpr bool value_or(AutoBool x, bool automatic) { return x == AutoBool::kAuto ? automatic : x == AutoBool::kTrue; }

// Names of floating-point dtypes in options, in the order of DType.
inline constexpr const char* kFloatNames[] = {"fp32", "bf16", "fp16"};
constexpr const char* float_name(DType t) { return kFloatNames[static_cast<size_t>(t)]; }
static_assert(DType::kF32 == DType{0} && DType::kBF16 == DType{1} && DType::kF16 == DType{2});

// Enum whose value names are names_of(E), in value order.
struct EnumTarget {
  uint8_t* value;
  std::span<const char* const> names;
};

using OptionTarget =
    std::variant<std::string*, int64_t*, int*, double*, float*, bool*, EnumTarget, std::vector<int64_t>*,
                 std::vector<double>*, std::vector<std::string>*, std::vector<DataSource>*>;

struct Option {
  std::string section;  // "" for the options of a subcommand
  std::string name;     // key inside the section
  OptionTarget target;
  std::string domain, meaning;
  std::string key() const { return section.empty() ? name : section + "." + name; }
};

// Visitor passed to fields().
struct OptionCollector {
  std::vector<Option>& out;
  std::string section;
  template <class T>
  void operator()(const char* name, T& field, const char* domain, const char* meaning) {
    out.push_back({section, name, OptionTarget(&field), domain, meaning});
  }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* name, E& field, const char* unit, const char* meaning) {
    static_assert(sizeof(E) == 1);
    static constexpr auto kNames = names_of(E{});
    std::string domain;
    for (const char* n : kNames) domain += (domain.empty() ? "" : "|") + std::string(n);
    if (*unit != '\0') domain += std::string(" ") + unit;
    out.push_back({section, name, EnumTarget{reinterpret_cast<uint8_t*>(&field), kNames}, domain, meaning});
  }
  void operator()(const char* name, DType& field, const char* domain, const char* meaning) {
    out.push_back({section, name, EnumTarget{reinterpret_cast<uint8_t*>(&field), kFloatNames}, domain, meaning});
  }
};

// One error in the user's input.
struct Problem {
  std::string where;   // "configs/x.json:14", "--tp"; "" if several places are involved
  std::string key;     // "train.global_batch"
  std::string reason;  // expected and found
  std::string fix;     // nearest valid values; may be empty
};

// Collects input errors. Only the first kListed are stored, later ones are counted, so a hostile file of 70,000 unknown
// keys stays cheap.
class Problems {
 public:
  static constexpr size_t kListed = 32;
  void add(std::string where, std::string key, std::string reason, std::string fix = "");
  bool empty() const { return list_.empty(); }
  bool full() const { return list_.size() >= kListed; }  // further problems need no suggestions
  const std::vector<Problem>& list() const { return list_; }
  std::string text() const;   // one line each, then "3 problems, nothing was started"
  void throw_if_any() const;  // throws one kUsage error with text()

 private:
  std::vector<Problem> list_;
  size_t unlisted_ = 0;
};

// Set a value after checking it against the domain. Return "" on success, else the error ("expected a whole number 1..,
// found \"abc\""). `words`: the flag's arguments, one for scalars, any number for lists.
std::string set_from_words(const Option& option, const std::vector<std::string>& words);
std::string set_from_json(const Option& option, const JsonValue& value);

bool takes_list(const Option& option);
bool is_flag(const Option& option);                      // bool: the value may be omitted
bool is_boolean_word(const std::string& word);           // whether `word` is a value of such a flag
std::string to_json(const Option& option);               // the value as JSON text
std::string value_text(const Option& option);            // the value as typed by a user: fp16, 3e-4, 0.9,0.95
std::string type_name(const Option& option);             // "int", "number", "text", "flag", "list"
std::vector<std::string> choices(const Option& option);  // of an "a|b|c" domain; otherwise empty
std::string value_form(const Option& option);            // "a|b|c", or type and domain: "<int 1..64>"

// Returns one block of --help, one line per option: flag, type and domain, meaning, default.
std::string help_lines(const std::vector<Option>& options);

}  // namespace gt
