// Converts a SentencePiece tokenizer to a tokenizer.json for Hugging Face's tokenizers, with the same ids on every
// text.
#pragma once
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace gt {

// Returns why no tokenizer.json can produce this tokenizer's ids on every text; empty if one can. Requires for this and
// the next: a SentencePiece model, Tokenizer::sentence_piece().
std::string hf_tokenizer_obstacle(const Tokenizer&);

// Returns the contents of tokenizer.json. Requires: no obstacle. Pieces are written with blanks instead of U+2581, so
// that U+2581 itself falls back to bytes. Control pieces get names that no text can match. Needs tokenizers 0.20
// (transformers 4.45) or later: older ones reject merges of pieces with blanks.
std::string hf_tokenizer_json(const Tokenizer&);

// Return tokenizer_config.json and special_tokens_map.json. For SentencePiece models <|endoftext|>, if present, begins,
// ends and pads texts; for a tokenizer.json its own added tokens do.
// `max_length`: context length of the model.
std::string hf_tokenizer_config_json(const Tokenizer&, int64_t max_length);
std::string hf_special_tokens_json(const Tokenizer&);

}  // namespace gt
