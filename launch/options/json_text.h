// JSON reader for config files. Accepts // and /* */ comments and trailing commas.
// Rejects duplicate keys and invalid UTF-8 and bounds size and nesting depth. Every value and error carries its line
// and column. Independent of the option registry.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;               // kString: the unescaped bytes; kNumber: as written in the file
  std::vector<JsonValue> items;   // kArray and kObject
  std::vector<std::string> keys;  // kObject: keys[i] is the key of items[i], in file order
  int line = 0, column = 0;       // start of the value, both 1-based

  // Returns the member `key` of an object; nullptr if absent or if this is not an object.
  const JsonValue* find(std::string_view key) const;
};

constexpr size_t kMaxJsonBytes = 1 << 20;
constexpr int kMaxJsonDepth = 32;

enum class JsonDialect { kSlashComments, kHashComments };  // kHashComments: # also starts a comment

// Parses a document. `name` is the file name used in errors. Throws kUsage "name:line:column: expected …, found …".
JsonValue parse_json(std::string_view text, const std::string& name, JsonDialect dialect = JsonDialect::kSlashComments);

// Returns the contents of a file. Throws kUsage if it is not a regular file, is unreadable or exceeds kMaxJsonBytes.
std::string read_json_file(const std::string& path);

const char* kind_name(JsonValue::Kind kind);  // "a number", "an object", ...

// Appends the quoted, escaped form of a UTF-8 string; invalid bytes become U+FFFD.
void append_json_string(std::string& out, std::string_view s);

// Returns the shortest decimal that round-trips to the same double; "nan", "inf", "-inf" (quoted), which JSON numbers
// lack.
std::string json_number(double x);

// Parse the whole of `s` as a number; return false on trailing characters. Shared by flags and JSON.
bool parse_int(std::string_view s, int64_t& out);
bool parse_double(std::string_view s, double& out);  // finite only

}  // namespace gt
