// Model families: which decisions a name stands for, and what Hugging Face calls its configuration and tensors. One
// file a family here, one line in the table of families.cpp; everything else goes by this table.
#pragma once
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/model_spec.h"

namespace gt {

// The keys of a Hugging Face config.json, visited once: read into the configuration, or written from it. Problems are
// collected, not thrown.
class HfKeys {
 public:
  static constexpr int64_t kRequired = -1;
  virtual ~HfKeys() = default;
  // `standard`: without the key, or with null; kRequired: that is a problem. So is a number below `low` or above
  // `high`.
  virtual void integer(const char* key, int64_t& value, int64_t low, int64_t high, int64_t standard = kRequired) = 0;
  virtual void number(const char* key, double& value, double low, double high, double standard) = 0;
  virtual void boolean(const char* key, bool& value, bool standard) = 0;
  // One of the names of an enum (names_of). Reads the first of `keys` that is there, else leaves the value; writes the
  // first.
  template <class E>
  void choice(std::initializer_list<const char*> keys, E& value) {
    static constexpr auto kNames = names_of(E{});
    choice(keys, reinterpret_cast<uint8_t&>(value), kNames);
  }
  virtual void choice(std::initializer_list<const char*> keys, uint8_t& value, std::span<const char* const> names) = 0;
  // Visits the keys of a nested object. False: there is none, and nothing was visited.
  virtual bool object(const char* key, const std::function<void(HfKeys&)>& visit) = 0;
  // The key has one of these values, or is absent; the first is written.
  virtual void word(const char* key, std::initializer_list<std::string_view> values, const char* remark = "") = 0;
  virtual void only(const char* key, bool value) = 0;     // another value is a problem; not written
  virtual void also(const char* key, int64_t value) = 0;  // written, never read
  virtual void none(const char* key) = 0;                 // anything but null is a problem
  // A list of texts, each one of `known`; empty where the key is absent or null. Not written.
  virtual void words(const char* key, std::vector<std::string>& value,
                     std::initializer_list<std::string_view> known) = 0;
  // Where a missing key has another meaning than null.
  enum class Presence : uint8_t { kAbsent, kNull, kValue };
  virtual Presence presence(const char* key) const = 0;
  virtual bool reading() const = 0;
  virtual void problem(std::string text) = 0;
  virtual void warning(std::string text) = 0;
};

// Tensors of a class, "layers.*.attn.qkv.weight", as they are called in a Hugging Face folder.
struct NameRule {
  std::string_view ours;
  std::string_view theirs;  // with the same *; several names, separated by a space: blocks of dimension 0, in order
  bool transposed = false;  // matrices there are [in, out]
};

struct Family {
  const char* name;            // value of model.arch
  const char* model_type;      // in config.json
  const char* architecture;    // the class in transformers
  const char* prefix;          // that tensors of the model without its head may lack
  TransformerConfig defaults;  // its sizes are those of no particular model
  void (*keys)(HfKeys&, TransformerConfig&);
  std::span<const NameRule> names;
  std::span<const NameRule> copies = {};  // further names of tensors that a folder may hold twice
  const char* auto_class = "AutoModelForCausalLM";
};

std::span<const Family* const> families();
const Family* find_family(std::string_view name);  // nullptr: none of the table
const char* family_choices();                      // "gpt2|llama", for options
// Names of a parameter's blocks in a Hugging Face folder, in order; empty: the family has none for it.
std::vector<std::string> hf_names(const Family&, const ParamSpec&);
bool hf_transposed(const Family&, const ParamSpec&);
// Names under which a folder may hold the parameter once more: a tied table's, and those of Family::copies.
std::vector<std::string> hf_copies(const Family&, const ModelSpec&, const std::string& parameter);

}  // namespace gt
