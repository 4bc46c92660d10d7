// JSON of config files (kernels/core/json.h) as values that carry their line
// and column. Accepts // and /* */ comments and trailing commas. Independent of
// the option registry.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/json.h"

namespace gt {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;               // kString: the unescaped bytes; kNumber: as written in the file
  std::vector<JsonValue> items;   // kArray and kObject
  std::vector<std::string> keys;  // kObject: keys[i] is the key of items[i], in file order
  int line = 0, column = 0;       // start of the value, both 1-based

  // Returns the member `key` of an object; nullptr if absent or if this is not
  // an object.
  const JsonValue* find(std::string_view key) const;
};

constexpr size_t kMaxJsonBytes = JsonLimits{}.bytes;

enum class JsonDialect { kSlashComments, kHashComments };  // kHashComments: # also starts a comment

// Parses a document. `name` is the file name used in errors. Throws kUsage
// "name:line:column: expected …, found …".
JsonValue parse_json(std::string_view text, const std::string& name, JsonDialect dialect = JsonDialect::kSlashComments);

// Returns the contents of a file. Throws kUsage if it is not a regular file, is
// unreadable or exceeds kMaxJsonBytes.
std::string read_json_file(const std::string& path);

const char* kind_name(JsonValue::Kind kind);  // "a number", "an object", ...

}  // namespace gt
