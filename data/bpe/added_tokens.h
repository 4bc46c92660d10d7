// Added tokens, matched in text before pre-tokenization: leftmost match, longest on ties.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gt {

class AddedTokens {
 public:
  void add(const std::string& text, int32_t id);  // Requires: not empty; the first of several duplicates is used
  bool any_has(char c) const;                     // whether some token contains this byte

  // Calls token(id) for each token in `text` and between(part) for the text in between, in order.
  template <class Between, class Token>
  void split(std::string_view text, const Between& between, const Token& token) const {
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const auto* found = lengths_[static_cast<uint8_t>(text[at])].empty() ? nullptr : longest(text.substr(at));
      if (found == nullptr) {
        ++at;
        continue;
      }
      if (begin < at) between(text.substr(begin, at - begin));
      token(found->second);
      begin = at += found->first.size();
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  using Ids = std::unordered_map<std::string, int32_t, Hash, std::equal_to<>>;
  const Ids::value_type* longest(std::string_view text) const;  // longest token that is a prefix of `text`

  Ids ids_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte, longest first
};

}  // namespace gt
