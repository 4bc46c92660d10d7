// Mistral's tekken.json: tokens by rank in base64, special tokens and the pattern that splits text. It is converted to
// a tokenizer.json with the same ids, which is what checkpoints keep.
#pragma once
#include <string>
#include <string_view>

#include "data/bpe/tiktoken.h"

namespace gt {

// Converts the contents of a tekken.json as mistral-common reads it: ids 0 to default_num_special_tokens - 1 are the
// special tokens, those that the file does not name are "<SPECIAL_k>"; behind them come the first tokens by rank, until
// default_vocab_size ids are used. `where`: the file's path, for messages. Throws kUsage for a broken file, a token of
// more than 256 bytes, ranks that do not ascend from 0, and first 256 ranks that are not the bytes.
TiktokenFiles convert_tekken(std::string_view text, const std::string& where);

}  // namespace gt
