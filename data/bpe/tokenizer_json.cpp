#include "data/bpe/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <unordered_map>
#include <unordered_set>

#include "data/bpe/byte_alphabet.h"
#include "data/bpe/tokenizer_text.h"
#include "data/hf/json_fields.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::json;
constexpr int64_t kMaxId = 4194304, kMaxUnused = 65536;
constexpr size_t kMaxAdded = 65536, kMaxAddedText = 1024, kMaxSteps = 16, kMaxPiece = 16 << 10;

class Builder {
 public:
  Builder(TokenizerText text, const std::string& name) : name_(name), text_(std::move(text)), root_(text_.rest, name) {}

  TokenizerJson build() {
    root_.expect_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
    read_model();
    if (is_plain_byte_level())
      read_byte_level();
    else
      out_.blanks = BlankRule::kPipeline;
    read_added();
    read_template();
    if (out_.blanks == BlankRule::kPipeline) out_.parts = std::make_shared<const Json>(std::move(text_.rest));
    return std::move(out_);
  }

  // The model of the vocabulary is another file.
  TokenizerJson build_beside(const std::vector<std::string>& pieces, const std::vector<bool>& normal,
                             std::string* unknown) {
    out_.blanks = blank_rule(unknown);
    for (size_t k = 0; k < pieces.size(); ++k) {
      out_.pieces.push_back(pieces[k]);
      ids_.emplace(pieces[k], static_cast<int32_t>(k));
    }
    out_.model_pieces = static_cast<int64_t>(pieces.size());
    require_same_vocabulary(normal);
    read_added();
    read_template();
    return std::move(out_);
  }

 private:
  // Its own vocabulary may write blanks as such.
  void require_same_vocabulary(const std::vector<bool>& normal) {
    const auto check = [&](std::string piece, int64_t id) {
      for (size_t at = 0; (at = piece.find(' ', at)) != std::string::npos;) piece.replace(at, 1, kBlank);
      const auto k = static_cast<size_t>(id);
      const bool same = id < 0 || id >= out_.model_pieces || !normal[k] || out_.pieces[k] == piece;
      GT_REQUIRE(same, Exit::kUsage, name_, ": model.vocab: id ", id, " is \"", piece.substr(0, 100),
                 "\", in the tokenizer.model beside it \"", out_.pieces[k].substr(0, 100),
                 "\"; they are of different tokenizers, and transformers reads this one: remove the one that the "
                 "weights were not trained with");
    };
    for (const auto& [piece, id] : text_.vocab) check(piece, id);
    const Json* model = root_.find("model");
    if (model == nullptr || !model->is_object() || !model->contains("vocab") || !(*model)["vocab"].is_array()) return;
    int64_t id = 0;
    for (const Json& entry : (*model)["vocab"]) {
      if (entry.is_array() && !entry.empty() && entry[0].is_string()) check(entry[0].get<std::string>(), id);
      ++id;
    }
  }

