// JSON of files that nobody vouches for: duplicate keys and deep nesting are refused while it is read, in time and
// memory linear in the text. (The callback parser of nlohmann-json is quadratic in the longest list, its objects in the
// number of their keys.)
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

namespace gt {

// Throws kDamaged when a list or an object of the text has more than `most` entries. One look at each byte and no
// parser, so that a text that is too large is refused at once. Says nothing about what is no JSON.
void require_few_entries(std::string_view text, size_t most);

// Returns the value. Throws kDamaged for a duplicate key and for nesting deeper than `max_depth`, nlohmann's exceptions
// for what is no JSON. Lookups in an object are linear in its keys.
nlohmann::ordered_json parse_strict_json(std::string_view text, int max_depth);

}  // namespace gt
