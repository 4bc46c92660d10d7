#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "data/bpe/byte_level_bpe.h"
#include "data/bpe/tokenizer_config.h"
#include "data/hf/json_tokenizer.h"
#include "data/tokenizer/folder_model.h"
#include "data/tokenizer/sentence_piece.h"
#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

std::unique_ptr<const TokenizerModel> make_model(const std::string& bytes, const std::string& name,
                                                 const std::string& json, const std::string& config,
                                                 std::string* sha256) {
  if (is_tokenizer_json(bytes, name)) {
    TokenizerJson t = read_tokenizer_json(bytes, name);
    if (t.blanks == BlankRule::kByteLevel) return std::make_unique<ByteLevelBpe>(std::move(t), name, config);
    return std::make_unique<JsonTokenizer>(std::move(t), name, config);
  }
  if (!json.empty() || !config.empty()) {
    auto folder = std::make_unique<FolderModel>(bytes, *sha256, name, json, config);
    if (!folder->added().empty()) *sha256 = sha256_hex(cat(*sha256, '\n', folder->added()));
    if (!folder->adds_nothing()) return folder;
  }
  return std::make_unique<SentencePiece>(bytes, *sha256, name);
}

// The file that defines the ids.
const TokenizerFile& main_file(const std::vector<TokenizerFile>& files) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    for (const TokenizerFile& f : files)
      if (f.name == name) return f;
  fail(Exit::kUsage, files.empty() ? "the tokenizer" : files.front().path,
       ": expected tokenizer.model or tokenizer.json among its files, found neither");
}

}  // namespace

std::string tokenizer_identity(const std::vector<TokenizerFile>& given) {
  const std::vector<TokenizerFile> files = convert_tokenizer_files(given);
  const TokenizerFile& main = main_file(files);
  if (main.name == "tokenizer.json" || files.size() == 1) return sha256_hex(main.read(kMaxTokenizerFile));
  return Tokenizer::from_files(files).sha256();
}

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
  const TokenizerFile* main = &main_file(files);
  const std::string json = main->name == "tokenizer.json" ? "" : tokenizer_text(files, "tokenizer.json");
  const std::string config = merged_tokenizer_config(
      tokenizer_text(files, "tokenizer_config.json"), tokenizer_text(files, "special_tokens_map.json"),
      tokenizer_text(files, "added_tokens.json"), main->path + ": tokenizer_config.json beside it");
  const std::string bytes = main->read(kMaxTokenizerFile);
  std::string sha256 = sha256_hex(bytes);
  auto model = make_model(bytes, main->path, json, config, &sha256);
  Tokenizer out(std::move(model), main->path, std::move(sha256));
  out.alone_ = json.empty() && config.empty();
  return out;
}

Tokenizer Tokenizer::from_bytes(std::string bytes, const std::string& name, const std::string& config) {
  std::string sha256 = sha256_hex(bytes);
  auto model = make_model(bytes, name, "", config, &sha256);
  return {std::move(model), name, std::move(sha256)};
}

const std::string& Tokenizer::piece(int32_t id) const {
  GT_REQUIRE(id >= 0 && id < vocab_, Exit::kUsage, name_, ": token ", id, ", expected 0 to ", vocab_ - 1);
  return model_->piece(id);
}
std::string Tokenizer::names_of(const std::vector<int32_t>& ids) const {
  std::string out;
  for (const int32_t id : ids) out += cat(out.empty() ? "" : " ", piece(id), " (", id, ")");
  return out;
}
std::string Tokenizer::undecided_bos() const {
  if (!alone_ || sentence_piece() == nullptr || bos() < 0 || id_of("<|endoftext|>") >= 0) return "";
  return cat(
      name_, " alone does not define whether texts begin with ", names_of({bos()}),
      ", as those of Llama and Gemma do: here they do not. The tokenizer_config.json or config.json of its model, ",
      "beside it under the name tokenizer.model, decides; --no-bos: none is meant");
}
int32_t Tokenizer::id_of(const std::string& piece) const { return model_->id_of(piece); }
bool Tokenizer::is_byte(int32_t id) const { return id >= 0 && id < vocab_ && kind(id) == PieceKind::kByte; }
PieceKind Tokenizer::kind(int32_t id) const { return model_->kind(id); }
int64_t Tokenizer::text_bytes(int32_t id) const {
  const PieceKind kind = model_->kind(id);
  if (kind == PieceKind::kControl || kind == PieceKind::kUnknown || id == eod()) return 0;
  for (const std::vector<int32_t>* around : {&special_.before, &special_.after})
    if (std::find(around->begin(), around->end(), id) != around->end()) return 0;
  return model_->text_bytes(id);
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
