#include "data/bpe/added_tokens.h"

#include <utf8proc.h>

#include "data/tokenizer/utf8.h"

namespace gt {
namespace {

// Rust's \w: Alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(utf8proc_int32_t c) {
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D)
    return true;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

size_t first_size(std::string_view s) {
  size_t n = 1;
  while (n < s.size() && (static_cast<uint8_t>(s[n]) & 0xC0) == 0x80) ++n;
  return n;
}

size_t last_size(std::string_view s) {
  size_t n = 1;
  while (n < s.size() && (static_cast<uint8_t>(s[s.size() - n]) & 0xC0) == 0x80) ++n;
  return n;
}

bool is_word(std::string_view character) {
  utf8proc_int32_t c = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()),
                   static_cast<utf8proc_ssize_t>(character.size()), &c);
  return c >= 0 && is_word(c);
}

}  // namespace

size_t space_at_start(std::string_view s) {
  size_t n = 0;
  while (n < s.size() && begins_with_space(s.substr(n))) n += first_size(s.substr(n));
  return n;
}

size_t space_at_end(std::string_view s) {
  size_t n = 0;
  while (n < s.size() && ends_with_space(s.substr(0, s.size() - n))) n += last_size(s.substr(0, s.size() - n));
  return n;
}

bool begins_with_word(std::string_view s) { return !s.empty() && is_word(s.substr(0, first_size(s))); }
bool ends_with_word(std::string_view s) { return !s.empty() && is_word(s.substr(s.size() - last_size(s))); }

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  const auto end = std::unique(tokens_.begin(), tokens_.end(),
                               [](const AddedToken& a, const AddedToken& b) { return a.text == b.text; });
  tokens_.erase(end, tokens_.end());
  for (size_t k = 0; k < tokens_.size(); ++k) {
    begins_[static_cast<uint8_t>(tokens_[k].text[0])] = true;
    int64_t prefix = static_cast<int64_t>(k) - 1;
    while (prefix >= 0 && !tokens_[k].text.starts_with(tokens_[static_cast<size_t>(prefix)].text))
      prefix = shorter_[static_cast<size_t>(prefix)];
    shorter_.push_back(prefix);
  }
}

bool AddedTokens::any_has(char c) const {
  return std::any_of(tokens_.begin(), tokens_.end(),
                     [c](const AddedToken& t) { return t.text.find(c) != std::string::npos; });
}
bool AddedTokens::any_strips_before() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& t) { return t.lstrip; });
}
bool AddedTokens::any_strips() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& t) { return t.lstrip || t.rstrip; });
}

// The last token that is not above `text` begins with every token that is a prefix of `text`.
const AddedToken* AddedTokens::longest(std::string_view text) const {
  const auto after = std::upper_bound(tokens_.begin(), tokens_.end(), text,
                                      [](std::string_view t, const AddedToken& a) { return t < a.text; });
  auto at = after - tokens_.begin() - 1;
  if (at < 0) return nullptr;
  const std::string& last = tokens_[static_cast<size_t>(at)].text;
  const size_t most = std::min(last.size(), text.size());
  const auto common = static_cast<size_t>(
      std::mismatch(last.begin(), last.begin() + static_cast<ptrdiff_t>(most), text.begin()).first - last.begin());
  while (at >= 0 && tokens_[static_cast<size_t>(at)].text.size() > common) at = shorter_[static_cast<size_t>(at)];
  return at < 0 ? nullptr : &tokens_[static_cast<size_t>(at)];
}

}  // namespace gt
