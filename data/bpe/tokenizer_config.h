// tokenizer_config.json beside a tokenizer.json: which of its tokens begin, end and pad a text.
#pragma once
#include <string>

#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer_model.h"

namespace gt {

// The special tokens by `config`, the text of a tokenizer_config.json or empty, and by the template of `t`: bos is what
// it puts before a text, eos what it puts behind, where the config names none. eod is <|endoftext|>, else eos, else
// <|end_of_text|>. Throws kUsage naming `name` for a config that makes transformers' ids others than those of `t`: one
// that adds tokens, or changes how text is cut.
SpecialIds special_ids(const TokenizerJson& t, const std::string& config, const std::string& name);

}  // namespace gt