  // Returns the rule of the normalizer and the pre-tokenizer.
  BlankRule blank_rule(std::string* unknown) const {
    const auto is = [](const Json* j, const char* key, const char* value) {
      const auto at = j->find(key);
      return at != j->end() && at->is_string() && at->get_ref<const std::string&>() == value;
    };
    std::vector<const Json*> steps;
    for (const auto& [key, list] : {std::pair("normalizer", "normalizers"), {"pre_tokenizer", "pretokenizers"}}) {
      const Json* j = root_.find(key);
      if (j == nullptr) continue;
      const bool several = j->is_object() && is(j, "type", "Sequence") && j->contains(list) && (*j)[list].is_array();
      if (!several) steps.push_back(j);
      for (size_t k = 0; several && k < (*j)[list].size(); ++k) steps.push_back(&(*j)[list][k]);
    }
    bool prepends = false, replaces = false;
    for (const Json* j : steps) {
      const Json pattern = j->is_object() ? j->value("pattern", Json::object()) : Json();
      const bool of_blanks = pattern.is_object() && is(&pattern, "String", " ");
      if (!j->is_object()) {
        *unknown = cat("a ", j->type_name());
      } else if (is(j, "type", "Prepend") && is(j, "prepend", kBlank) && !replaces) {
        prepends = true;
      } else if (is(j, "type", "Replace") && of_blanks && is(j, "content", kBlank)) {
        replaces = true;
      } else if (is(j, "type", "Split") && of_blanks && replaces) {
        continue;  // no blanks are left
      } else if (is(j, "type", "Metaspace") && steps.size() == 1 && is(j, "replacement", kBlank) &&
                 j->value("split", Json(true)) == Json(false)) {
        const bool never = !j->contains("prepend_scheme") && j->value("add_prefix_space", Json(true)) == Json(false);
        return is(j, "prepend_scheme", "first")            ? BlankRule::kFirst
               : never || is(j, "prepend_scheme", "never") ? BlankRule::kNone
                                                           : BlankRule::kUnlessBlank;
      } else {
        *unknown = j->dump(-1, ' ', true).substr(0, 200);
      }
    }
    if (!unknown->empty() || !replaces) return BlankRule::kModel;
    return prepends ? BlankRule::kEvery : BlankRule::kNone;
  }

  // "type" of the model; of older files, which have none, what its keys stand for.
  std::string model_type(const JsonFields& m) const {
    if (m.find("type") != nullptr) return m.text("type");
    const Json* vocab = m.find("vocab");
    return !text_.merges.empty()                           ? "BPE"
           : m.find("max_input_chars_per_word") != nullptr ? "WordPiece"
           : vocab != nullptr && vocab->is_array()         ? "Unigram"
                                                           : m.text("type");
  }

  void read_model() {
    const JsonFields m = root_.object("model");
    const std::string type = model_type(m);
    if (type == "BPE") return read_bpe(m);
    if (type == "WordPiece") return read_word_piece(m);
    GT_REQUIRE(type == "Unigram", Exit::kUsage, name_, ": model.type: expected BPE, WordPiece or Unigram, found \"",
               type.substr(0, 100), "\", which is not supported");
    read_unigram(m);
  }

  void read_bpe(const JsonFields& m) {
    m.expect_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges"});
    if (const Json* dropout = m.find("dropout"))
      GT_REQUIRE(dropout->is_number() && dropout->get<double>() == 0, Exit::kUsage, m.where(),
                 ".dropout: expected none, found ", dropout->dump().substr(0, 100), ", which is not supported");
    out_.bpe.prefix = m.text_or("continuing_subword_prefix", "");
    out_.bpe.suffix = m.text_or("end_of_word_suffix", "");
    out_.bpe.fuse_unk = m.flag("fuse_unk", false);
    out_.bpe.byte_fallback = m.flag("byte_fallback", false);
    out_.ignore_merges = m.flag("ignore_merges", false);
    read_vocab();
    read_merges();
    read_unk(m.text_or("unk_token", ""), m);
  }

  void read_unk(const std::string& unk, const JsonFields& m) {
    if (unk.empty()) return;
    out_.unk = id_of(unk);
    GT_REQUIRE(out_.unk >= 0, Exit::kUsage, m.where(), ".unk_token: \"", unk.substr(0, 100),
               "\" is not a piece of the vocabulary");
  }

  void read_word_piece(const JsonFields& m) {
    out_.model = HfModel::kWordPiece;
    m.expect_keys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
    out_.word_piece.prefix = m.text_or("continuing_subword_prefix", "##");
    out_.word_piece.most_characters = m.number("max_input_chars_per_word", 100, int64_t{1} << 30);
    read_vocab();
    read_unk(m.text_or("unk_token", "[UNK]"), m);
    GT_REQUIRE(out_.unk >= 0, Exit::kUsage, m.where(), ".unk_token: expected a piece, found none");
  }

