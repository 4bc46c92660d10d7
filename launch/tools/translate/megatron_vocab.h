// Size of the vocabulary that Megatron-LM takes from its tokenizer flags (core 0.16.1: megatron/training/tokenizer and
// megatron/core/tokenizers), padded as there.
#pragma once
#include <cstdint>
#include <string>

#include "launch/tools/translate/megatron_line.h"

namespace gt {

struct MegatronVocabulary {
  int64_t padded = 0;     // model.vocab; 0: the line sets it itself, or `problem`
  std::string tokenizer;  // data.tokenizer; "": none of the files is one that we read
  std::string how;        // "TOK.model has 4000 pieces, padded to a multiple of 128 x tp 2"
  // The flag at fault, without dashes, what is wrong and what to do; empty: none.
  std::string flag, problem, fix;
};

// Opens the files that the flags name. Requires: line.whole().
MegatronVocabulary megatron_vocabulary(const MegatronLine& line);

}  // namespace gt
