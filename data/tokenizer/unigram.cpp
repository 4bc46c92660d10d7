#include "data/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>

#include "data/tokenizer/sorted_prefixes.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr double kUnknownPenalty = 10;  // as in SentencePiece: below the least likely piece
uint8_t byte_at(std::string_view s, size_t i) { return static_cast<uint8_t>(s[i]); }

size_t character_bytes(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

}  // namespace

double unigram_score(double score) { return std::round(score * 4096) / 4096; }

Unigram::Unigram(std::vector<UnigramPiece> pieces, const std::array<int32_t, 256>& bytes, const std::string& name)
    : pieces_(std::move(pieces)),
      bytes_(bytes),
      budget_(name + ": the pieces of this model are too slow on this text: it is broken or hostile; use another one") {
  GT_CHECK(!pieces_.empty());
  double least = INFINITY;
  for (UnigramPiece& p : pieces_) least = std::min(least, p.score = unigram_score(p.score));
  unknown_ = least - kUnknownPenalty;
  std::sort(pieces_.begin(), pieces_.end(), [](const auto& a, const auto& b) { return a.text < b.text; });
  for (const UnigramPiece& p : pieces_) ++first_[byte_at(p.text, 0) + size_t{1}];
  for (size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
}

// Extends paths by every piece that begins at `begin`, shorter ones first.
void Unigram::extend(std::string_view text, size_t begin, std::vector<Node>* best) const {
  const double here = (*best)[begin].score;
  const auto offer = [&](size_t end, double score, int32_t id) {
    Node& n = (*best)[end];
    if (n.begin < 0 || here + score > n.score) n = {here + score, static_cast<int64_t>(begin), id};
  };
  const size_t character = std::min(begin + character_bytes(byte_at(text, begin)), text.size());
  bool whole_character = false;
  const uint8_t lead = byte_at(text, begin);
  for_each_prefix(pieces_.begin() + first_[lead], pieces_.begin() + first_[lead + 1], text.substr(begin),
                  [&](const UnigramPiece& p, size_t size) {
                    offer(begin + size, p.score, p.id);
                    whole_character |= begin + size == character;
                  });
  if (!whole_character) offer(character, unknown_, -1);
}

void Unigram::encode(std::string_view text, std::vector<int32_t>* out) const {
  if (text.empty()) return;
  std::vector<Node> best(text.size() + 1);
  constexpr size_t kBytesPerCheck = 4096;
  TimeBudget::Meter meter(budget_);
  for (size_t at = 0, checked = 0; at < text.size(); at += character_bytes(byte_at(text, at))) {
    if (at >= checked + kBytesPerCheck || (at == 0 && text.size() > kBytesPerCheck)) {
      meter.check(at - checked);
      checked = at;
    }
    extend(text, at, &best);
  }
  const auto first = static_cast<ptrdiff_t>(out->size());
  for (size_t end = text.size(); end > 0;) {
    const Node& n = best[end];
    const auto begin = static_cast<size_t>(n.begin);
    if (n.id >= 0) out->push_back(n.id);
    for (size_t i = end; n.id < 0 && i > begin; --i) out->push_back(bytes_[byte_at(text, i - 1)]);
    end = begin;
  }
  std::reverse(out->begin() + first, out->end());
}

}  // namespace gt
