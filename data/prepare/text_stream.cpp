#include "data/prepare/text_stream.h"

#include <algorithm>
#include <span>

namespace gt {
namespace {

constexpr size_t kContext = 8;  // tokens kept before the pending ones: they determine whether a blank is written

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
  return text_up_to(ids_.size() - tokenizer_->open_tokens(ids_));
}

std::string TextStream::finish() { return text_up_to(ids_.size()); }

}  // namespace gt
