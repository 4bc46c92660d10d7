#include "data/bpe/added_tokens.h"

#include <algorithm>
#include <functional>

namespace gt {

void AddedTokens::add(const std::string& text, int32_t id) {
  if (!ids_.emplace(text, id).second) return;
  auto& lengths = lengths_[static_cast<uint8_t>(text[0])];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (at == lengths.end() || *at != text.size()) lengths.insert(at, text.size());
}

bool AddedTokens::any_has(char c) const {
  return std::any_of(ids_.begin(), ids_.end(), [c](const auto& t) { return t.first.find(c) != std::string::npos; });
}

const AddedTokens::Ids::value_type* AddedTokens::longest(std::string_view text) const {
  for (const size_t n : lengths_[static_cast<uint8_t>(text[0])]) {
    if (n > text.size()) continue;
    const auto at = ids_.find(text.substr(0, n));
    if (at != ids_.end()) return &*at;
  }
  return nullptr;
}

}  // namespace gt
