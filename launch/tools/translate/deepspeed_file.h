// Reader of DeepSpeed configuration files: source, JSON text, and validation against the key table (deepspeed_keys.h)
// for unknown keys, wrong types and values outside their domain. deepspeed.h translates the values.
#pragma once
#include <string>
#include <vector>

#include "launch/options/json_text.h"
#include "launch/options/options.h"
#include "launch/tools/translate/deepspeed_keys.h"

namespace gt {

struct DsValue {
  const DsKey* key = nullptr;
  JsonValue value;       // strings of an "a|b|c" domain in lower case; integers in plain digits
  std::string where;     // "ds.json:14:5"
  bool is_auto = false;  // value is "auto" and the key allows it
};

struct DsFile {
  std::string name;                  // the path, "<stdin>", "<base64>"
  std::vector<DsValue> values;       // in file order, blocks included; of two spellings of one block the first
  std::vector<std::string> unknown;  // ignored: "ds.json:3:5: zero_optimization.stag: unknown key, ignored (…)"

  // Returns nullptr if absent, null or invalid.
  const DsValue* find(std::string_view path) const;
};

// Reads the argument of --deepspeed_config: a path, "-" for standard input, or "base64:TEXT" (standard or url-safe,
// padding optional). "stdin:TEXT" replaces "-" for ranks, which have no standard input (deepspeed_flags.h). Throws
// kUsage with the source's name.
struct DsText {
  std::string name, text;
};
DsText read_deepspeed_text(const std::string& source);

// Parses and validates. Invalid values are reported in `problems` and omitted from `values`. Unknown
// keys of the file itself, which DeepSpeed ignores, are listed in DsFile::unknown; with `allow_unknown` those of its
// blocks too, which DeepSpeed refuses.
DsFile read_deepspeed(const DsText& text, bool allow_unknown, Problems& problems);

// Adds the problem "amp.master_weights: reason\n  fix" at `where`.
void add_deepspeed_problem(Problems& problems, const std::string& where, std::string_view path, std::string reason,
                           const std::string& fix = "");

// Returns the value in the file's spelling, truncated to fit a line.
std::string shown(const JsonValue& value);

}  // namespace gt
