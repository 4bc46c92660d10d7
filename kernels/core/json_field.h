// Access to untrusted JSON by path: errors name a missing or malformed value with what was expected and found. Works
// with any Json type of nlohmann's; this header includes none.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {

// Describes a value, in at most 60 bytes of it: "the number 3", "a list [1,2]".
template <class Json>
std::string found_json(const Json& j) {
  constexpr size_t kMost = 60;
  const std::string text = j.is_structured() && j.size() > kMost
                               ? cat(j.is_array() ? "a list" : "an object", " of ", j.size())
                               : printable(j.dump(-1, ' ', false, Json::error_handler_t::replace));
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

// Returns the member of `j` at "writer.version" or "version.0" (a list index). Throws Error(code).
template <class Json>
const Json& member(const Json& j, std::string_view path, Exit code = Exit::kDamaged) {
  const Json* at = &j;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name(path.substr(begin, end - begin)), above(path.substr(0, begin > 0 ? begin - 1 : 0));
    if (at->is_array() && !name.empty() && name.size() < 9 &&
        name.find_first_not_of("0123456789") == std::string::npos) {
      const size_t k = std::stoul(name);
      GT_REQUIRE(k < at->size(), code, above, ": expected more than ", k, " values, found ", at->size());
      at = &(*at)[k];
    } else {
      GT_REQUIRE(at->is_object(), code, above.empty() ? "the text" : above, ": expected an object, found ",
                 found_json(*at));
      const auto it = at->find(name);
      GT_REQUIRE(it != at->end(), code, path.substr(0, end), ": is missing");
      at = &*it;
    }
    begin = end + 1;
  }
  return *at;
}

// Returns its value as a string, a number, a bool or an integer that fits T. Throws Error(code).
template <class T, class Json>
T field(const Json& j, std::string_view path, Exit code = Exit::kDamaged) {
  const Json& v = member(j, path, code);
  bool good = false;
  const char* expected = "";
  if constexpr (std::is_same_v<T, std::string>)
    good = v.is_string(), expected = "a string";
  else if constexpr (std::is_same_v<T, bool>)
    good = v.is_boolean(), expected = "true or false";
  else if constexpr (std::is_floating_point_v<T>)
    good = v.is_number(), expected = "a number";
  else {
    static_assert(std::is_integral_v<T>);
    using Limits = std::numeric_limits<T>;
    expected = "a whole number that is not too large";
    if (v.is_number_unsigned())
      good = v.template get<uint64_t>() <= static_cast<uint64_t>(Limits::max());
    else if (v.is_number_integer())
      good = v.template get<int64_t>() >= static_cast<int64_t>(Limits::min()) && std::is_signed_v<T>;
  }
  GT_REQUIRE(good, code, path, ": expected ", expected, ", found ", found_json(v));
  return v.template get<T>();
}

// field() with a default for a missing member.
template <class T, class Json>
T field_or(const Json& j, const char* key, T otherwise, Exit code = Exit::kDamaged) {
  return j.is_object() && !j.contains(key) ? otherwise : field<T>(j, key, code);
}

// Rewrites a JSON library's parse error without its own names: "[json.exception.parse_error.101] parse error at line 1,
// column 2: ..." becomes "no JSON: line 1, column 2: ...".
inline std::string no_json(std::string_view what) {
  if (const size_t end = what.find("] "); end != std::string_view::npos && what.starts_with("[json."))
    what.remove_prefix(end + 2);
  constexpr std::string_view kHead = "parse error at ";
  if (what.starts_with(kHead)) what.remove_prefix(kHead.size());
  return "no JSON: " + printable(what);
}

}  // namespace gt
