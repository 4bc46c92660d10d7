// Unigram segmentation: the piece sequence with the largest total score. Scores are rounded to multiples of 2^-12 and
// added in f64, so sums are exact. The result depends neither on earlier splits of the text nor on the implementation.
// The SentencePiece library adds floats: among segmentations of equal score, rounding decides (measured: 5 % of lines
// full of runs such as "=====", none of prose).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/time_budget.h"

namespace gt {

struct UnigramPiece {
  std::string text;  // as it occurs in text, with plain blanks
  double score = 0;
  int32_t id = 0;
};

// Rounds a score as segmentation uses it.
double unigram_score(double score);

class Unigram {
 public:
  // `bytes`: ids of the byte fallback. `name`: for messages. Requires: at least one piece.
  Unigram(std::vector<UnigramPiece> pieces, const std::array<int32_t, 256>& bytes,
          const std::string& name = "the model");

  // Appends the ids of `text`, which must be valid UTF-8. Throws kUsage when all texts take more than the time limit. A
  // character without a better path becomes its bytes; of equal sums the first found, with the longer last piece, wins.
  // Thread-safe.
  void encode(std::string_view text, std::vector<int32_t>* out) const;

 private:
  struct Node {
    double score = 0;
    int64_t begin = -1;  // start of the piece that ends here; -1: none yet
    int32_t id = -1;     // -1: a character in bytes
  };
  void extend(std::string_view text, size_t begin, std::vector<Node>* best) const;

  std::vector<UnigramPiece> pieces_;   // sorted by text
  std::array<uint32_t, 257> first_{};  // pieces_ that begin with byte b: [first_[b], first_[b + 1])
  std::array<int32_t, 256> bytes_;
  double unknown_;  // score of a character in bytes
  mutable TimeBudget budget_;
};

}  // namespace gt
