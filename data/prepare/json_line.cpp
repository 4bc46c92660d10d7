#include "data/prepare/json_line.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

using Listener = nlohmann::json_sax<nlohmann::json>;

constexpr const char* kList =
    "found a list: expected one JSON object per line; convert it: jq -c '.[]' FILE > FILE.jsonl";

// Finds the string of one key of the outermost object; builds nothing else.
struct TextListener final : Listener {
  TextListener(const std::string& k, std::string* t) : key_(k), text(t) {}
  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("true or false"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t& s) override {
    return other(s == kNan ? "NaN" : s == kInfinity ? "Infinity" : s == kMinusInfinity ? "-Infinity" : "a number");
  }
  bool binary(binary_t&) override { return other("bytes"); }
  bool string(string_t& s) override {
    if (depth == 0) return refuse("expected an object, found a string");
    if (depth == 1) keys.see(now, true);
    if (depth == 1 && matches) *text = std::move(s), found = true;
    return true;
  }
  bool start_object(size_t) override {
    if (depth > 0 && !other("an object")) return false;
    ++depth;
    return true;
  }
  bool end_object() override { return --depth, true; }
  bool start_array(size_t) override {
    if (depth == 0) return refuse(kList);
    if (!other("a list")) return false;
    ++depth;
    return true;
  }
  bool end_array() override { return --depth, true; }
  bool key(string_t& k) override {
    if (depth == 1) matches = k == key_, now = std::move(k);
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    broken = at;
    return refuse(cat("broken JSON at byte ", at, " of the line"));
  }
  bool refuse(std::string reason) {
    why = std::move(reason);
    return false;
  }
  bool other(const char* what) {
    if (depth == 0) return refuse(cat("expected an object, found ", what));
    if (depth == 1) keys.see(now, false);
    if (depth == 1 && matches) return refuse(cat("the value of \"", key_, "\": expected a string, found ", what));
    return true;
  }
  const std::string& key_;
  std::string* text;
  std::string why, now;
  JsonKeys keys;
  size_t broken = 0;  // byte of a syntax error
  int depth = 0;
  bool matches = false, found = false;
};

// Counts the keys of a complete object that is one line.
bool is_object(std::string_view line) {
  if (line.find('\0') != std::string_view::npos) return false;
  std::string text, why;
  const std::string none;
  TextListener l(none, &text);
  if (nlohmann::json::sax_parse(line.begin(), line.end(), &l)) return true;
  if (l.broken == 0) return false;
  std::string again(line);
  if (standard_json(&again) < 0) return false;
  TextListener second(none, &text);
  return nlohmann::json::sax_parse(again, &second);
}

bool is_json_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* packed : {".gz", ".dz"})
    if (name.ends_with(packed)) name.resize(name.size() - 3);
  return name.ends_with(".jsonl") || name.ends_with(".json") || name.ends_with(".ndjson");
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// The code unit of an escape \uXXXX at `at`; -1 if there is none.
int code_unit(std::string_view s, size_t at) {
  if (at + 6 > s.size() || s[at] != '\\' || s[at + 1] != 'u') return -1;
  for (size_t k = 2; k < 6; ++k)
    if (!is_hex(s[at + k])) return -1;
  return static_cast<int>(std::strtol(std::string(s.substr(at + 2, 4)).c_str(), nullptr, 16));
}

bool replace_value(std::string_view word, std::string* out) {
  if (word == "NaN") return *out = kNan, true;
  if (word == "Infinity") return *out = kInfinity, true;
  if (word == "-Infinity") return *out = kMinusInfinity, true;
  if (word.find_first_not_of("-+.0123456789eE") != std::string_view::npos) return false;
  if (!std::isinf(std::strtod(std::string(word).c_str(), nullptr))) return false;
  *out = "0e3";
  out->resize(word.size(), ' ');
  return true;
}

}  // namespace

int64_t standard_json(std::string* line) {
  std::string& s = *line;
  std::string put;
  int64_t replaced = 0;
  bool quoted = false, any = false;
  for (size_t k = 0; k < s.size();) {
    if (s[k] == '"') {
      quoted = !quoted, ++k;
    } else if (quoted && s[k] == '\\') {
      const int unit = code_unit(s, k), low = unit >= 0xD800 && unit < 0xDC00 ? code_unit(s, k + 6) : -1;
      if (low >= 0xDC00 && low < 0xE000) {
        k += 12;
        continue;
      }
      if (unit >= 0xD800 && unit < 0xE000) s.replace(k, 6, "\\ufffd"), ++replaced;
      k += unit >= 0 ? 6 : 2;
    } else if (!quoted && (s[k] == '-' || std::isalnum(static_cast<unsigned char>(s[k])))) {
      const size_t end = std::min(s.find_first_of(" \t\r\n,:]}[{\"", k), s.size());
      if (replace_value(std::string_view(s).substr(k, end - k), &put)) s.replace(k, end - k, put), any = true;
      k = end;
    } else {
      ++k;
    }
  }
  return any || replaced > 0 ? replaced : -1;
}

namespace {

std::string_view trimmed(std::string_view s) {
  const size_t first = std::min(s.find_first_not_of(" \t\r\n"), s.size());
  return s.substr(first, s.find_last_not_of(" \t\r\n") + 1 - first);
}

}  // namespace

