// Fields of the JSON objects in a tokenizer.json: each is of one type, and keys that are not understood are refused.
#pragma once
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gt {

// Limits of every part: steps of a Sequence, bytes of a pattern, and of a text that a step inserts.
constexpr size_t kMaxHfSteps = 16, kMaxHfPattern = 4096, kMaxHfText = 1024;

// An object of the file with its path. All functions throw kUsage naming the path, the expected and the found value.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, std::string where);
  const std::string& where() const { return where_; }
  void expect_keys(std::initializer_list<std::string_view> known) const;
  const nlohmann::json* find(const char* key) const;  // nullptr where the key is missing or null
  const nlohmann::json& get(const char* key) const;
  bool flag(const char* key, bool otherwise) const;
  void expect_flag(const char* key, bool only, bool otherwise) const;
  const std::string& text(const char* key) const;
  std::string text_or(const char* key, const std::string& otherwise) const;
  int64_t number(const char* key, int64_t otherwise, int64_t most) const;  // 0 to `most`
  const nlohmann::json& list(const char* key) const;
  JsonFields object(const char* key) const;
  // Throws: the object's "type" is another than `expected`.
  [[noreturn]] void refuse_type(const char* expected) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
};

// A pattern of Split and Replace: {"String": S} or {"Regex": R}. Requires 1 to kMaxHfPattern bytes.
struct JsonPattern {
  std::string text;
  bool regex = false;
};
JsonPattern read_pattern(const JsonFields& f);

// Calls act(step) for an object, or for each step of a Sequence, stored under `list`; never for nullptr and null.
// Sequences inside of a Sequence are refused.
void for_each_step(const nlohmann::json* value, const std::string& where, const char* list,
                   const std::function<void(const JsonFields&)>& act);

}  // namespace gt
