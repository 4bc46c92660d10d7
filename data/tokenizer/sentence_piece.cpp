#include "data/tokenizer/sentence_piece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "data/bpe/added_tokens.h"
#include "data/tokenizer/model_trial.h"
#include "data/tokenizer/model_walk.h"
#include "data/tokenizer/unigram.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr std::string_view kBlank = "\xE2\x96\x81";
constexpr int kUnigramType = 1, kBpeType = 2;  // in the trainer's section

// Returns the byte of a piece "<0xE2>".
int byte_of(const std::string& piece) { return std::stoi(piece.substr(3, 2), nullptr, 16); }

// Returns the length of the character that begins with this byte.
int length_of(int lead) { return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1; }

}  // namespace

struct SentencePiece::Impl {
  sentencepiece::SentencePieceProcessor library;
  ModelInfo info;
  std::string name;
  int64_t vocab = 0;
  bool plain = false;  // the library changes nothing but blanks in text
  bool lossless = false;
  // For lossless models: strings with fixed ids wherever they occur. The ids of a token are at its id in symbol_ids.
  AddedTokens symbols;
  std::vector<std::vector<int32_t>> symbol_ids;
  std::unique_ptr<Unigram> unigram;  // for lossless unigram models, instead of the library

  void encode_between_symbols(std::string_view text, std::vector<int32_t>* out) const {
    if (unigram) return unigram->encode(text, out);
    std::vector<int> ids;
    const auto status = library.Encode({text.data(), text.size()}, &ids);
    GT_REQUIRE(status.ok(), Exit::kInternal, name, ": encode failed: ", status.ToString());
    out->insert(out->end(), ids.begin(), ids.end());
  }
  void encode_text(std::string_view text, std::vector<int32_t>* out) const;
  void make_symbols();
  void make_unigram();
};

// Adds user-defined symbols, and U+2581: the library uses it for blanks and decodes it as one, so in text it is encoded
// as its three bytes.
void SentencePiece::Impl::make_symbols() {
  std::vector<AddedToken> tokens;
  const auto add = [&](std::string text, std::vector<int32_t> ids) {
    tokens.push_back({.text = std::move(text), .id = static_cast<int32_t>(symbol_ids.size())});
    symbol_ids.push_back(std::move(ids));
  };
  std::vector<int32_t> blank;
  for (const char* byte : {"<0xE2>", "<0x96>", "<0x81>"}) blank.push_back(library.PieceToId(byte));
  add(std::string(kBlank), blank);
  for (const int32_t id : info.user_defined) add(library.IdToPiece(id), {id});
  symbols = AddedTokens(std::move(tokens));
}

void SentencePiece::Impl::make_unigram() {
  std::vector<bool> symbol(static_cast<size_t>(vocab));
  for (const int32_t id : info.user_defined) symbol[static_cast<size_t>(id)] = true;
  std::vector<UnigramPiece> pieces;
  std::array<int32_t, 256> bytes{};
  for (int32_t id = 0; id < vocab; ++id) {
    std::string text = library.IdToPiece(id);
    if (library.IsByte(id)) bytes[std::stoul(text.substr(3, 2), nullptr, 16)] = id;
    if (symbol[static_cast<size_t>(id)] || library.IsByte(id) || library.IsControl(id) || library.IsUnknown(id) ||
        library.IsUnused(id))
      continue;
    for (size_t at; (at = text.find(kBlank)) != std::string::npos;) text.replace(at, kBlank.size(), " ");
    pieces.push_back({std::move(text), library.GetScore(id), id});
  }
  if (!pieces.empty()) unigram = std::make_unique<Unigram>(std::move(pieces), bytes, name);
}

SentencePiece::SentencePiece(const std::string& model, const std::string& sha256, const std::string& name, bool spelled)
    : impl_(new Impl) {
  Impl& m = *impl_;
  m.name = name;
  m.info = walk_model(model, name);
  try_model_in_child(model, sha256, name);
  // A repeated message replaces the fields that it has: normalizer_spec {precompiled_charsmap: "", add_dummy_prefix:
  // false, remove_extra_whitespaces: false}.
  const std::string as_spelled("\x1a\x06\x12\x00\x18\x00\x20\x00", 8);
  const auto status = m.library.LoadFromSerializedProto(spelled ? model + as_spelled : model);
  GT_REQUIRE(status.ok(), Exit::kUsage, name, ": the library refuses this tokenizer model: ", status.ToString());
  m.vocab = m.library.GetPieceSize();
  GT_REQUIRE(m.vocab == m.info.pieces, Exit::kUsage, name, ": expected ", m.info.pieces, " pieces, the library found ",
             m.vocab);
  const ModelInfo& i = m.info;
  m.plain =
      i.identity && !i.dummy_prefix && !i.remove_extra_whitespaces && i.escape_whitespaces && !i.whitespace_suffix;
  m.lossless = m.plain && i.byte_fallback && i.byte_pieces == 256 && !spelled;
  if (m.lossless) m.make_symbols();
  if (m.lossless && i.type == kUnigramType) m.make_unigram();
}