bool opens_object(std::string_view line) {
  const std::string_view body = trimmed(line);
  return body.starts_with('{') && std::string_view("{[,").find(body.back()) != std::string_view::npos;
}

bool json_text(std::string_view line, const std::string& key, std::string* text, std::string* why, int64_t* replaced) {
  if (const size_t zero = line.find('\0'); zero != std::string_view::npos) {  // the parser would end there
    *why = cat("broken JSON at byte ", zero, " of the line: a zero byte");
    return false;
  }
  TextListener l(key, text);
  if (nlohmann::json::sax_parse(line.begin(), line.end(), &l) && l.found) return true;
  std::string again;
  if (l.broken > 0) again = line;
  if (const int64_t lone = l.broken > 0 ? standard_json(&again) : -1; lone >= 0) {
    TextListener second(key, text);
    const bool ok = nlohmann::json::sax_parse(again, &second);
    if (ok && second.found) {
      if (replaced != nullptr) *replaced += lone;
      return true;
    }
    *why = second.why;
    l.keys = second.keys;
  } else {
    *why = l.why;
  }
  const std::string_view body = trimmed(line);
  if (why->empty()) {
    *why = cat("the object has no key \"", printable(key), "\"");
    if (const std::string form = other_form(l.keys); !form.empty()) *why += "; " + form;
  } else if (opens_object(body)) {
    *why += kOverLines;
  } else if (body.starts_with('[')) {
    *why = kList;
  }
  return false;
}

namespace {

// Whether a text begins with these characters, between blanks, then a key and a colon.
bool begins_with_key(std::string_view head, std::string_view opening) {
  size_t at = 0;
  const auto next = [&] { return (at = head.find_first_not_of(" \t\r\n", at)) < head.size() ? head[at] : '\0'; };
  for (const char c : opening) {
    if (next() != c) return false;
    ++at;
  }
  if (next() != '"') return false;
  at = std::min(head.find('"', at + 1), head.size() - 1) + 1;
  return next() == ':';
}

// What is found where a text is read as one JSON value, whatever follows it.
enum class Value : uint8_t { kNone, kWhole, kCut };
Value value_at_begin(std::string_view s) {
  std::string text(s), scrap;
  const bool changed = standard_json(&text) >= 0;
  const std::string none;
  TextListener l(none, &scrap);
  const std::string_view given = changed ? std::string_view(text) : s;
  if (nlohmann::json::sax_parse(given.begin(), given.end(), &l, nlohmann::json::input_format_t::json, false))
    return Value::kWhole;
  return l.broken >= given.size() ? Value::kCut : Value::kNone;
}

// Whether a text begins with a JSON object over several lines. One that ends on its first line is followed by text.
bool begins_object_over_lines(std::string_view head) {
  if (!begins_with_key(head, "{") || head.find('\0') != std::string_view::npos) return false;
  const size_t first = head.find_first_not_of(" \t\r\n"), end = head.find('\n', first);
  return end != std::string_view::npos && value_at_begin(head.substr(first, end - first)) == Value::kCut &&
         value_at_begin(head) != Value::kNone;
}

}  // namespace

bool is_json_lines(const std::string& path, std::string_view head) {
  if (is_json_name(path) || begins_with_key(head, "[{") || begins_object_over_lines(head)) return true;
  int objects = 0;
  for (size_t at = 0; at < head.size() && objects < 2;) {
    const size_t end = head.find('\n', at);
    const std::string_view line = head.substr(at, end == std::string_view::npos ? end : end - at);
    at = end == std::string_view::npos ? head.size() : end + 1;
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) continue;
    if (line[first] != '{') return false;
    // A line that is longer than the head cannot be parsed.
    if (end == std::string_view::npos && head.size() >= (size_t{1} << 16)) {
      const size_t key = line.find_first_not_of(" \t", first + 1);
      return objects > 0 || (key != std::string_view::npos && line[key] == '"');
    }
    if (!is_object(line)) return false;
    ++objects;
  }
  return objects > 0;
}

void JsonKeys::see(std::string_view key, bool string) {
  messages |= key == "messages";
  conversations |= key == "conversations" || key == "conversation";
  instruction |= key == "instruction";
  prompt |= key == "prompt";
  completion |= key == "completion";
  output |= key == "output" || key == "response";
  if (string && text.empty() && key != "id") text = key;
}

std::string other_form(const JsonKeys& k) {
  if (k.messages) return "it is a conversation: gpttrain data prepare --format chat reads it";
  if (k.conversations)
    return "it is a conversation in ShareGPT's form; convert it: jq -c '{messages: [.conversations[] | {role: "
           "({human: \"user\", gpt: \"assistant\"}[.from] // .from), content: .value}]}' FILE > FILE.chat.jsonl, then "
           "gpttrain data prepare --format chat reads it";
  if ((k.instruction || k.prompt) && k.output)
    return "it is an instruction with its answer: gpttrain data prepare --format instruct reads it";
  if (k.prompt && k.completion)
    return "it is a prompt with its completion; convert it: jq -c '{prompt, response: .completion}' FILE > "
           "FILE.instruct.jsonl, then gpttrain data prepare --format instruct reads it";
  if (!k.text.empty())
    return cat("its text may be under \"", printable(k.text), "\": gpttrain data prepare --json-key ",
               shell_word(k.text), " reads it");
  return "";
}

}  // namespace gt
