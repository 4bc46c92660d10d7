// Model families: the configuration defaults that a name stands for, and Hugging Face's names of configuration keys and
// tensors. To add a family, add one file here and one line to the table of families.cpp. Everything else reads that
// table.
#pragma once
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "model/model_spec.h"

namespace gt {

// Takes the keys of a Hugging Face config.json once, either to read them into the configuration or to write them from
// it. Collects problems instead of throwing.
class HfKeys {
 public:
  static constexpr int64_t kRequired = -1;
  virtual ~HfKeys() = default;
  // `standard`: value when the key is absent or null; with kRequired that is a problem. So is a number below `low` or
  // above `high`.
  virtual void integer(const char* key, int64_t& value, int64_t low, int64_t high, int64_t standard = kRequired) = 0;
  virtual void number(const char* key, double& value, double low, double high, double standard) = 0;
  virtual void boolean(const char* key, bool& value, bool standard) = 0;
  // An enum by its name (names_of). Reads the first of `keys` that is present, else leaves the value unchanged; writes
  // the first.
  template <class E>
  void choice(std::initializer_list<const char*> keys, E& value) {
    static constexpr auto kNames = names_of(E{});
    choice(keys, reinterpret_cast<uint8_t&>(value), kNames);
  }
  virtual void choice(std::initializer_list<const char*> keys, uint8_t& value, std::span<const char* const> names) = 0;
  // Takes the keys of a nested object. Returns false, taking none, if there is no such object.
  virtual bool object(const char* key, const std::function<void(HfKeys&)>& visit) = 0;
  // Requires the key to have one of these values, or to be absent. Writes the first.
  virtual void word(const char* key, std::initializer_list<std::string_view> values, const char* remark = "") = 0;
  virtual void only(const char* key, bool value) = 0;     // any other value is a problem; not written
  virtual void also(const char* key, int64_t value) = 0;  // written, never read
  virtual void none(const char* key) = 0;                 // any value but null is a problem
  // Keys that transformers writes for this family and that have no effect here. Not written.
  virtual void unused(std::initializer_list<const char*> keys) = 0;
  // List of strings, each one of `known`; empty if the key is absent or null. Not written.
  virtual void words(const char* key, std::vector<std::string>& value,
                     std::initializer_list<std::string_view> known) = 0;
  virtual void integers(const char* key, std::vector<int64_t>& value) = 0;  // empty if the key is absent or null
  // Distinguishes a missing key from null.
  enum class Presence : uint8_t { kAbsent, kNull, kValue };
  virtual Presence presence(const char* key) const = 0;
  virtual bool reading() const = 0;
  virtual void problem(std::string text) = 0;
  virtual void warning(std::string text) = 0;
};

// Hugging Face's names of a class of tensors, "layers.*.attn.qkv.weight".
struct NameRule {
  std::string_view ours;
  // With the same *, and of stacked experts one more; names separated by spaces: blocks of dimension 0, in order, or of
  // each expert's matrix.
  std::string_view theirs;
  bool transposed = false;  // matrices are stored [in, out]
};

struct Family {
  const char* name;            // value of model.arch
  const char* model_type;      // in config.json
  const char* architecture;    // class name in transformers
  const char* prefix;          // prefix that checkpoints of the model without its head may lack
  TransformerConfig defaults;  // the sizes are those of no particular model
  void (*keys)(HfKeys&, TransformerConfig&);
  std::span<const NameRule> names;
  std::span<const NameRule> copies = {};  // further names of tensors that a folder may hold twice
  const char* auto_class = "AutoModelForCausalLM";
};

std::span<const Family* const> families();
// Adds a family to the table, for programs that bring one. Call during static initialization: options list the names.
// The family must live as long as the program.
void add_family(const Family&);
const Family* find_family(std::string_view name);  // nullptr: unknown name
const char* family_choices();                      // "gpt2|llama", for help texts
// LossTerm::key of the losses besides that of tokens: of a model in order, then those of other families, so that
// log.jsonl has the same keys for every model.
std::vector<std::string> loss_keys(const std::vector<LossTerm>& of_model);
// Returns the Hugging Face names of a parameter's blocks, in order; empty if the family has none for it.
std::vector<std::string> hf_names(const Family&, const ParamSpec&);
bool hf_transposed(const Family&, const ParamSpec&);
// Names under which a folder may hold the parameter once more: a tied table's, and those of Family::copies.
std::vector<std::string> hf_copies(const Family&, const ModelSpec&, const std::string& parameter);

}  // namespace gt
