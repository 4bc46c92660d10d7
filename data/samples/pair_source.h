// Samples of masked language modelling from one token source: pairs of sentences that follow one another in a document,
// or stand in two. A document is cut into windows that fill a sample; a sample takes its window up to a drawn length,
// and half of them continue in another document. Used only by data/samples/dataset.cpp, which blends them.
#pragma once
#include "data/samples/masked_pairs.h"
#include "data/tokens/token_source.h"

namespace gt {

class PairSource final : public TokenSource {
 public:
  // Requires: options.masking. Throws kUsage as TokenSource does, for an order other than epoch and sequential, and
  // where no document has two tokens.
  PairSource(const std::string& path, const DatasetOptions& options);

  int64_t available() const override { return INT64_MAX; }
  void read(int64_t sample, const SampleBuffers& to) const override;  // tokens: PairRow
  void read_ahead(int64_t sample) const override;
  Dataset::Position position_of(int64_t sample) const override;
  uint64_t order_hash() const override;

 private:
  struct Window {
    int64_t sequence, offset, count;
  };
  int64_t usable(int64_t sequence) const;  // tokens of a document, without the one that ends it
  int64_t windows(int64_t sequence) const;
  Window window(int64_t sample) const;
  std::span<const int32_t> read(int64_t sequence, int64_t begin, int64_t count, std::vector<int32_t>& to) const;
  // Up to `count` tokens of another document; count 0: none was found.
  Window elsewhere(int64_t sequence, int64_t count, SampleDraws&) const;

  static constexpr int64_t kStep = 256;  // sequences an entry of sums_
  const MaskingOptions masking_;
  const int64_t window_tokens_;  // tokens of a window
  bool ended_ = false;           // documents end with a token that is not text
  std::vector<int64_t> sums_;    // windows before sequence begin + i * kStep
  uint64_t key_;
};

}  // namespace gt
