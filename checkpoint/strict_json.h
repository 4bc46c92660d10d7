// JSON of files that nobody vouches for: duplicate keys and deep nesting are refused while it is read, in time and
// memory linear in the text. (The callback parser of nlohmann-json is quadratic in the longest list, its objects in the
// number of their keys.)
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

namespace gt {

// Returns the value. Throws kDamaged for a duplicate key and for nesting deeper than `max_depth`, nlohmann's exceptions
// for what is no JSON. Lookups in an object are linear in its keys.
nlohmann::ordered_json parse_strict_json(std::string_view text, int max_depth);

}  // namespace gt
