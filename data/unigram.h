// Unigram segmentation: the sequence of pieces with the largest sum of scores. Scores are rounded to multiples of 2^-12
// and added in double precision, so sums are exact and the result depends neither on where text was cut before nor on
// who computes it. The SentencePiece library adds floats: of two segmentations with one score it returns the one that
// rounding favours (measured: 5 % of lines full of runs such as "=====", none of prose).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct UnigramPiece {
  std::string text;  // as it stands in text: a blank is a blank
  double score = 0;
  int32_t id = 0;
};

// A score as segmentation uses it.
double unigram_score(double score);

class Unigram {
 public:
  // `bytes`: ids of the byte fallback. Requires: at least one piece.
  Unigram(std::vector<UnigramPiece> pieces, const std::array<int32_t, 256>& bytes);

  // Appends the ids of `text`, valid UTF-8. A character that begins no better path becomes its bytes; of equal sums the
  // one found first, that is with the longer last piece, is kept. Thread-safe.
  void encode(std::string_view text, std::vector<int32_t>* out) const;

 private:
  struct Node {
    double score = 0;
    int64_t begin = -1;  // of the piece that ends here; -1: nothing does yet
    int32_t id = -1;     // -1: a character in bytes
  };
  void extend(std::string_view text, size_t begin, std::vector<Node>* best) const;

  std::vector<UnigramPiece> pieces_;   // sorted by text
  std::array<uint32_t, 257> first_{};  // pieces_ that begin with byte b: [first_[b], first_[b + 1])
  std::array<int32_t, 256> bytes_;
  double unknown_;  // score of a character in bytes
};

}  // namespace gt
