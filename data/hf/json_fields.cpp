#include "data/hf/json_fields.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace gt {

using Json = nlohmann::json;

JsonFields::JsonFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  GT_REQUIRE(object.is_object(), Exit::kUsage, where_, ": expected an object, found a ", object.type_name());
}

void JsonFields::expect_keys(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : object_.items()) {
    const bool found = std::find(known.begin(), known.end(), key) != known.end();
    GT_REQUIRE(found, Exit::kUsage, where_, ": has the key \"", key.substr(0, 100), "\", which is not understood");
  }
}

const Json* JsonFields::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

const Json& JsonFields::get(const char* key) const {
  const Json* v = find(key);
  GT_REQUIRE(v != nullptr, Exit::kUsage, where_, ": has no \"", std::string_view(key).substr(0, 100), "\"");
  return *v;
}

bool JsonFields::flag(const char* key, bool otherwise) const {
  const Json* v = find(key);
  if (v == nullptr) return otherwise;
  GT_REQUIRE(v->is_boolean(), Exit::kUsage, where_, ".", key, ": expected true or false, found a ", v->type_name());
  return v->get<bool>();
}

void JsonFields::expect_flag(const char* key, bool only, bool otherwise) const {
  GT_REQUIRE(flag(key, otherwise) == only, Exit::kUsage, where_, ".", key, ": expected ", only ? "true" : "false",
             ", found ", only ? "false" : "true", ", which is not supported");
}

const std::string& JsonFields::text(const char* key) const {
  const Json& v = get(key);
  GT_REQUIRE(v.is_string(), Exit::kUsage, where_, ".", key, ": expected a string, found a ", v.type_name());
  return v.get_ref<const std::string&>();
}

std::string JsonFields::text_or(const char* key, const std::string& otherwise) const {
  return find(key) == nullptr ? otherwise : text(key);
}

int64_t JsonFields::number(const char* key, int64_t otherwise, int64_t most) const {
  const Json* v = find(key);
  if (v == nullptr) return otherwise;
  GT_REQUIRE(v->is_number_unsigned() && v->get<uint64_t>() <= static_cast<uint64_t>(most), Exit::kUsage, where_, ".",
             key, ": expected a number of 0 to ", most, ", found ", v->dump(-1, ' ', true).substr(0, 100));
  return v->get<int64_t>();
}

const Json& JsonFields::list(const char* key) const {
  const Json& v = get(key);
  GT_REQUIRE(v.is_array(), Exit::kUsage, where_, ".", key, ": expected an array, found a ", v.type_name());
  return v;
}

JsonFields JsonFields::object(const char* key) const {
  return {get(key), cat(where_, ".", std::string_view(key).substr(0, 100))};
}

void JsonFields::refuse_type(const char* expected) const {
  fail(Exit::kUsage, where_, ": expected ", expected, ", found \"", text("type").substr(0, 100),
       "\", which is not supported");
}

JsonPattern read_pattern(const JsonFields& f) {
  const JsonFields pattern = f.object("pattern");
  pattern.expect_keys({"Regex", "String"});
  JsonPattern p;
  p.regex = pattern.find("Regex") != nullptr;
  p.text = pattern.text(p.regex ? "Regex" : "String");
  GT_REQUIRE(!p.text.empty() && p.text.size() <= kMaxHfPattern, Exit::kUsage, pattern.where(), ": expected 1 to ",
             kMaxHfPattern, " bytes, found ", p.text.size());
  return p;
}

void for_each_step(const Json* value, const std::string& where, const char* list,
                   const std::function<void(const JsonFields&)>& act) {
  if (value == nullptr || value->is_null()) return;
  const JsonFields f(*value, where);
  if (f.text("type") != "Sequence") return act(f);
  f.expect_keys({"type", list});
  const Json& steps = f.list(list);
  GT_REQUIRE(steps.size() <= kMaxHfSteps, Exit::kUsage, where, ": expected at most ", kMaxHfSteps, " steps, found ",
             steps.size());
  for (size_t k = 0; k < steps.size(); ++k) act(JsonFields(steps[k], cat(where, ".", list, "[", k, "]")));
}

}  // namespace gt