  void read_unigram(const JsonFields& m) {
    out_.model = HfModel::kUnigram;
    m.expect_keys({"type", "unk_id", "byte_fallback", "vocab"});
    out_.unigram_bytes = m.flag("byte_fallback", false);
    for (const Json& entry : m.list("vocab")) {
      const bool scored = entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
      const auto id = static_cast<int64_t>(text_.vocab.size());
      GT_REQUIRE(scored && std::isfinite(entry[1].get<double>()), Exit::kUsage, m.where(), ".vocab[", id,
                 "]: expected a piece and its score, found ", entry.dump(-1, ' ', true).substr(0, 100));
      const auto& piece = entry[0].get_ref<const std::string&>();
      GT_REQUIRE(!piece.empty() && piece.size() <= kMaxPiece, Exit::kUsage, m.where(), ".vocab[", id,
                 "]: expected a piece of 1 to ", kMaxPiece, " bytes, found ", piece.size());
      text_.vocab.emplace_back(piece, id);
      out_.scores.push_back(entry[1].get<double>());
    }
    read_vocab();
    const auto last = static_cast<int64_t>(out_.scores.size()) - 1;
    m.get("unk_id");
    out_.unk = static_cast<int32_t>(m.number("unk_id", 0, last));
  }

  void read_vocab() {
    GT_REQUIRE(!text_.vocab.empty(), Exit::kUsage, name_, ": model.vocab: expected pieces, found none");
    for (auto& [piece, id] : text_.vocab) {
      GT_REQUIRE(add_piece(std::move(piece), id, static_cast<int64_t>(text_.vocab.size())), Exit::kUsage, name_,
                 ": model.vocab: id ", id, " or its piece occurs twice");
      ++out_.model_pieces;
      out_.model_ids.push_back(static_cast<int32_t>(id));
    }
  }

  static bool is_type(const Json& j, const char* type) {
    const auto at = j.is_object() ? j.find("type") : j.end();
    return j.is_object() && at != j.end() && at->is_string() && at->get_ref<const std::string&>() == type;
  }

  // Steps of the part `key`, a Sequence or one step.
  std::vector<const Json*> steps_of(const char* key, const char* list) const {
    const Json* j = root_.find(key);
    if (j == nullptr) return {};
    if (!is_type(*j, "Sequence") || !j->contains(list) || !(*j)[list].is_array()) return {j};
    std::vector<const Json*> steps;
    for (const Json& step : (*j)[list]) steps.push_back(&step);
    return steps;
  }

  // A BPE of bytes with the steps that data/bpe/byte_level_bpe.h runs.
  bool is_plain_byte_level() const {
    if (out_.model != HfModel::kBpe || out_.bpe.byte_fallback || !out_.bpe.prefix.empty() || !out_.bpe.suffix.empty())
      return false;
    for (const Json* j : steps_of("normalizer", "normalizers"))
      if (!is_type(*j, "NFC")) return false;
    const std::vector<const Json*> decoders = steps_of("decoder", "decoders");
    if (decoders.size() != 1 || !is_type(*decoders[0], "ByteLevel")) return false;
    const std::vector<const Json*> steps = steps_of("pre_tokenizer", "pretokenizers");
    if (steps.empty() || !is_type(*steps.back(), "ByteLevel")) return false;
    if (steps.back()->value("add_prefix_space", Json(true)) != false) return false;
    return std::all_of(steps.begin(), steps.end() - 1, [](const Json* j) {
      const Json behavior = j->is_object() ? j->value("behavior", Json("")) : Json();
      return is_type(*j, "Digits") || (is_type(*j, "Split") && (behavior == "Isolated" || behavior == "Removed"));
    });
  }

