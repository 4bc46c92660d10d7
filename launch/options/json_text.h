// JSON as people write it in config files: // and /* */ comments, trailing commas; and as programs must read it:
// duplicate keys refused, strict UTF-8, bounded size and depth, line and column in every error and on every value.
// Knows no option.
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
  std::vector<std::string> keys;  // kObject: keys[i] names items[i], in file order
  int line = 0, column = 0;       // where the value begins, both from 1

  // The member of an object, or nullptr (also when this is no object).
  const JsonValue* find(std::string_view key) const;
};

constexpr size_t kMaxJsonBytes = 1 << 20;
constexpr int kMaxJsonDepth = 32;

enum class JsonDialect { kSlashComments, kHashComments };  // kHashComments: # begins a comment too

// Throws kUsage "name:line:column: what was expected and found".
JsonValue parse_json(std::string_view text, const std::string& name, JsonDialect dialect = JsonDialect::kSlashComments);

// Returns the bytes of a file. Throws kUsage when it is no regular file, cannot be read or is larger than kMaxJsonBytes.
std::string read_json_file(const std::string& path);

const char* kind_name(JsonValue::Kind kind);  // "a number", "an object", ...

// Appends the quoted, escaped form of a UTF-8 string; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view s);

// The shortest decimal that reads back as the same double; "nan", "inf", "-inf" (quoted) where JSON has no number.
std::string json_number(double x);

// A whole number with nothing after it, or false. Used for flags and JSON alike.
bool parse_int(std::string_view s, int64_t& out);
bool parse_double(std::string_view s, double& out);  // finite only

}  // namespace gt
