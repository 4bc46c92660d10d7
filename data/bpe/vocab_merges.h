// GPT-2's older folder form, vocab.json and merges.txt: a byte-level BPE with GPT-2's pre-tokenizer. It is converted to
// a tokenizer.json with the same ids, which is what checkpoints keep.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// Returns the tokenizer.json of the contents of vocab.json and merges.txt, read as transformers' GPT2Tokenizer reads
// them: <|endoftext|> is matched in text, and appended to the vocabulary if missing. `where`: path of
// vocab.json, for messages. Throws kUsage for broken files; their pieces and merges are checked by read_tokenizer_json.
std::string tokenizer_json_of(std::string_view vocab, std::string_view merges, const std::string& where);

// Returns the tokenizer_config.json for it: `config` (tokenizer_config.json) and `names` (special_tokens_map.json),
// each empty if the folder holds none, with GPT2Tokenizer's defaults. Throws kUsage naming `where` if the config names
// another class, which would tokenize differently.
std::string gpt2_tokenizer_config(const std::string& config, const std::string& names, const std::string& where);

}  // namespace gt
