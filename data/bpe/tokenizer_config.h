// tokenizer_config.json beside a tokenizer.json: the tokens that begin, end and pad a text.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

// Returns the JSON object `text`. Throws kUsage naming `where`.
nlohmann::json parse_tokenizer_config(const std::string& text, const std::string& where);

// Returns the special tokens from `config`, the contents of tokenizer_config.json or empty, and the template of `t`. If
// the config names none, bos is the token that the template inserts before a text, eos the one after it. eod is
// <|endoftext|>, else eos, else <|end_of_text|>. Throws kUsage naming `name` if the config would give transformers
// other ids than `t`, by adding tokens or changing the splitting of text.
SpecialIds special_ids(const TokenizerJson& t, const std::string& config, const std::string& name);

}  // namespace gt
