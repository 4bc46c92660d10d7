#include "data/text_stream.h"

#include <algorithm>
#include <span>

namespace gt {
namespace {

constexpr size_t kContext = 8;  // tokens kept before the open ones: whether a blank is written depends on them

// The byte of a piece "<0xE2>".
int byte_of(const std::string& piece) { return std::stoi(piece.substr(3, 2), nullptr, 16); }

// Bytes of the character that begins with this one.
int length_of(int lead) { return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1; }

// Tokens at the end that begin a character and do not end it.
size_t incomplete(const Tokenizer& t, std::span<const int32_t> ids) {
  for (size_t n = 1; n <= std::min<size_t>(3, ids.size()); ++n) {
    const int32_t id = ids[ids.size() - n];
    if (!t.is_byte(id)) return 0;
    const int byte = byte_of(t.piece(id));
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return static_cast<size_t>(length_of(byte)) > n ? n : 0;
  }
  return 0;
}

}  // namespace

std::string TextStream::text_up_to(size_t end) {
  if (end <= given_) return "";
  const std::span<const int32_t> all(ids_);
  const std::string before = tokenizer_->decode(all.first(given_)), now = tokenizer_->decode(all.first(end));
  given_ = end;
  if (given_ > 2 * kContext) {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(given_ - kContext));
    given_ = kContext;
  }
  return now.substr(std::min(before.size(), now.size()));
}

std::string TextStream::push(int32_t id) {
  ids_.push_back(id);
  return text_up_to(ids_.size() - incomplete(*tokenizer_, ids_));
}

std::string TextStream::finish() { return text_up_to(ids_.size()); }

}  // namespace gt
