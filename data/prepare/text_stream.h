// Incremental decoding of token ids: each part of the text is returned once, and only recent tokens are decoded again.
// Characters whose bytes span several tokens are returned when complete.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace gt {

class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Returns the text that became final with this token. The concatenation of all results and finish() is the
  // tokenizer's decoding of all ids.
  std::string push(int32_t id);
  // Returns the remaining text: a character that was left incomplete.
  std::string finish();

 private:
  std::string text_up_to(size_t end);
  const Tokenizer* tokenizer_;
  std::vector<int32_t> ids_;  // from some tokens before the first one whose text is pending
  size_t given_ = 0;          // number of ids_ whose text was returned
};

}  // namespace gt
