// A SentencePiece tokenizer as the tokenizer.json that Hugging Face's tokenizers read, with the same ids on every text.
#pragma once
#include <string>

#include "data/tokenizer.h"

namespace gt {

// Why no tokenizer.json can give this tokenizer's ids on every text; empty when one can. Requires of this and the next:
// a SentencePiece model, Tokenizer::sentence_piece().
std::string hf_tokenizer_obstacle(const Tokenizer&);

// The file's text. Requires: no obstacle. Pieces are written with blanks instead of U+2581, so that U+2581 itself falls
// back to bytes; control pieces get names that no text can match. Needs tokenizers 0.20
// (transformers 4.45) or later: older ones know no merges of pieces with blanks.
std::string hf_tokenizer_json(const Tokenizer&);

// tokenizer_config.json and special_tokens_map.json. Of SentencePiece models <|endoftext|>, where there is one, begins,
// ends and pads; of a tokenizer.json its own added tokens do.
// `max_length`: of the model's context.
std::string hf_tokenizer_config_json(const Tokenizer&, int64_t max_length);
std::string hf_special_tokens_json(const Tokenizer&);

}  // namespace gt