  void read_byte_level() {
    for (int b = 0; b < 256; ++b)
      GT_REQUIRE(id_of(letter_of(static_cast<uint8_t>(b))) >= 0, Exit::kUsage, name_,
                 ": model.vocab: expected a piece for each of the 256 bytes, found none for byte ", b, " (",
                 letter_of(static_cast<uint8_t>(b)), "); a byte-level BPE is trained with ByteLevel.alphabet()");
    read_normalizer();
    read_pre_tokenizer();
    read_decoder();
  }

  // Returns false if the id or the piece is taken. `count`: of all pieces, which bounds the ids.
  bool add_piece(std::string piece, int64_t id, int64_t count) {
    const int64_t end = std::min(kMaxId, count + kMaxUnused);
    GT_REQUIRE(id >= 0 && id < end, Exit::kUsage, name_, ": piece \"", piece.substr(0, 100),
               "\": expected an id of 0 to ", end - 1, ", found ", id);
    const auto at = static_cast<size_t>(id);
    if (at >= out_.pieces.size()) out_.pieces.resize(at + 1);
    if (!out_.pieces[at].empty() || !ids_.emplace(piece, static_cast<int32_t>(id)).second) return false;
    out_.pieces[at] = std::move(piece);
    return true;
  }

  int32_t id_of(const std::string& piece) const {
    const auto at = ids_.find(piece);
    return at == ids_.end() ? -1 : at->second;
  }

  void read_merges() {
    std::unordered_set<uint64_t> pairs;
    out_.merges.reserve(text_.merges.size());
    const size_t prefix = out_.bpe.prefix.size();
    for (const auto& [left, right] : text_.merges) {
      const size_t rank = out_.merges.size();
      GT_REQUIRE(right.size() >= prefix, Exit::kUsage, name_, ": model.merges, merge ", rank,
                 ": expected a right piece of at least ", prefix, " bytes, found ", right.size());
      const BpeMerge m{id_of(left), id_of(right), id_of(left + right.substr(prefix))};
      GT_REQUIRE(m.left >= 0 && m.right >= 0 && m.result >= 0, Exit::kUsage, name_, ": model.merges, merge ", rank,
                 ": \"",
                 (m.left < 0    ? left
                  : m.right < 0 ? right
                                : left + right)
                     .substr(0, 100),
                 "\" is not a piece of the vocabulary");
      const bool added = pairs.insert(static_cast<uint64_t>(m.left) << 32 | static_cast<uint32_t>(m.right)).second;
      GT_REQUIRE(added, Exit::kUsage, name_, ": model.merges, merge ", rank, ": \"", left.substr(0, 100), "\" and \"",
                 right.substr(0, 100), "\" are merged earlier");
      out_.merges.push_back(m);
    }
  }

  void read_added() {
    const Json* list = root_.find("added_tokens");
    if (list == nullptr) return;
    GT_REQUIRE(list->is_array() && list->size() <= kMaxAdded, Exit::kUsage, name_,
               ": added_tokens: expected an array of at most ", kMaxAdded, ", found a ", list->type_name(), " of ",
               list->size());
    std::unordered_set<std::string> unique_texts;
    int64_t next = out_.model_pieces;
    for (const Json& j : *list) {
      const JsonFields f(j, cat(name_, ": added_tokens[", out_.added.size(), "]"));
      AddedToken t = read_added_token(f);
      GT_REQUIRE(unique_texts.insert(t.text).second, Exit::kUsage, f.where(), ": \"", t.text, "\" occurs twice");
      check_added_token(t, f, &next,
                        static_cast<int64_t>(std::max(text_.vocab.size(), out_.pieces.size()) + list->size()));
      out_.added.push_back(std::move(t));
    }
  }