SentencePiece::~SentencePiece() = default;

int64_t SentencePiece::vocab() const { return impl_->vocab; }
const std::string& SentencePiece::piece(int32_t id) const { return impl_->library.IdToPiece(id); }
int32_t SentencePiece::id_of(const std::string& piece) const {
  const int id = impl_->library.PieceToId(piece);
  return id == impl_->library.unk_id() && impl_->library.IdToPiece(id) != piece ? -1 : id;
}
SpecialIds SentencePiece::special() const {
  const auto& l = impl_->library;
  const int eod = l.PieceToId("<|endoftext|>");
  SpecialIds s{l.unk_id(), l.bos_id(), l.eos_id(), l.pad_id(), eod != l.unk_id() ? eod : l.eos_id()};
  s.start = s.eod;
  return s;
}
PieceKind SentencePiece::kind(int32_t id) const {
  const auto& l = impl_->library;
  const auto& symbols = impl_->info.user_defined;  // ascending
  if (std::binary_search(symbols.begin(), symbols.end(), id)) return PieceKind::kUserDefined;
  return l.IsUnknown(id)   ? PieceKind::kUnknown
         : l.IsControl(id) ? PieceKind::kControl
         : l.IsUnused(id)  ? PieceKind::kUnused
         : l.IsByte(id)    ? PieceKind::kByte
                           : PieceKind::kNormal;
}
float SentencePiece::score(int32_t id) const { return impl_->library.GetScore(id); }
bool SentencePiece::bpe() const { return impl_->info.type == kBpeType; }
bool SentencePiece::unigram() const { return impl_->info.type == kUnigramType; }
bool SentencePiece::lossless() const { return impl_->lossless; }
int64_t SentencePiece::text_bytes(int32_t id) const {
  const std::string& text = piece(id);
  if (impl_->library.IsByte(id)) return 1;
  int64_t blanks = 0;
  for (size_t at = text.find(kBlank); at != std::string::npos; at = text.find(kBlank, at + kBlank.size())) ++blanks;
  return static_cast<int64_t>(text.size()) - 2 * blanks;
}
bool SentencePiece::cuts_at_blanks() const {
  const ModelInfo& i = impl_->info;
  return impl_->plain && i.split_by_whitespace && !i.blank_inside && (i.type == kUnigramType || i.type == kBpeType);
}
LineCuts SentencePiece::line_cuts() const {
  return impl_->plain && !impl_->info.newline_inside ? LineCuts::kEveryLine : LineCuts::kNever;
}

void SentencePiece::Impl::encode_text(std::string_view text, std::vector<int32_t>* out) const {
  std::string clean;
  if (unigram && utf8_valid_prefix(text) != text.size()) {
    append_valid_utf8(text, &clean);
    text = clean;
  }
  if (!lossless) return encode_between_symbols(text, out);
  symbols.split(
      text, [&](std::string_view part) { encode_between_symbols(part, out); },
      [&](int32_t id) {
        const std::vector<int32_t>& ids = symbol_ids[static_cast<size_t>(id)];
        out->insert(out->end(), ids.begin(), ids.end());
      });
}

// With a cache, which requires cuts_at_blanks(), the text is cut before every blank.
void SentencePiece::encode(std::string_view text, WordCache* cache, std::vector<int32_t>* out) const {
  if (cache == nullptr) return impl_->encode_text(text, out);
  while (!text.empty()) {
    const void* blank = std::memchr(text.data() + 1, ' ', text.size() - 1);
    const size_t n =
        blank != nullptr ? static_cast<size_t>(static_cast<const char*>(blank) - text.data()) : text.size();
    cache->append(text.substr(0, n), out,
                  [this](std::string_view word, std::vector<int32_t>* ids) { impl_->encode_text(word, ids); });
    text.remove_prefix(n);
  }
}

std::string SentencePiece::decode(std::span<const int32_t> ids) const {
  std::string text;
  const auto status = impl_->library.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  GT_REQUIRE(status.ok(), Exit::kInternal, impl_->name, ": decode failed: ", status.ToString());
  return text;
}

size_t SentencePiece::open_tokens(std::span<const int32_t> ids) const {
  for (size_t n = 1; n <= std::min<size_t>(3, ids.size()); ++n) {
    const int32_t id = ids[ids.size() - n];
    if (!impl_->library.IsByte(id)) return 0;
    const int byte = byte_of(piece(id));
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return static_cast<size_t>(length_of(byte)) > n ? n : 0;
  }
  return 0;
}

}  // namespace gt
