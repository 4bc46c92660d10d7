#include "data/samples/masked_pairs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/tokenizer/tokenizer.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

// Positions of the words of both sentences, in order: [begin, end) each.
using Words = std::vector<std::pair<int64_t, int64_t>>;

void add_words(const MaskingOptions& o, std::span<const int32_t> row, int64_t begin, int64_t end, Words& to) {
  for (int64_t i = begin; i < end; ++i) {
    const auto token = static_cast<size_t>(row[static_cast<size_t>(i)]);
    const bool goes_on = o.whole_words && i > begin && token < o.word_starts.size() && o.word_starts[token] == 0;
    if (goes_on)
      to.back().second = i + 1;
    else
      to.emplace_back(i, i + 1);
  }
}

// Returns the input for a masked position: the mask token (80 %), the token itself (10 %) or a random one (10 %).
int32_t replacement_of(int32_t token, const MaskingOptions& o, SampleDraws& draws) {
  if (draws.with_probability(0.8)) return o.special.mask;
  if (draws.with_probability(0.5)) return token;
  return static_cast<int32_t>(draws.below(o.vocab));
}

// Takes words in random order until as many tokens are chosen as there should be; a word that would be too many is
// passed over.
void hide(const MaskingOptions& o, Words words, SampleDraws& draws, const PairRow& row) {
  const auto target = static_cast<int64_t>(std::llround(static_cast<double>(row.length()) * o.mask_prob));
  const int64_t most = std::min(o.max_predictions, std::max<int64_t>(1, target));
  int64_t chosen = 0;
  for (size_t left = words.size(); left > 0 && chosen < most; --left) {
    const auto pick = static_cast<size_t>(draws.below(static_cast<int64_t>(left)));
    std::swap(words[pick], words[left - 1]);
    const auto [begin, end] = words[left - 1];
    if (chosen + end - begin > most) continue;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      row.targets()[i] = row.tokens()[i];
      row.tokens()[i] = replacement_of(row.tokens()[i], o, draws);
    }
    chosen += end - begin;
  }
}

}  // namespace

std::string MaskingOptions::text() const {
  return cat("pairs, mask_prob ", mask_prob, ", max_predictions ", max_predictions, whole_words ? ", whole words" : "",
             ", short_prob ", short_prob, ", special ", special.cls, ' ', special.sep, ' ', special.pad, ' ',
             special.mask);
}

std::vector<uint8_t> word_starts(const Tokenizer& t) {
  std::vector<uint8_t> out(static_cast<size_t>(t.vocab()));
  for (int32_t id = 0; id < t.vocab(); ++id) {
    const std::string& piece = t.piece(id);
    const bool text = t.kind(id) == PieceKind::kNormal || t.kind(id) == PieceKind::kByte;
    out[static_cast<size_t>(id)] = !text || piece.starts_with("\xE2\x96\x81") || piece.starts_with("\xC4\xA0");
  }
  return out;
}

int64_t draw_length(const MaskingOptions& o, int64_t seq, SampleDraws& draws) {
  const int64_t longest = max_pair_tokens(seq);
  return draws.with_probability(o.short_prob) ? 2 + draws.below(longest - 1) : longest;
}

void make_pair(const MaskingOptions& o, std::span<const int32_t> a, std::span<const int32_t> b, bool unrelated,
               SampleDraws& draws, const PairRow& to) {
  const size_t length = a.size() + b.size() + 3;
  GT_CHECK(!a.empty() && !b.empty() && static_cast<int64_t>(length) <= to.seq, "sentences of ", a.size(), " and ",
           b.size(), " tokens in a sample of ", to.seq);
  const auto tokens = to.tokens(), types = to.types();
  std::fill(tokens.begin(), tokens.end(), o.special.pad);
  std::fill(to.targets().begin(), to.targets().end(), -1);
  std::fill(types.begin(), types.end(), 0);
  tokens[0] = o.special.cls;
  std::copy(a.begin(), a.end(), tokens.begin() + 1);
  tokens[a.size() + 1] = tokens[length - 1] = o.special.sep;
  std::copy(b.begin(), b.end(), tokens.begin() + static_cast<ptrdiff_t>(a.size()) + 2);
  std::fill(types.begin() + static_cast<ptrdiff_t>(a.size()) + 2, types.begin() + static_cast<ptrdiff_t>(length), 1);
  to.length() = static_cast<int32_t>(length);
  to.label() = unrelated ? 1 : 0;
  Words words;
  const auto end_of_a = static_cast<int64_t>(a.size()) + 1;
  add_words(o, tokens, 1, end_of_a, words);
  add_words(o, tokens, end_of_a + 1, static_cast<int64_t>(length) - 1, words);
  hide(o, std::move(words), draws, to);
}

}  // namespace gt