  static AddedToken read_added_token(const JsonFields& f) {
    f.expect_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken t{.text = f.text("content")};
    t.single_word = f.flag("single_word", false);
    t.lstrip = f.flag("lstrip", false);
    t.rstrip = f.flag("rstrip", false);
    GT_REQUIRE(!t.text.empty() && t.text.size() <= kMaxAddedText, Exit::kUsage, f.where(),
               ".content: expected a text of 1 to ", kMaxAddedText, " bytes, found ", t.text.size());
    const Json& id = f.get("id");
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(kMaxId);
    GT_REQUIRE(fits, Exit::kUsage, f.where(), ".id: expected a number of 0 to ", kMaxId - 1, ", found ",
               id.dump().substr(0, 100));
    t.id = id.get<int32_t>();
    t.special = f.flag("special", false);
    t.normalized = f.flag("normalized", !t.special);
    return t;
  }

  // Hugging Face's library assigns ids of added tokens itself: those of the vocabulary, or in order after it.
  void check_added_token(const AddedToken& t, const JsonFields& f, int64_t* next, int64_t count) {
    const int32_t known = id_of(t.text);
    GT_REQUIRE(t.id == (known >= 0 ? known : *next), Exit::kUsage, f.where(), ": \"", t.text, "\" has id ", t.id,
               ", expected ", known >= 0 ? known : *next,
               known >= 0 ? ", its id in the vocabulary" : ", the next free one");
    if (known >= 0 && out_.blanks != BlankRule::kByteLevel) return;
    if (known >= 0) return require_own_text(t, f);
    GT_REQUIRE(add_piece(t.text, t.id, count), Exit::kUsage, f.where(), ": id ", t.id, " is another piece already");
    ++*next;
  }

  // Rejects a token whose text, read as a spelling of the vocabulary, stands for other bytes: one spelling would have
  // two meanings.
  static void require_own_text(const AddedToken& t, const JsonFields& f) {
    std::string bytes;
    GT_REQUIRE(!bytes_of(t.text, &bytes) || bytes == t.text, Exit::kUsage, f.where(), ": \"", t.text,
               "\" spells other bytes in the vocabulary, which is not supported");
  }

  void read_normalizer() {
    for_each_step(root_.find("normalizer"), cat(name_, ": normalizer"), "normalizers", [&](const JsonFields& f) {
      if (f.text("type") != "NFC") f.refuse_type("none or NFC");
      f.expect_keys({"type"});
      out_.nfc = true;
    });
  }

  void read_pre_tokenizer() {
    bool bytes = false;  // text consists of bytes from here on
    for_each_step(root_.find("pre_tokenizer"), cat(name_, ": pre_tokenizer"), "pretokenizers",
                  [&](const JsonFields& f) {
                    GT_REQUIRE(!bytes, Exit::kUsage, f.where(), ": a step behind ByteLevel, which is not supported");
                    if (f.text("type") == "Split") return read_split(f);
                    if (f.text("type") == "Digits") {
                      f.expect_keys({"type", "individual_digits"});
                      out_.splits.push_back({.pattern = f.flag("individual_digits", false) ? kDigit : kDigits});
                      return;
                    }
                    if (f.text("type") != "ByteLevel") f.refuse_type("Split, Digits or ByteLevel");
                    f.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
                    f.expect_flag("add_prefix_space", false, true);
                    if (f.flag("use_regex", true)) out_.splits.push_back({.pattern = kByteLevelPattern});
                    bytes = true;
                  });
  }

  void read_split(const JsonFields& f) {
    f.expect_keys({"type", "pattern", "behavior", "invert"});
    JsonPattern pattern = read_pattern(f);
    SplitStep s;
    s.regex = pattern.regex;
    s.pattern = std::move(pattern.text);
    const std::string& behavior = f.text("behavior");
    s.removes = behavior == "Removed";
    GT_REQUIRE(s.removes || behavior == "Isolated", Exit::kUsage, f.where(),
               ".behavior: expected Isolated or Removed, found \"", behavior.substr(0, 100),
               "\", which is not supported");
    s.invert = f.flag("invert", false);
    out_.splits.push_back(std::move(s));
  }

