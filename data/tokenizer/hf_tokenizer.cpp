#include "data/tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "data/tokenizer/sentence_piece.h"
#include "data/tokenizer/unigram.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kBlank = "\xE2\x96\x81";
constexpr const char* kEndOfText = "<|endoftext|>";

const SentencePiece& spm(const Tokenizer& t) {
  GT_CHECK(t.sentence_piece() != nullptr);
  return *t.sentence_piece();
}

std::string with_blanks(std::string piece) {
  for (size_t at; (at = piece.find(kBlank)) != std::string::npos;) piece.replace(at, 3, " ");
  return piece;
}

// Returns a piece's name in tokenizer.json. Unigram matches every name in text, and the pre-tokenizer isolates U+2581,
// so a longer name with U+2581 is never matched.
std::string name_of(const Tokenizer& t, int32_t id) {
  switch (t.kind(id)) {
    case PieceKind::kNormal: return with_blanks(t.piece(id));
    case PieceKind::kByte:
    case PieceKind::kUserDefined: return t.piece(id);
    case PieceKind::kUnknown:
    case PieceKind::kControl:
    case PieceKind::kUnused: break;
  }
  return spm(t).unigram() ? kBlank + t.piece(id) : t.piece(id);
}

bool any_normal(const Tokenizer& t, const std::function<bool(const std::string&)>& test) {
  for (int32_t id = 0; id < t.vocab(); ++id)
    if (t.kind(id) == PieceKind::kNormal && test(with_blanks(t.piece(id)))) return true;
  return false;
}

// Returns where to split the text "<0x41>", so that Unigram does not match it as a byte: between the first and the
// second character of the result. Empty: not possible.
std::string byte_name_cut(const Tokenizer& t) {
  for (const char* pair : {"<0", "0x"})
    if (!any_normal(t, [&](const std::string& p) { return p.find(pair) != std::string::npos; })) return pair;
  return "";
}

