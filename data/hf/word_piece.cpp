// WordPiece (BERT): the longest piece that begins the word, then the longest that continues it, and so on; a word that
// is not covered is one unknown token.
#include <algorithm>
#include <unordered_map>

#include "data/hf/word_model.h"
#include "data/tokenizer/time_budget.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr size_t kBytesPerCheck = 8 << 20;  // of text hashed between two readings of the clock

bool begins_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }

class WordPiece final : public WordModel {
 public:
  WordPiece(const TokenizerJson& t, const std::string& name)
      : pieces_(t.pieces),
        prefix_(t.word_piece.prefix),
        most_characters_(static_cast<size_t>(t.word_piece.most_characters)),
        unk_(t.unk),
        budget_(name + ": the pieces of this vocabulary are too slow on this text: it is broken or hostile") {
    for (const int32_t id : t.model_ids) {
      const std::string_view piece = pieces_[static_cast<size_t>(id)];
      whole_.emplace(piece, id);
      longest_ = std::max(longest_, piece.size());
      if (piece.starts_with(prefix_)) continued_.emplace(piece.substr(prefix_.size()), id);
    }
  }

  void encode(std::string_view word, WordCache* cache, std::vector<int32_t>* out) const override {
    append_ids(cache, word, out, [this](std::string_view w, std::vector<int32_t>* ids) { encode_word(w, ids); });
  }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>* out) const {
    const size_t before = out->size();
    const auto characters = static_cast<size_t>(std::count_if(word.begin(), word.end(), begins_character));
    if (characters > most_characters_ || !cover(word, out)) {
      out->resize(before);
      out->push_back(unk_);
    }
  }

  bool cover(std::string_view word, std::vector<int32_t>* out) const {
    size_t hashed = kBytesPerCheck, checked = 0;  // bytes, since the clock was read; position where it was
    TimeBudget::Meter meter(budget_);
    for (size_t at = 0; at < word.size();) {
      const auto& pieces = at == 0 ? whole_ : continued_;
      size_t n = std::min(longest_, word.size() - at);
      while (n > 0 && at + n < word.size() && !begins_character(word[at + n])) --n;
      auto found = pieces.end();
      for (; n > 0; --n) {
        if (at + n < word.size() && !begins_character(word[at + n])) continue;
        found = pieces.find(word.substr(at, n));
        if (found != pieces.end()) break;
        if ((hashed += n) < kBytesPerCheck) continue;
        meter.check(at - checked);
        checked = at;
        hashed = 0;
      }
      if (n == 0) return false;
      out->push_back(found->second);
      at += n;
    }
    return true;
  }

  const std::vector<std::string> pieces_;
  const std::string prefix_;
  const size_t most_characters_;
  const int32_t unk_;
  size_t longest_ = 0;                                               // bytes
  std::unordered_map<std::string_view, int32_t> whole_, continued_;  // by piece, without the prefix; views of pieces_
  mutable TimeBudget budget_;
};

}  // namespace

std::unique_ptr<const WordModel> make_word_piece(const TokenizerJson& t, const std::string& name) {
  return std::make_unique<WordPiece>(t, name);
}

}  // namespace gt
