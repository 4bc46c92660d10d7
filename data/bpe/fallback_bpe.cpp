#include "data/bpe/fallback_bpe.h"

#include <algorithm>

#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";

size_t character_bytes(char lead) {
  const auto b = static_cast<uint8_t>(lead);
  return b >= 0xF0 ? 4 : b >= 0xE0 ? 3 : b >= 0xC0 ? 2 : 1;
}

// Size of the part of `text` up to the next U+2581 that follows another character.
size_t word_size(std::string_view text) {
  size_t at = 0;
  while (text.substr(at).starts_with(kBlank)) at += kBlank.size();
  return std::min(text.find(kBlank, std::max<size_t>(at, 1)), text.size());
}

}  // namespace

FallbackBpe::FallbackBpe(TokenizerJson t) : merges_(t.merges), unk_(t.unk) {
  pieces_ = std::move(t.pieces);
  byte_of_.assign(pieces_.size(), -1);
  for (size_t k = 0; k < static_cast<size_t>(t.model_pieces); ++k) {  // behind them: added tokens
    ids_.emplace(pieces_[k], static_cast<int32_t>(k));
    std::string_view rest = pieces_[k];
    while (rest.starts_with(kBlank)) rest.remove_prefix(kBlank.size());
    cuts_ = cuts_ && rest.find(kBlank) == std::string_view::npos;
  }
  for (size_t b = 0; b < 256; ++b) {
    bytes_[b] = ids_.at(byte_piece(static_cast<uint8_t>(b)));
    byte_of_[static_cast<size_t>(bytes_[b])] = static_cast<int16_t>(b);
  }
}

int32_t FallbackBpe::id_of(const std::string& piece) const {
  const auto at = ids_.find(piece);
  return at == ids_.end() ? -1 : at->second;
}

PieceKind FallbackBpe::kind(int32_t id) const {
  const auto k = static_cast<size_t>(id);
  return pieces_[k].empty() ? PieceKind::kUnused
         : byte_of_[k] >= 0 ? PieceKind::kByte
         : id == unk_       ? PieceKind::kUnknown
                            : PieceKind::kNormal;
}

int64_t FallbackBpe::text_bytes(int32_t id) const {
  return byte_of_[static_cast<size_t>(id)] >= 0 ? 1 : static_cast<int64_t>(decode({&id, 1}).size());
}

void FallbackBpe::encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const {
  while (!text.empty()) {
    const size_t n = cuts_ ? word_size(text) : text.size();
    if (cache != nullptr)
      cache->append(text.substr(0, n), out,
                    [this](std::string_view word, std::vector<int32_t>* ids) { encode_word(word, ids); });
    else
      encode_word(text.substr(0, n), out);
    text.remove_prefix(n);
  }
}

void FallbackBpe::encode_word(std::string_view word, std::vector<int32_t>* out) const {
  std::vector<int32_t> symbols;
  for (size_t at = 0; at < word.size();) {
    const size_t n = std::min(character_bytes(word[at]), word.size() - at);
    if (const auto found = ids_.find(word.substr(at, n)); found != ids_.end())
      symbols.push_back(found->second);
    else
      for (size_t k = 0; k < n; ++k) symbols.push_back(bytes_[static_cast<uint8_t>(word[at + k])]);
    at += n;
  }
  merges_.apply(&symbols, out);
}

// Bytes that form no text become one U+FFFD each, as in Hugging Face's ByteFallback.
std::string FallbackBpe::decode(std::span<const int32_t> ids) const {
  std::string text, bytes;
  const auto flush = [&] {
    if (utf8_valid_prefix(bytes) == bytes.size())
      text += bytes;
    else
      for (size_t k = 0; k < bytes.size(); ++k) text += "\xEF\xBF\xBD";
    bytes.clear();
  };
  for (const int32_t id : ids) {
    const auto k = static_cast<size_t>(id);
    if (byte_of_[k] >= 0) {
      bytes += static_cast<char>(byte_of_[k]);
      continue;
    }
    flush();
    std::string piece = pieces_[k];
    for (size_t at = 0; (at = piece.find(kBlank, at)) != std::string::npos; ++at) piece.replace(at, kBlank.size(), " ");
    text += piece;
  }
  flush();
  return text;
}

size_t FallbackBpe::open_tokens(std::span<const int32_t> ids) const {
  std::string tail;
  size_t n = 0;
  for (; n < ids.size() && n < 3; ++n) {
    const int16_t byte = byte_of_[static_cast<size_t>(ids[ids.size() - n - 1])];
    if (byte < 0) break;
    tail.insert(tail.begin(), static_cast<char>(byte));
  }
  return utf8_open_suffix(tail);
}

}  // namespace gt
