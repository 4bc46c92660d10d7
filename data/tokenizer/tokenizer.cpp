#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "data/bpe/byte_level_bpe.h"
#include "data/tokenizer/sentence_piece.h"
#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

std::unique_ptr<const TokenizerModel> make_model(const std::string& bytes, const std::string& sha256,
                                                 const std::string& name, const std::string& config) {
  if (is_tokenizer_json(bytes, name)) return std::make_unique<ByteLevelBpe>(bytes, name, config);
  return std::make_unique<SentencePiece>(bytes, sha256, name);
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerModel> model, std::string name, std::string sha256)
    : model_(std::move(model)),
      vocab_(model_->vocab()),
      special_(model_->special()),
      name_(std::move(name)),
      sha256_(std::move(sha256)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) { return from_files(tokenizer_files(path)); }

Tokenizer Tokenizer::from_files(const std::vector<TokenizerFile>& given) {
  const std::vector<TokenizerFile> files = convert_tokenizer_files(given);
  const auto find = [&](const char* name) {
    const auto at = std::find_if(files.begin(), files.end(), [&](const TokenizerFile& f) { return f.name == name; });
    return at == files.end() ? nullptr : &*at;
  };
  const TokenizerFile* main = find("tokenizer.model");
  if (main == nullptr) main = find("tokenizer.json");
  GT_REQUIRE(main != nullptr, Exit::kUsage, files.empty() ? "the tokenizer" : files.front().path,
             ": expected tokenizer.model or tokenizer.json among its files, found neither");
  return from_bytes(main->read(kMaxTokenizerFile), main->path, tokenizer_text(files, "tokenizer_config.json"));
}

Tokenizer Tokenizer::from_bytes(std::string bytes, const std::string& name, const std::string& config) {
  std::string sha256 = sha256_hex(bytes);
  auto model = make_model(bytes, sha256, name, config);
  return {std::move(model), name, std::move(sha256)};
}

const std::string& Tokenizer::piece(int32_t id) const {
  GT_REQUIRE(id >= 0 && id < vocab_, Exit::kUsage, name_, ": token ", id, ", expected 0 to ", vocab_ - 1);
  return model_->piece(id);
}
int32_t Tokenizer::id_of(const std::string& piece) const { return model_->id_of(piece); }
bool Tokenizer::is_byte(int32_t id) const { return id >= 0 && id < vocab_ && kind(id) == PieceKind::kByte; }
PieceKind Tokenizer::kind(int32_t id) const { return model_->kind(id); }
int64_t Tokenizer::text_bytes(int32_t id) const {
  const PieceKind kind = model_->kind(id);
  if (kind == PieceKind::kControl || kind == PieceKind::kUnknown || id == eod()) return 0;
  if (kind == PieceKind::kByte) return 1;
  const std::string& text = piece(id);
  const auto size = static_cast<int64_t>(text.size());
  if (sentence_piece() == nullptr)  // byte-level BPE spells each byte as one character, but not in added tokens
    return kind == PieceKind::kUserDefined
               ? size
               : std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  static const std::string kBlank = "\xE2\x96\x81";
  int64_t blanks = 0;
  for (size_t at = text.find(kBlank); at != std::string::npos; at = text.find(kBlank, at + kBlank.size())) ++blanks;
  return size - 2 * blanks;
}
const SentencePiece* Tokenizer::sentence_piece() const { return dynamic_cast<const SentencePiece*>(model_.get()); }

void Tokenizer::encode_append(std::string_view text, std::vector<int32_t>* out) const {
  model_->encode(text, nullptr, out);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_append(text, &ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids)
    GT_REQUIRE(id >= 0 && id < vocab_, Exit::kUsage, name_, ": decode: token ", id, ", expected 0 to ", vocab_ - 1);
  return model_->decode(ids);
}

Encoder::Encoder(const Tokenizer& t) : model_(t.model_.get()) {
  if (model_->caches()) cache_ = std::make_unique<WordCache>();
}

void Encoder::encode(std::string_view text, std::vector<int32_t>* out) { model_->encode(text, cache_.get(), out); }

}  // namespace gt
