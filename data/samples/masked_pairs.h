// Samples of masked language modelling with sentence pairs (Devlin et al. 2018, arXiv 1810.04805, and its
// create_pretraining_data.py): [CLS] a [SEP] b [SEP], some of whose tokens are hidden. Every draw is a function of
// (seed, ordinal of the sample), so that the same samples come on every layout and after a resume.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/samples/pair_row.h"
#include "kernels/core/rng.h"

namespace gt {

class Tokenizer;

struct SpecialTokens {
  int32_t cls = 1, sep = 2, pad = 0, mask = 3;
};

// Options data.mask_prob and its neighbours, described in fields(), and the values that the run derives.
struct MaskingOptions {
  double mask_prob = 0.15;  // special tokens count as positions; at least one is chosen
  int64_t max_predictions = 80;
  bool whole_words = false;
  double short_prob = 0.1;
  SpecialTokens special;
  int64_t vocab = 0;                 // random tokens are below it
  std::vector<uint8_t> word_starts;  // by token; with whole_words
  // Settings that change samples, for cursors: "pairs, mask_prob 0.15, max_predictions 20".
  std::string text() const;
  template <class V>
  void fields(V& v) {
    v("mask_prob", mask_prob, ">0..1",
      "masked language models: share of positions whose tokens are predicted; of them 80 % become mask_token, 10 % a "
      "random token, 10 % are unchanged");
    v("max_predictions", max_predictions, "1..1048576 tokens",
      "masked language models: maximum number of tokens predicted per sample");
    v("whole_words", whole_words, "", "masked language models: all pieces of a word are predicted, or none");
    v("short_prob", short_prob, "0..1", "masked language models: share of samples of a random shorter length");
  }
};

// Whether each piece begins a word: it starts with SentencePiece's U+2581 or byte-level BPE's U+0120, or is not text
// (special pieces, newline).
std::vector<uint8_t> word_starts(const Tokenizer&);

// Random bits of one sample, from a counter.
class SampleDraws {
 public:
  SampleDraws(uint64_t key, int64_t sample) : key_(key), sample_(static_cast<uint64_t>(sample)) {}
  uint32_t next() {
    if (at_ % 4 == 0) words_ = philox(key_, at_ / 4, sample_);
    return words_[at_++ % 4];
  }
  // Uniform in [0, n), n >= 1. 64 bits of randomness: the bias is below 2^-32 for n up to 2^32.
  int64_t below(int64_t n) {
    const uint64_t high = next(), x = high << 32 | next();
    return static_cast<int64_t>(static_cast<unsigned __int128>(x) * static_cast<uint64_t>(n) >> 64);
  }
  bool with_probability(double p) { return static_cast<double>(next()) < p * 0x1p32; }

 private:
  uint64_t key_, sample_, at_ = 0;
  std::array<uint32_t, 4> words_{};
};

// Tokens that two sentences share in a sample of `seq`. Requires: seq >= 5.
constexpr int64_t max_pair_tokens(int64_t seq) { return seq - 3; }

// Length that both sentences together should have: max_pair_tokens, or with short_prob 2 to that.
int64_t draw_length(const MaskingOptions&, int64_t seq, SampleDraws&);

// Fills the row with a pair and hides tokens of it. Requires: 1 token or more in each sentence, max_pair_tokens in
// both.
void make_pair(const MaskingOptions&, std::span<const int32_t> a, std::span<const int32_t> b, bool unrelated,
               SampleDraws&, const PairRow& to);

}  // namespace gt
