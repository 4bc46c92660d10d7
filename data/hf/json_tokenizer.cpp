#include "data/hf/json_tokenizer.h"

#include <algorithm>

#include "data/bpe/byte_alphabet.h"
#include "data/bpe/tokenizer_config.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

const nlohmann::json* part(const TokenizerJson& t, const char* key) {
  const auto at = t.parts->find(key);
  return at == t.parts->end() || at->is_null() ? nullptr : &*at;
}

// The byte of a piece "<0x41>"; -1: another piece.
int byte_of(const std::string& piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x")) return -1;
  for (int b = 0; b < 256; ++b)
    if (piece == byte_piece(static_cast<uint8_t>(b))) return b;
  return -1;
}

}  // namespace

JsonTokenizer::JsonTokenizer(TokenizerJson t, const std::string& name, const std::string& config)
    : is_added_(t.pieces.size()),
      normalizer_(part(t, "normalizer"), name + ": normalizer"),
      words_(part(t, "pre_tokenizer"), name + ": pre_tokenizer", normalizer_.prepends()),
      model_(make_word_model(t, name)),
      decoder_(part(t, "decoder"), name + ": decoder"),
      special_(special_ids(t, config, name)) {
  require_same_pipeline(t, words_.prefix_space(), config, name);
  add_tokens(t.added, name);
  pieces_ = std::move(t.pieces);
  for (size_t k = 0; k < pieces_.size(); ++k)
    if (!pieces_[k].empty()) ids_.emplace(pieces_[k], static_cast<int32_t>(k));
}

void JsonTokenizer::add_tokens(const std::vector<AddedToken>& added, const std::string& name) {
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& a : added) {
    is_added_[static_cast<size_t>(a.id)] = true;
    (a.normalized ? normalized : raw).push_back(a);
    if (!a.normalized) continue;
    std::string buffer;
    bool moved = false;
    normalized.back().text = std::string(normalizer_.apply(a.text, &buffer, &moved));
    GT_REQUIRE(!normalized.back().text.empty(), Exit::kUsage, name, ": added_tokens: nothing of \"", a.text,
               "\" is left by the normalizer, so that it is never matched, which is not supported");
  }
  raw_ = AddedTokens(std::move(raw));
  normalized_ = AddedTokens(std::move(normalized));
}

int32_t JsonTokenizer::id_of(const std::string& piece) const {
  const auto at = ids_.find(piece);
  return at == ids_.end() ? -1 : at->second;
}

PieceKind JsonTokenizer::kind(int32_t id) const {
  const auto k = static_cast<size_t>(id);
  return pieces_[k].empty()                                  ? PieceKind::kUnused
         : is_added_[k]                                      ? PieceKind::kUserDefined
         : id == special_.unk                                ? PieceKind::kUnknown
         : decoder_.falls_back() && byte_of(pieces_[k]) >= 0 ? PieceKind::kByte
                                                             : PieceKind::kNormal;
}

int64_t JsonTokenizer::text_bytes(int32_t id) const {
  const auto k = static_cast<size_t>(id);
  if (is_added_[k]) return static_cast<int64_t>(pieces_[k].size());
  if (decoder_.has_bytes() || kind(id) == PieceKind::kByte) return static_cast<int64_t>(bytes_of_token(id).size());
  const size_t around = decoder_.decode({"a", "a"}).size(), whole = decoder_.decode({"a", pieces_[k], "a"}).size();
  return static_cast<int64_t>(whole) - static_cast<int64_t>(std::min(around, whole));
}

void JsonTokenizer::encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const {
  std::string clean;
  if (utf8_valid_prefix(text) != text.size()) {
    append_valid_utf8(text, &clean);
    text = clean;
  }
  raw_.split(
      text, [&](std::string_view part) { encode_between(part, part.data() == text.data(), cache, out); },
      [&](int32_t id) { out->push_back(id); });
}

void JsonTokenizer::encode_between(std::string_view text, bool first, WordCache* cache,
                                   std::vector<int32_t>* out) const {
  std::string buffer;
  bool moved = false;
  const std::string_view whole = normalizer_.apply(text, &buffer, &moved);
  const std::function<void(std::string_view)> encode = [&](std::string_view word) { model_->encode(word, cache, out); };
  normalized_.split(
      whole,
      [&](std::string_view part) {
        words_.for_each_word(part, first && !moved && part.data() == whole.data(), encode);
      },
      [&](int32_t id) { out->push_back(id); });
}

std::string JsonTokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const int32_t id : ids)
    if (!pieces_[static_cast<size_t>(id)].empty()) pieces.push_back(pieces_[static_cast<size_t>(id)]);
  return decoder_.decode(std::move(pieces));
}

// The bytes of a token of ByteLevel or of a byte piece; "" for others of a model with byte fallback.
std::string JsonTokenizer::bytes_of_token(int32_t id) const {
  const std::string& piece = pieces_[static_cast<size_t>(id)];
  if (decoder_.falls_back()) return byte_of(piece) >= 0 ? std::string(1, static_cast<char>(byte_of(piece))) : "";
  std::string bytes;
  return bytes_of(piece, &bytes) ? bytes : piece;
}

size_t JsonTokenizer::open_tokens(std::span<const int32_t> ids) const {
  if (!decoder_.has_bytes() && !decoder_.falls_back()) return 0;
  std::string tail;              // end of the text: enough for an incomplete character
  std::vector<size_t> sizes{0};  // of the tail, by the number of tokens
  for (size_t n = 0; n < ids.size() && tail.size() < 3; ++n) {
    const std::string bytes = bytes_of_token(ids[ids.size() - n - 1]);
    if (bytes.empty()) break;
    tail.insert(0, bytes);
    sizes.push_back(tail.size());
  }
  const size_t open = utf8_open_suffix(tail);
  return static_cast<size_t>(std::lower_bound(sizes.begin(), sizes.end(), open) - sizes.begin());
}

}  // namespace gt
