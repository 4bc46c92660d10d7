// JSON lines: the text under one key of an object. Whatever else the object holds does not matter: values that JSON
// lacks but Python writes (NaN, Infinity), numbers beyond a double, lone surrogates.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

// Extracts the string under `key` of one JSON object. Lone surrogates become U+FFFD and are added to
// `replaced` (optional). Returns false with the reason in *why: invalid JSON, not an object, no such key, not a string;
// for a line of another known form with the command that converts it.
bool json_text(std::string_view line, const std::string& key, std::string* text, std::string* why,
               int64_t* replaced = nullptr);

// Replaces what Python's json writes beyond the standard by numbers and characters of the same length: NaN, Infinity,
// numbers too large for a double, lone surrogates. Returns the number of surrogates replaced; -1 if there was
// nothing to replace. kNan, kInfinity: what stands for those values.
int64_t standard_json(std::string* line);
constexpr std::string_view kNan = "0e1", kInfinity = "0e000002", kMinusInfinity = "-0e000002";

// Whether a file is JSON lines: by its name (.jsonl, .json, .ndjson, also compressed by gzip), else by its first bytes,
// if its first two lines, or its only line, are JSON objects, or if it begins with a list of objects or with an object
// over several lines, which are refused as no lines.
bool is_json_lines(const std::string& path, std::string_view head);

// Whether a line that is no JSON begins an object over several lines.
bool opens_object(std::string_view line);
constexpr const char* kOverLines =
    ": an object over several lines? Expected one per line; convert it: jq -c . FILE > FILE.jsonl";

// How to convert JSON of another form to what `gpttrain data prepare` reads, by the keys of its object. "" if unknown.
struct JsonKeys {
  bool messages = false, conversations = false, instruction = false, prompt = false, completion = false, output = false;
  std::string text;  // some other key with a string
  void see(std::string_view key, bool string);
};
std::string other_form(const JsonKeys& keys);

}  // namespace gt
