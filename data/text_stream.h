// Token ids to text as they come: each piece of text is given out once, and no token is decoded again that lies far
// behind. Characters whose bytes are spread over tokens come out when they are whole.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace gt {

class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Returns the text that became final with this token; all texts and that of finish() joined are the tokenizer's
  // decoding of all ids.
  std::string push(int32_t id);
  // Returns the rest: a character that was left incomplete.
  std::string finish();

 private:
  std::string text_up_to(size_t end);
  const Tokenizer* tokenizer_;
  std::vector<int32_t> ids_;  // from some tokens before the first one whose text is not given out
  size_t given_ = 0;          // of ids_: their text is out
};

}  // namespace gt