  void read_decoder() {
    int steps = 0;
    for_each_step(root_.find("decoder"), cat(name_, ": decoder"), "decoders", [&](const JsonFields& f) {
      if (f.text("type") != "ByteLevel") f.refuse_type("ByteLevel");
      ++steps;
    });
    GT_REQUIRE(steps == 1, Exit::kUsage, name_, ": decoder: expected ByteLevel, found ", steps, " steps");
  }

  void read_template() {
    for_each_step(root_.find("post_processor"), cat(name_, ": post_processor"), "processors", [&](const JsonFields& f) {
      const std::string& type = f.text("type");
      if (type == "ByteLevel") return;  // offsets
      if (type == "RobertaProcessing" || type == "BertProcessing") return read_pair(f);
      if (type != "TemplateProcessing")
        f.refuse_type("ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing");
      f.expect_keys({"type", "single", "pair", "special_tokens"});
      read_single(f);
    });
  }

  int32_t template_id(const Json& id, const std::string& where) const {
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < out_.pieces.size();
    GT_REQUIRE(fits, Exit::kUsage, where, ": expected an id of 0 to ", out_.pieces.size() - 1, ", found ",
               id.dump().substr(0, 100));
    return id.get<int32_t>();
  }

  // "cls" before a text and "sep" after it, each a piece and its id. They stand outside of those read before.
  void read_pair(const JsonFields& f) {
    f.expect_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    for (const char* key : {"cls", "sep"}) {
      const Json& token = f.list(key);
      GT_REQUIRE(token.size() == 2, Exit::kUsage, f.where(), ".", key, ": expected a piece and its id, found ",
                 token.size(), " values");
      const int32_t id = template_id(token[1], cat(f.where(), ".", key));
      if (key[0] == 'c')
        out_.before.insert(out_.before.begin(), id);
      else
        out_.after.push_back(id);
    }
  }

  // Special tokens before and after the text A. They stand outside of those read before.
  void read_single(const JsonFields& f) {
    const Json& single = f.list("single");
    GT_REQUIRE(single.size() <= kMaxSteps, Exit::kUsage, f.where(), ".single: expected at most ", kMaxSteps,
               " parts, found ", single.size());
    const JsonFields tokens = f.object("special_tokens");
    int texts = 0;
    std::vector<int32_t> before;
    for (size_t k = 0; k < single.size(); ++k) {
      const JsonFields part(single[k], cat(f.where(), ".single[", k, "]"));
      part.expect_keys({"SpecialToken", "Sequence"});
      if (part.find("Sequence") != nullptr) {
        ++texts;
        continue;
      }
      const JsonFields token = tokens.object(part.object("SpecialToken").text("id").c_str());
      for (const Json& id : token.list("ids"))
        (texts == 0 ? before : out_.after).push_back(template_id(id, token.where() + ".ids"));
    }
    out_.before.insert(out_.before.begin(), before.begin(), before.end());
    GT_REQUIRE(texts == 1, Exit::kUsage, f.where(), ".single: expected one Sequence, found ", texts);
  }

  static constexpr const char* kBlank = "\xE2\x96\x81";
  // GPT-2's pattern, built into the ByteLevel step.
  static constexpr const char* kByteLevelPattern =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

  const std::string& name_;
  TokenizerText text_;
  const JsonFields root_;
  TokenizerJson out_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace

std::string byte_piece(uint8_t byte) {
  constexpr const char* kDigits16 = "0123456789ABCDEF";
  return cat("<0x", kDigits16[byte >> 4], kDigits16[byte & 15], ">");
}

TokenizerJson read_tokenizer_json(std::string_view text, const std::string& name) {
  return Builder(parse_tokenizer_text(text, name), name).build();
}

TokenizerJson read_tokens_beside(std::string_view text, const std::vector<std::string>& pieces,
                                 const std::vector<bool>& normal, const std::string& name, std::string* unknown) {
  return Builder(parse_tokenizer_text(text, name), name).build_beside(pieces, normal, unknown);
}

}  // namespace gt
