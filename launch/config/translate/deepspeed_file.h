// A DeepSpeed configuration as its author wrote it: where it comes from, its text as JSON, and its values held against
// the key table (deepspeed_keys.h): unknown keys, wrong types, values outside their domain. What a value means for us
// is the business of deepspeed.h.
#pragma once
#include <string>
#include <vector>

#include "launch/config/translate/deepspeed_keys.h"
#include "launch/options/json_text.h"
#include "launch/options/options.h"

namespace gt {

struct DsValue {
  const DsKey* key = nullptr;
  JsonValue value;       // strings of a "a|b|c" domain in lower case; whole numbers in plain digits
  std::string where;     // "ds.json:14:5"
  bool is_auto = false;  // "auto", and the key allows it
};

struct DsFile {
  std::string name;                  // the path, "<stdin>", "<base64>"
  std::vector<DsValue> values;       // in the order of the file; blocks too; of two spellings of one block the first
  std::vector<std::string> unknown;  // accepted because of allow_unknown: "ds.json:3:5: zero_optimization.stag"

  // nullptr: absent, null or wrong.
  const DsValue* find(std::string_view path) const;
};

// The text behind --deepspeed_config: a path, "-" for standard input, or "base64:TEXT" (url-safe or not, padded or
// not); "stdin:TEXT" is what "-" becomes for ranks that have no standard input (deepspeed_flags.h). Throws kUsage with
// the source's name.
struct DsText {
  std::string name, text;
};
DsText read_deepspeed_text(const std::string& source);
std::string encode_base64(std::string_view bytes);  // url-safe, with padding

// Reads and checks. Everything wrong is added to `problems`; what is left out of `values` is in there. `allow_unknown`:
// unknown keys are listed instead.
DsFile read_deepspeed(const DsText& text, bool allow_unknown, Problems& problems);

// "amp.master_weights: reason\n  fix" as a problem at `where`.
void add_deepspeed_problem(Problems& problems, const std::string& where, std::string_view path, std::string reason,
                           const std::string& fix = "");

// The value as its author sees it, cut to fit a line.
std::string shown(const JsonValue& value);

}  // namespace gt
