// Table of every DeepSpeed configuration key: value type and treatment. Drives reading, suggestions, the report and the
// tests. Reference: DeepSpeed 0.19.6. Keys with special rules are handled in deepspeed_*.cpp beside this file.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace gt {

enum class DsStatus {
  kHonoured,    // same behaviour as DeepSpeed
  kTranslated,  // mapped to an equivalent feature
  kIgnored,     // accepted and reported as having no effect
  kRefused,     // an error, unless the value is DeepSpeed's default
};

enum class DsType {
  kBool,
  kInt,     // 5e8 is accepted
  kNumber,  // a finite number
  kText,    // string; domain "a|b|c": one of these, case-insensitive
  kPair,    // two numbers
  kInts,    // list of integers
  kScalar,  // boolean, number, or string that spells one, as apex accepts
  kBlock,   // object whose keys are rows of this table
  kOpaque,  // any value; never inspected
};

struct DsKey {
  std::string_view path;  // "zero_optimization.stage"
  DsStatus status = DsStatus::kHonoured;
  DsType type = DsType::kBool;
  std::string_view domain = {};    // "1..", "0..<1", "a|b|c" as in launch/options/options.h
  std::string_view standard = {};  // DeepSpeed's default as JSON; empty: none, or set by a rule in code
  std::string_view native = {};    // our key with the same values; empty: a rule in code, or none
  std::string_view why = {};       // reason of no effect or rejection, and the alternative
  bool may_be_auto = false;        // "auto" selects the native value
  std::string_view of = {};        // types of the block that have this key, "adam|adamw"; empty: all

  std::string_view name() const { return path.substr(path.rfind('.') + 1); }  // npos + 1 is 0
};

std::span<const DsKey> deepspeed_keys();
const DsKey* find_deepspeed_key(std::string_view path);

// Maps alternative block names to the canonical one: "bfloat16" → "bf16".
std::string_view deepspeed_block(std::string_view name);

// Maps a field's own name to the alias that files usually have, which is in the table:
// "zero_optimization.max_live_parameters" → "zero_optimization.stage3_max_live_parameters".
std::string deepspeed_path(const std::string& path);

}  // namespace gt
