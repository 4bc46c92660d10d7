#include "data/tokenizer.h"

#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "data/files.h"
#include "data/model_trial.h"
#include "data/model_walk.h"
#include "data/unigram.h"
#include "data/utf8.h"
#include "kernels/core/check.h"
#include "kernels/core/sha256.h"

namespace gt {
namespace {
constexpr std::string_view kBlank = "\xE2\x96\x81";
constexpr int kUnigramType = 1, kBpeType = 2;  // of the trainer's section
}  // namespace

struct Tokenizer::Impl {
  sentencepiece::SentencePieceProcessor library;
  ModelInfo info;
  std::string name, sha256;
  int64_t vocab = 0;
  int32_t eod = -1;
  bool plain = false;  // text goes through the library unchanged, but for blanks
  bool lossless = false;
  // Of lossless models: strings that become fixed ids wherever they stand, longest first; `begins`: their first bytes.
  std::vector<std::pair<std::string, std::vector<int32_t>>> symbols;
  std::array<bool, 256> begins{};
  std::unique_ptr<Unigram> unigram;  // of lossless unigram models: takes the place of the library

  void encode_between_symbols(std::string_view text, std::vector<int32_t>* out) const {
    if (unigram) return unigram->encode(text, out);
    std::vector<int> ids;
    const auto status = library.Encode({text.data(), text.size()}, &ids);
    GT_REQUIRE(status.ok(), Exit::kInternal, name, ": encode failed: ", status.ToString());
    out->insert(out->end(), ids.begin(), ids.end());
  }
  const std::pair<std::string, std::vector<int32_t>>* symbol_at(std::string_view text) const {
    for (const auto& s : symbols)
      if (text.starts_with(s.first)) return &s;
    return nullptr;
  }
  void make_symbols();
  void make_unigram();
};

// User-defined symbols, and U+2581: the library writes it for blanks and reads it back as one, so in text it goes as
// its three bytes.
void Tokenizer::Impl::make_symbols() {
  std::vector<int32_t> blank;
  for (const char* byte : {"<0xE2>", "<0x96>", "<0x81>"}) blank.push_back(library.PieceToId(byte));
  symbols.emplace_back(kBlank, blank);
  for (const int32_t id : info.user_defined) symbols.emplace_back(library.IdToPiece(id), std::vector<int32_t>{id});
  std::stable_sort(symbols.begin(), symbols.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  for (const auto& s : symbols) begins[static_cast<uint8_t>(s.first[0])] = true;
}

void Tokenizer::Impl::make_unigram() {
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
  if (!pieces.empty()) unigram = std::make_unique<Unigram>(std::move(pieces), bytes);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) { return from_bytes(read_whole_file(path, 16 << 20), path); }

Tokenizer Tokenizer::from_bytes(std::string model, const std::string& name) {
  auto m = std::make_unique<Impl>();
  m->name = name;
  m->info = walk_model(model, name);
  m->sha256 = sha256_hex(model);
  require_harmless_model(model, m->sha256, name);
  const auto status = m->library.LoadFromSerializedProto(model);
  GT_REQUIRE(status.ok(), Exit::kUsage, name, ": the library refuses this tokenizer model: ", status.ToString());
  m->vocab = m->library.GetPieceSize();
  GT_REQUIRE(m->vocab == m->info.pieces, Exit::kUsage, name, ": expected ", m->info.pieces,
             " pieces, the library found ", m->vocab);
  const ModelInfo& i = m->info;
  m->plain =
      i.identity && !i.dummy_prefix && !i.remove_extra_whitespaces && i.escape_whitespaces && !i.whitespace_suffix;
  m->lossless = m->plain && i.byte_fallback && i.byte_pieces == 256;
  if (m->lossless) m->make_symbols();
  if (m->lossless && i.type == kUnigramType) m->make_unigram();
  const int eod = m->library.PieceToId("<|endoftext|>");
  m->eod = eod != m->library.unk_id() ? eod : m->library.eos_id();
  return Tokenizer(std::move(m));
}

int64_t Tokenizer::vocab() const { return impl_->vocab; }
const std::string& Tokenizer::piece(int32_t id) const {
  GT_REQUIRE(id >= 0 && id < vocab(), Exit::kUsage, impl_->name, ": token ", id, ", expected 0 to ", vocab() - 1);
  return impl_->library.IdToPiece(id);
}
int32_t Tokenizer::id_of(const std::string& piece) const {
  const int id = impl_->library.PieceToId(piece);
  return id == impl_->library.unk_id() && impl_->library.IdToPiece(id) != piece ? -1 : id;
}
int32_t Tokenizer::unk() const { return impl_->library.unk_id(); }
int32_t Tokenizer::bos() const { return impl_->library.bos_id(); }
int32_t Tokenizer::eos() const { return impl_->library.eos_id(); }
int32_t Tokenizer::pad() const { return impl_->library.pad_id(); }
int32_t Tokenizer::eod() const { return impl_->eod; }
bool Tokenizer::is_byte(int32_t id) const { return id >= 0 && id < vocab() && impl_->library.IsByte(id); }
const std::string& Tokenizer::sha256() const { return impl_->sha256; }
const std::string& Tokenizer::name() const { return impl_->name; }
float Tokenizer::score(int32_t id) const { return impl_->library.GetScore(id); }
bool Tokenizer::bpe() const { return impl_->info.type == kBpeType; }
bool Tokenizer::unigram() const { return impl_->info.type == kUnigramType; }
PieceKind Tokenizer::kind(int32_t id) const {
  const auto& l = impl_->library;
  const auto& symbols = impl_->info.user_defined;  // ascending
  if (std::binary_search(symbols.begin(), symbols.end(), id)) return PieceKind::kUserDefined;
  return l.IsUnknown(id)   ? PieceKind::kUnknown
         : l.IsControl(id) ? PieceKind::kControl
         : l.IsUnused(id)  ? PieceKind::kUnused
         : l.IsByte(id)    ? PieceKind::kByte
                           : PieceKind::kNormal;
}
bool Tokenizer::lossless() const { return impl_->lossless; }
bool Tokenizer::cuts_at_blanks() const {
  const ModelInfo& i = impl_->info;
  return impl_->plain && i.split_by_whitespace && !i.blank_inside && (i.type == kUnigramType || i.type == kBpeType);
}
bool Tokenizer::cuts_at_lines() const { return impl_->plain && !impl_->info.newline_inside; }

void Tokenizer::encode_append(std::string_view text, std::vector<int32_t>* out) const {
  std::string clean;
  if (impl_->unigram && utf8_valid_prefix(text) != text.size()) {
    append_valid_utf8(text, &clean);
    text = clean;
  }
  size_t begin = 0;  // of what no symbol has taken
  for (size_t at = 0; impl_->lossless && at < text.size();) {
    const auto* symbol = impl_->begins[static_cast<uint8_t>(text[at])] ? impl_->symbol_at(text.substr(at)) : nullptr;
    if (symbol == nullptr) {
      ++at;
      continue;
    }
    if (at > begin) impl_->encode_between_symbols(text.substr(begin, at - begin), out);
    out->insert(out->end(), symbol->second.begin(), symbol->second.end());
    begin = at += symbol->first.size();
  }
  if (begin < text.size()) impl_->encode_between_symbols(text.substr(begin), out);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_append(text, &ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (int32_t id : ids)
    GT_REQUIRE(id >= 0 && id < vocab(), Exit::kUsage, impl_->name, ": decode: token ", id, ", expected 0 to ",
               vocab() - 1);
  std::string text;
  const auto status = impl_->library.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  GT_REQUIRE(status.ok(), Exit::kInternal, impl_->name, ": decode failed: ", status.ToString());
  return text;
}

// ---- word cache

struct Encoder::Cache {
  static constexpr size_t kWord = 64, kIds = 13, kEntries = size_t{1} << 17;
  struct Entry {  // 128 bytes: two cache lines
    uint64_t hash = 0;
    uint16_t length = 0, count = 0;
    char word[kWord];
    int32_t ids[kIds];
  };
  static_assert(sizeof(Entry) == 128);
  std::vector<Entry> entries{kEntries};
  std::vector<int32_t> scratch;
  int64_t hits = 0, misses = 0;
};

Encoder::Encoder(const Tokenizer& t) : tokenizer_(&t) {
  if (t.cuts_at_blanks()) cache_ = std::make_unique<Cache>();
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
bool Encoder::caches() const { return cache_ != nullptr; }
int64_t Encoder::hits() const { return cache_ ? cache_->hits : 0; }
int64_t Encoder::misses() const { return cache_ ? cache_->misses : 0; }

void Encoder::encode(std::string_view text, std::vector<int32_t>* out) {
  if (!cache_) return tokenizer_->encode_append(text, out);
  Cache& c = *cache_;
  while (!text.empty()) {
    const void* blank = std::memchr(text.data() + 1, ' ', text.size() - 1);
    const size_t n =
        blank != nullptr ? static_cast<size_t>(static_cast<const char*>(blank) - text.data()) : text.size();
    const std::string_view word = text.substr(0, n);
    text.remove_prefix(n);
    if (n > Cache::kWord) {
      tokenizer_->encode_append(word, out);
      continue;
    }
    const uint64_t hash = XXH3_64bits(word.data(), n);
    Cache::Entry& e = c.entries[hash & (Cache::kEntries - 1)];
    if (e.hash == hash && e.length == n && std::memcmp(e.word, word.data(), n) == 0) {
      ++c.hits;
      out->insert(out->end(), e.ids, e.ids + e.count);
      continue;
    }
    ++c.misses;
    c.scratch.clear();
    tokenizer_->encode_append(word, &c.scratch);
    out->insert(out->end(), c.scratch.begin(), c.scratch.end());
    if (c.scratch.size() > Cache::kIds) continue;
    e.hash = hash;
    e.length = static_cast<uint16_t>(n);
    e.count = static_cast<uint16_t>(c.scratch.size());
    std::memcpy(e.word, word.data(), n);
    std::copy(c.scratch.begin(), c.scratch.end(), e.ids);
  }
}

}  // namespace gt
