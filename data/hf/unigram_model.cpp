// Unigram of a tokenizer.json: the pieces with the largest sum of scores, added in f64 from left to right. Neighbouring
// unknown characters are one text: a piece if it is one, else its bytes where all of them have pieces, else one unknown
// token.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "data/hf/characters.h"
#include "data/hf/word_model.h"
#include "data/tokenizer/sorted_prefixes.h"
#include "data/tokenizer/time_budget.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr double kUnknownPenalty = 10;  // below the least likely piece
constexpr size_t kMeteredBytes = 4096;  // between two readings of the clock

struct ScoredPiece {
  std::string text;
  double score;
  int32_t id;
};

class UnigramModel final : public WordModel {
 public:
  UnigramModel(const TokenizerJson& t, const std::string& name)
      : unk_(t.unk),
        budget_(name + ": the pieces of this model are too slow on this text: it is broken or hostile; use another") {
    double least = t.scores.front();
    for (const int32_t id : t.model_ids) {
      const double score = t.scores[static_cast<size_t>(id)];
      pieces_.push_back({t.pieces[static_cast<size_t>(id)], score, id});
      least = std::min(least, score);
    }
    unknown_ = least - kUnknownPenalty;
    std::sort(pieces_.begin(), pieces_.end(), [](const auto& a, const auto& b) { return a.text < b.text; });
    for (const ScoredPiece& p : pieces_) {
      ++first_[static_cast<uint8_t>(p.text[0]) + size_t{1}];
      ids_.emplace(p.text, p.id);
    }
    for (size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
    for (size_t b = 0; b < 256; ++b) bytes_[b] = t.unigram_bytes ? id_of(byte_piece(static_cast<uint8_t>(b))) : -1;
  }

  void encode(std::string_view word, WordCache* cache, std::vector<int32_t>* out) const override {
    append_ids(cache, word, out, [this](std::string_view w, std::vector<int32_t>* ids) { encode_word(w, ids); });
  }

 private:
  struct Node {
    double score = 0;
    int64_t begin = -1;  // of the piece that ends here; -1: none yet
    int32_t id = -1;
  };

  int32_t id_of(std::string_view piece) const {
    const auto at = ids_.find(piece);
    return at == ids_.end() ? -1 : at->second;
  }

  // Extends paths by every piece that begins at `begin`; returns the size of the character there.
  size_t extend(std::string_view word, size_t begin, std::vector<Node>* best) const {
    const double here = (*best)[begin].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      Node& n = (*best)[end];
      if (n.begin < 0 || score > n.score) n = {score, static_cast<int64_t>(begin), id};
    };
    char32_t c = 0;
    const size_t character = first_character(word.substr(begin), &c);
    bool whole_character = false;
    const auto lead = static_cast<uint8_t>(word[begin]);
    for_each_prefix(pieces_.begin() + first_[lead], pieces_.begin() + first_[lead + size_t{1}], word.substr(begin),
                    [&](const ScoredPiece& p, size_t size) {
                      offer(begin + size, p.score + here, p.id);
                      whole_character |= size == character;
                    });
    if (!whole_character) offer(begin + character, unknown_ + here, unk_);
    return character;
  }

  void encode_word(std::string_view word, std::vector<int32_t>* out) const {
    std::vector<Node> best(word.size() + 1);
    TimeBudget::Meter meter(budget_);
    for (size_t at = 0, checked = 0; at < word.size(); at += extend(word, at, &best)) {
      if (at < checked + kMeteredBytes && !(at == 0 && word.size() > kMeteredBytes)) continue;
      meter.check(at - checked);
      checked = at;
    }
    std::vector<std::pair<size_t, int32_t>> path;  // begin and id, last piece first
    for (size_t end = word.size(); end > 0; end = path.back().first)
      path.emplace_back(static_cast<size_t>(best[end].begin), best[end].id);
    for (size_t k = path.size(); k-- > 0;) {
      if (path[k].second != unk_) {
        out->push_back(path[k].second);
        continue;
      }
      const size_t begin = path[k].first;
      while (k > 0 && path[k - 1].second == unk_) --k;
      add_unknown(word.substr(begin, (k > 0 ? path[k - 1].first : word.size()) - begin), out);
    }
  }

  void add_unknown(std::string_view text, std::vector<int32_t>* out) const {
    if (const int32_t id = id_of(text); id >= 0) return out->push_back(id);
    const auto has_piece = [this](char b) { return bytes_[static_cast<uint8_t>(b)] >= 0; };
    if (!std::all_of(text.begin(), text.end(), has_piece)) return out->push_back(unk_);
    for (const char b : text) out->push_back(bytes_[static_cast<uint8_t>(b)]);
  }

  std::vector<ScoredPiece> pieces_;                    // sorted by text
  std::unordered_map<std::string_view, int32_t> ids_;  // views of pieces_
  std::array<uint32_t, 257> first_{};                  // pieces_ that begin with byte b: [first_[b], first_[b + 1])
  std::array<int32_t, 256> bytes_{};                   // -1: none
  const int32_t unk_;
  double unknown_ = 0;  // score of an unknown character
  mutable TimeBudget budget_;
};

}  // namespace

std::unique_ptr<const WordModel> make_unigram_model(const TokenizerJson& t, const std::string& name) {
  return std::make_unique<UnigramModel>(t, name);
}

}  // namespace gt
