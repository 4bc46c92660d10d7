// A contiguous token range of another token file, as a token store of its own. Used to split a single document.
#pragma once
#include <memory>
#include <vector>

#include "data/tokens/token_store.h"

namespace gt {

// Tokens [begin, end) of the concatenation of `whole`; boundary sequences are truncated. Requires: 0 <= begin < end <=
// tokens.
class TokenSlice final : public TokenStore {
 public:
  TokenSlice(std::unique_ptr<TokenStore> whole, int64_t begin, int64_t end);

  std::string format() const override { return whole_->format(); }
  Lengths lengths() const override { return {lengths_.data(), 0, static_cast<int64_t>(lengths_.size())}; }
  int64_t document_begin(int64_t entry) const override { return entry; }  // each sequence is a document
  std::string locate(int64_t sequence, int64_t index) const override;
  uint64_t read(int64_t sequence, int64_t begin, std::span<int32_t> out) const override;
  void will_need(int64_t sequence, int64_t begin, int64_t count) const override;
  bool unchanged() const override { return whole_->unchanged(); }
  bool masked() const override { return whole_->masked(); }
  void read_mask(int64_t sequence, int64_t begin, std::span<uint8_t> out) const override;

 private:
  int64_t offset(int64_t sequence) const { return sequence == 0 ? skipped_ : 0; }
  std::unique_ptr<TokenStore> whole_;
  std::vector<int32_t> lengths_;
  int64_t first_ = 0;    // first sequence of whole_
  int64_t skipped_ = 0;  // its tokens before the range
};

}  // namespace gt
