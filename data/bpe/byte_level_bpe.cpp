#include "data/bpe/byte_level_bpe.h"

#include <algorithm>

#include "data/bpe/byte_alphabet.h"
#include "data/bpe/tokenizer_config.h"
#include "data/hf/normal_form.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {

ByteLevelBpe::ByteLevelBpe(TokenizerJson t, const std::string& name, const std::string& config)
    : bytes_(t.pieces.size()),
      added_(t.pieces.size()),
      merges_(t.merges),
      words_(t.splits, name),
      nfc_(t.nfc),
      special_(special_ids(t, config, name)) {
  pieces_ = std::move(t.pieces);
  add_tokens(t.added);
  for (size_t k = 0; k < pieces_.size(); ++k) {
    const auto id = static_cast<int32_t>(k);
    if (pieces_[k].empty()) continue;
    ids_.emplace(pieces_[k], id);
    const bool spelled = bytes_of(pieces_[k], &bytes_[k]);
    if (spelled && bytes_[k].size() == 1) letters_[static_cast<uint8_t>(bytes_[k][0])] = id;
    if (!spelled || added_[k])
      bytes_[k] = pieces_[k];  // words never become these: added tokens are matched first
    else if (t.ignore_merges)
      whole_.emplace(bytes_[k], id);
  }
}

void ByteLevelBpe::add_tokens(const std::vector<AddedToken>& added) {
  std::string form_c;
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& a : added) {
    added_[static_cast<size_t>(a.id)] = true;
    (a.normalized ? normalized : raw).push_back(a);
    if (a.normalized && nfc_) normalized.back().text = std::string(to_normal_form(NormalForm::kC, a.text, &form_c));
  }
  raw_ = AddedTokens(std::move(raw));
  normalized_ = AddedTokens(std::move(normalized));
}

int32_t ByteLevelBpe::id_of(const std::string& piece) const {
  const auto at = ids_.find(piece);
  return at == ids_.end() ? -1 : at->second;
}

PieceKind ByteLevelBpe::kind(int32_t id) const {
  const auto k = static_cast<size_t>(id);
  return pieces_[k].empty() ? PieceKind::kUnused : added_[k] ? PieceKind::kUserDefined : PieceKind::kNormal;
}

LineCuts ByteLevelBpe::line_cuts() const {
  for (const AddedTokens* tokens : {&raw_, &normalized_})
    if (tokens->any_has('\n') || tokens->any_strips_before()) return LineCuts::kNever;
  return words_.line_cuts();
}

void ByteLevelBpe::encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const {
  std::string clean;
  if (utf8_valid_prefix(text) != text.size()) {
    append_valid_utf8(text, &clean);
    text = clean;
  }
  raw_.split(
      text, [&](std::string_view part) { encode_between(part, cache, out); }, [&](int32_t id) { out->push_back(id); });
}

void ByteLevelBpe::encode_between(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const {
  std::string buffer;
  const auto encode = [this](std::string_view word, std::vector<int32_t>* ids) { encode_word(word, ids); };
  const auto words = [&](std::string_view part) {
    words_.for_each_word(part, [&](std::string_view word) { append_ids(cache, word, out, encode); });
  };
  normalized_.split(nfc_ ? to_normal_form(NormalForm::kC, text, &buffer) : text, words,
                    [&](int32_t id) { out->push_back(id); });
}

void ByteLevelBpe::encode_word(std::string_view word, std::vector<int32_t>* out) const {
  if (const auto at = whole_.find(word); at != whole_.end()) return out->push_back(at->second);
  std::vector<int32_t> symbols(word.size());
  std::transform(word.begin(), word.end(), symbols.begin(),
                 [this](char c) { return letters_[static_cast<uint8_t>(c)]; });
  merges_.apply(&symbols, out);
}

std::string ByteLevelBpe::decode(std::span<const int32_t> ids) const {
  std::string bytes, text;
  for (const int32_t id : ids) bytes += bytes_[static_cast<size_t>(id)];
  if (utf8_valid_prefix(bytes) == bytes.size()) return bytes;
  append_lossy_utf8(bytes, &text);
  return text;
}

size_t ByteLevelBpe::open_tokens(std::span<const int32_t> ids) const {
  std::string tail;  // end of the text: enough for an incomplete character
  for (size_t n = 0; n < ids.size() && tail.size() < 3; ++n)
    tail.insert(0, bytes_[static_cast<size_t>(ids[ids.size() - n - 1])]);
  const size_t open = utf8_open_suffix(tail);
  size_t tokens = 0;
  for (size_t covered = 0; covered < open; ++tokens)
    covered += bytes_[static_cast<size_t>(ids[ids.size() - tokens - 1])].size();
  return tokens;
}

}  // namespace gt
