// tokenizer_config.json beside a tokenizer.json: the tokens that begin, end and pad a text.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

// Returns the JSON object `text`. Throws kUsage naming `where`.
nlohmann::json parse_tokenizer_config(const std::string& text, const std::string& where);

// Returns `config`, the contents of tokenizer_config.json or empty, completed as transformers completes it when it has
// no added_tokens_decoder: with special_tokens_map.json (`names`) and added_tokens.json (`added`), each empty if there
// is none. Empty if all are. Throws kUsage naming `where`.
std::string merged_tokenizer_config(const std::string& config, const std::string& names, const std::string& added,
                                    const std::string& where);

// Returns the special tokens from `config`, the contents of tokenizer_config.json or empty, and the template of `t`. If
// the config names none, bos is the token that the template inserts before a text, eos the one after it. eod is
// <|endoftext|>, else eos, else <|end_of_text|>. Throws kUsage naming `name` if the config would give transformers
// other ids than `t`, by adding tokens or changing the splitting of text.
//
// `before` and `after` are what AutoTokenizer writes around a text. Classes of Llama, Gemma, Cohere and GPT-NeoX
// replace the template by their add_bos_token and add_eos_token; for other classes, and where transformers 5 saved no
// such flag, the template holds.
SpecialIds special_ids(const TokenizerJson& t, const std::string& config, const std::string& name);

// Requires that `config` sets nothing that makes transformers change the normalizer or the pre-tokenizer of `t`:
// add_prefix_space, where `prefix_space` is that of its ByteLevel steps (-1: it has none), and do_lower_case,
// strip_accents and tokenize_chinese_chars, where it has a BertNormalizer. Throws kUsage.
void require_same_pipeline(const TokenizerJson& t, int prefix_space, const std::string& config,
                           const std::string& name);

// Class of the tokenizer without "Fast", "" for none; names of its special tokens if the config names none.
std::string tokenizer_class(const nlohmann::json& config);
struct ClassTokens {
  std::string_view name;  // of the class
  bool adds_bos;          // default of add_bos_token
  const char *bos, *eos, *unk, *pad;
};
// nullptr: the class is not one of those that replace the template.
const ClassTokens* class_tokens(std::string_view tokenizer_class);

}  // namespace gt