Json split(const char* kind, const std::string& pattern, const char* behavior) {
  return {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", behavior}, {"invert", false}};
}

Json pre_tokenizer(const Tokenizer& t) {
  Json steps = Json::array();
  steps.push_back(split("String", kBlank, "Isolated"));
  if (spm(t).unigram())
    steps.push_back(byte_name_cut(t) == "<0" ? split("Regex", "<(?=0x[0-9A-F]{2}>)", "MergedWithPrevious")
                                             : split("Regex", "<0(?=x[0-9A-F]{2}>)", "MergedWithPrevious"));
  if (spm(t).cuts_at_blanks()) steps.push_back(split("String", " ", "MergedWithNext"));
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Json added_tokens(const Tokenizer& t) {
  Json added = Json::array();
  for (int32_t id = 0; id < t.vocab(); ++id)
    if (t.kind(id) == PieceKind::kUserDefined)
      added.push_back({{"id", id},
                       {"content", t.piece(id)},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", t.piece(id) == kEndOfText}});
  return added;
}

Json unigram_model(const Tokenizer& t) {
  double least = 0;
  for (int32_t id = 0; id < t.vocab(); ++id)
    if (t.kind(id) == PieceKind::kNormal) least = std::min(least, unigram_score(spm(t).score(id)));
  Json vocab = Json::array();
  for (int32_t id = 0; id < t.vocab(); ++id)
    vocab.push_back({name_of(t, id), t.kind(id) == PieceKind::kNormal ? unigram_score(spm(t).score(id)) : least});
  return {{"type", "Unigram"}, {"unk_id", t.unk()}, {"vocab", vocab}, {"byte_fallback", true}};
}

// SentencePiece merges any two neighbours whose concatenation is a piece, best score first: every split of a piece in
// two is a merge.
Json bpe_merges(const Tokenizer& t) {
  std::unordered_map<std::string, int32_t> normal;
  for (int32_t id = 0; id < t.vocab(); ++id)
    if (t.kind(id) == PieceKind::kNormal) normal.emplace(with_blanks(t.piece(id)), id);
  std::vector<std::tuple<float, int32_t, size_t>> merges;  // -score, id, bytes of the left part
  for (const auto& [text, id] : normal)
    for (size_t k = 1; k < text.size(); ++k)
      if (normal.count(text.substr(0, k)) != 0 && normal.count(text.substr(k)) != 0)
        merges.emplace_back(-spm(t).score(id), id, k);
  std::sort(merges.begin(), merges.end());
  Json out = Json::array();
  for (const auto& [score, id, k] : merges) {
    const std::string text = with_blanks(t.piece(id));
    out.push_back({text.substr(0, k), text.substr(k)});
  }
  return out;
}

Json bpe_model(const Tokenizer& t) {
  Json vocab = Json::object();
  auto& entries = vocab.get_ref<Json::object_t&>();  // appended: a lookup for each would be quadratic
  for (int32_t id = 0; id < t.vocab(); ++id) entries.emplace_back(name_of(t, id), id);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", true},
          {"vocab", std::move(vocab)},
          {"merges", bpe_merges(t)}};
}

bool has_end_of_text(const Tokenizer& t) {
  const int32_t id = t.id_of(kEndOfText);
  return id >= 0 && t.kind(id) == PieceKind::kUserDefined;
}

// Returns whether every character is in the vocabulary, which merges require but SentencePiece does not.
bool has_every_character(const Tokenizer& t) {
  return !any_normal(t, [&](const std::string& p) {
    for (size_t at = 0; at < p.size();) {
      const size_t n = utf8_cut(std::string_view(p).substr(at), 4);
      size_t one = 1;
      while (one < n && (static_cast<unsigned char>(p[at + one]) & 0xC0) == 0x80) ++one;
      const std::string c = p.substr(at, one);
      if (t.id_of(c == " " ? kBlank : c) < 0) return true;
      at += one;
    }
    return false;
  });
}

}  // namespace

std::string hf_tokenizer_obstacle(const Tokenizer& t) {
  if (!spm(t).bpe() && !spm(t).unigram()) return "its type is neither bpe nor unigram";
  if (!t.lossless())
    return "it normalizes text, adds a blank before it, removes blanks or has no byte fallback; models of gpttrain "
           "tokenizer train do not";
  if (spm(t).unigram() && byte_name_cut(t).empty()) return "it has pieces with <0 and with 0x";
  if (spm(t).bpe() && !has_every_character(t)) return "it has pieces with a character that is not itself a piece";
  return "";
}

std::string hf_tokenizer_json(const Tokenizer& t) {
  GT_CHECK(hf_tokenizer_obstacle(t).empty());
  const Json j = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens(t)},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer(t)},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", Json::array({Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}})}}},
      {"model", spm(t).unigram() ? unigram_model(t) : bpe_model(t)}};
  return j.dump(1, ' ') + "\n";
}

std::string hf_special_tokens_json(const Tokenizer& t) {
  Json j = Json::object();
  if (t.sentence_piece() == nullptr) {
    const std::pair<const char*, int32_t> tokens[] = {{"bos_token", t.bos()},
                                                      {"eos_token", t.eos() >= 0 ? t.eos() : t.eod()},
                                                      {"pad_token", t.pad() >= 0 ? t.pad() : t.eod()}};
    for (const auto& [key, id] : tokens)
      if (id >= 0 && t.kind(id) == PieceKind::kUserDefined) j[key] = t.piece(id);
    return j.dump(2) + "\n";
  }
  if (has_end_of_text(t)) j = {{"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"pad_token", kEndOfText}};
  return j.dump(2) + "\n";
}

std::string hf_tokenizer_config_json(const Tokenizer& t, int64_t max_length) {
  Json j = parse_json<Json>(hf_special_tokens_json(t), "special tokens", kOwnJson);
  j["clean_up_tokenization_spaces"] = false;
  j["model_input_names"] = {"input_ids", "attention_mask"};  // GPT-2 would add token_type_ids to its embedding
  j["model_max_length"] = max_length;
  j["tokenizer_class"] = "PreTrainedTokenizerFast";
  return j.dump(2) + "\n";
}

}  // namespace gt
