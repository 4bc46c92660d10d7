// Added tokens, matched in text before anything else: leftmost match, longest on ties, as Hugging Face's tokenizers
// match them (AddedVocabulary::find_matches).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// `normalized`: matched in normalized text, after those that are not. `single_word`: not next to letters, digits or
// underscores. `lstrip`, `rstrip`: take the white space before or after it.
struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool special = false, normalized = false, single_word = false, lstrip = false, rstrip = false;
};

// Number of bytes of white space at the beginning or the end of `s`; whether its first or last character belongs to a
// word (letter, mark, digit, connector). Requires: UTF-8.
size_t space_at_start(std::string_view s);
size_t space_at_end(std::string_view s);
bool begins_with_word(std::string_view s);
bool ends_with_word(std::string_view s);

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // Requires: no empty text; the first of several equal is used
  bool any_has(char c) const;                            // whether some token contains this byte
  bool any_strips_before() const;                        // whether some token has lstrip
  bool any_strips() const;                               // whether some token has lstrip or rstrip
  bool empty() const { return tokens_.empty(); }

  // Returns the longest token that is a prefix of `text`, or nullptr. Takes time O(log tokens) and of its length.
  const AddedToken* longest(std::string_view text) const;

  // Calls token(id) for each token in `text` and between(part) for the text in between, in order.
  template <class Between, class Token>
  void split(std::string_view text, const Between& between, const Token& token) const {
    size_t begin = 0;  // start of the text not covered
    for (size_t at = 0; at < text.size();) {
      const AddedToken* found = begins_[static_cast<uint8_t>(text[at])] ? longest(text.substr(at)) : nullptr;
      if (found == nullptr) {
        ++at;
        continue;
      }
      size_t start = at, stop = at + found->text.size();
      at = stop;
      if (found->single_word && (ends_with_word(text.substr(0, start)) || begins_with_word(text.substr(stop))))
        continue;
      if (found->lstrip) start = start > begin ? start - space_at_end(text.substr(begin, start - begin)) : begin;
      if (found->rstrip) stop += space_at_start(text.substr(stop));
      if (begin < start) between(text.substr(begin, start - begin));
      token(found->id);
      begin = stop;
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  std::vector<AddedToken> tokens_;  // sorted by text
  std::vector<int64_t> shorter_;    // of each: index of the longest other token that is a prefix of it; -1: none
  std::array<bool, 256> begins_{};  // first bytes
};

}  // namespace gt
