// BPE over characters. A character without a piece becomes its bytes where all of them have pieces ("<0x41>"), else the
// unknown token, else nothing.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "data/bpe/bpe_merges.h"
#include "data/hf/characters.h"
#include "data/hf/word_model.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";

// Size of the part of `text` up to the next U+2581 that follows another character.
size_t part_size(std::string_view text) {
  size_t at = 0;
  while (text.substr(at).starts_with(kBlank)) at += kBlank.size();
  return std::min(text.find(kBlank, std::max<size_t>(at, 1)), text.size());
}

class CharacterBpe final : public WordModel {
 public:
  explicit CharacterBpe(const TokenizerJson& t)
      : pieces_(t.pieces), merges_(t.merges), settings_(t.bpe), unk_(t.unk), whole_(t.ignore_merges) {
    cuts_ = !whole_ && settings_.prefix.empty() && settings_.suffix.empty();
    for (const int32_t id : t.model_ids) {
      const std::string& piece = pieces_[static_cast<size_t>(id)];
      ids_.emplace(piece, id);
      std::string_view rest = piece;
      while (rest.starts_with(kBlank)) rest.remove_prefix(kBlank.size());
      cuts_ = cuts_ && rest.find(kBlank) == std::string_view::npos;
    }
    cuts_ = cuts_ && ids_.contains(kBlank);
    bytes_.fill(-1);
    if (settings_.byte_fallback)
      for (size_t b = 0; b < bytes_.size(); ++b) bytes_[b] = id_of(byte_piece(static_cast<uint8_t>(b)));
  }

  void encode(std::string_view word, WordCache* cache, std::vector<int32_t>* out) const override {
    while (!word.empty()) {
      const size_t n = cuts_ ? part_size(word) : word.size();
      if (cache != nullptr)
        cache->append(word.substr(0, n), out,
                      [this](std::string_view part, std::vector<int32_t>* ids) { encode_part(part, ids); });
      else
        encode_part(word.substr(0, n), out);
      word.remove_prefix(n);
    }
  }

 private:
  int32_t id_of(std::string_view piece) const {
    const auto at = ids_.find(piece);
    return at == ids_.end() ? -1 : at->second;
  }

  void encode_part(std::string_view word, std::vector<int32_t>* out) const {
    if (whole_)
      if (const int32_t id = id_of(word); id >= 0) return out->push_back(id);
    std::vector<int32_t> symbols;
    bool unknown = false;  // an unknown token is due
    for (size_t at = 0; at < word.size();) {
      char32_t c = 0;
      const size_t n = first_character(word.substr(at), &c);
      add_character(word.substr(at, n), at == 0, at + n == word.size(), &unknown, &symbols);
      at += n;
    }
    if (unknown) symbols.push_back(unk_);
    merges_.apply(&symbols, out);
  }

  // In Hugging Face's library an unknown token stands behind bytes that follow it.
  void add_character(std::string_view c, bool first, bool last, bool* unknown, std::vector<int32_t>* out) const {
    std::string spelled;
    if ((!first && !settings_.prefix.empty()) || (last && !settings_.suffix.empty())) {
      spelled = (first ? "" : settings_.prefix) + std::string(c) + (last ? settings_.suffix : "");
      c = spelled;
    }
    const auto has_piece = [this](char b) { return bytes_[static_cast<uint8_t>(b)] >= 0; };
    if (const int32_t id = id_of(c); id >= 0) {
      if (*unknown) out->push_back(unk_);
      *unknown = false;
      out->push_back(id);
    } else if (settings_.byte_fallback && std::all_of(c.begin(), c.end(), has_piece)) {
      for (const char b : c) out->push_back(bytes_[static_cast<uint8_t>(b)]);
    } else if (unk_ >= 0) {
      if (*unknown && !settings_.fuse_unk) out->push_back(unk_);
      *unknown = true;
    }
  }

  const std::vector<std::string> pieces_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of pieces_
  const BpeMerges merges_;
  const BpeSettings settings_;
  std::array<int32_t, 256> bytes_{};  // ids of single bytes; -1: none
  const int32_t unk_;
  const bool whole_;   // a word that is a piece is not split
  bool cuts_ = false;  // words may be cut before U+2581: no piece has it behind another character
};

}  // namespace

std::unique_ptr<const WordModel> make_character_bpe(const TokenizerJson& t, const std::string&) {
  return std::make_unique<CharacterBpe>(t);
}

}  // namespace gt
