// Every key that a DeepSpeed configuration may hold, what type its value has and what becomes of it here: the one list
// that reading, suggestions, the report and the tests go by. Behaviour of reference: DeepSpeed 0.19.6. What a key with
// rules of its own leads to is said in deepspeed_*.cpp beside this file.
#pragma once
#include <span>
#include <string_view>

namespace gt {

enum class DsStatus {
  kHonoured,    // does what DeepSpeed does with it
  kTranslated,  // becomes something of ours that does the same work
  kIgnored,     // accepted and said to have no effect
  kRefused,     // an error, unless the value is DeepSpeed's default, which asks for nothing
};

enum class DsType {
  kBool,
  kInt,     // also written 5e8
  kNumber,  // a finite number
  kText,    // a string; domain "a|b|c": one of them in any case
  kPair,    // two numbers
  kInts,    // a list of whole numbers
  kLoose,   // true, false, a number or a string that spells one, as apex takes them
  kBlock,   // an object whose keys are rows of this table
  kOpaque,  // anything; never looked into
};

struct DsKey {
  std::string_view path;  // "zero_optimization.stage"
  DsStatus status = DsStatus::kHonoured;
  DsType type = DsType::kBool;
  std::string_view domain = {};    // "1..", "0..<1", "a|b|c" as in launch/options/options.h
  std::string_view standard = {};  // DeepSpeed's default as JSON text; empty: none, or the block's rules know it
  std::string_view native = {};    // our key that takes the value as it is; empty: a rule in code, or nothing
  std::string_view why = {};       // no effect because ...; refused because ...; what there is instead
  bool may_be_auto = false;        // "auto" means the native value
  std::string_view of = {};        // "adam|adamw": belongs to these values of its block's type; empty: to all

  std::string_view name() const { return path.substr(path.rfind('.') + 1); }  // npos + 1 is 0
};

std::span<const DsKey> deepspeed_keys();
const DsKey* find_deepspeed_key(std::string_view path);

// "bfloat16" -> "bf16": other spellings of a block.
std::string_view deepspeed_block(std::string_view name);

}  // namespace gt
