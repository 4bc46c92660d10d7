// Parser for untrusted JSON. Rejects duplicate keys and deep nesting while reading, in time and memory linear in the
// text. (nlohmann-json's callback parser is quadratic in the longest list, its objects in the number of keys.)
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

namespace gt {

// Throws kDamaged when any list or object has more than `most` entries. A single byte scan without parsing, so an
// oversized text is rejected at once. Does not validate JSON.
void require_few_entries(std::string_view text, size_t most);

// Parses a text. Throws kDamaged for a duplicate key and for nesting deeper than `max_depth`; nlohmann's exceptions for
// invalid JSON. Lookups in an object are linear in its keys.
nlohmann::ordered_json parse_strict_json(std::string_view text, int max_depth);

}  // namespace gt
