#include "data/bpe/tokenizer_text.h"

#include <algorithm>
#include <cstdlib>

#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"
#include "kernels/core/file_kind.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxPieces = 2'000'000, kMaxMerges = 2'000'000, kMaxPiece = 16 << 10;
constexpr size_t kMaxValues = 1'000'000;  // excluding vocabulary and merges

// The value of a number as serde_json, which Hugging Face's library uses, reads it: up to one unit in the last place
// beside the nearest one. The order of equal sums of scores depends on it.
double fraction_of(const std::string& text) {
  constexpr int kMostExponent = 308;
  const bool negative = text.starts_with('-');
  uint64_t digits = 0;
  int exponent = 0;
  bool behind_point = false, full = false;
  size_t at = negative ? 1 : 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      behind_point = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(text[at] - '0');
    full = full || digits > (UINT64_MAX - digit) / 10;  // further digits are left out
    if (!full) digits = 10 * digits + digit;
    exponent += full ? (behind_point ? 0 : 1) : (behind_point ? -1 : 0);
  }
  if (at < text.size()) exponent += std::clamp(std::atoi(text.c_str() + at + 1), -1'000'000, 1'000'000);
  auto value = static_cast<double>(digits);
  for (; exponent < -kMostExponent && value != 0; exponent += kMostExponent) value /= 1e308;
  const double power = std::strtod(cat("1e", std::min(std::abs(exponent), kMostExponent)).c_str(), nullptr);
  value = exponent < 0 ? value / power : value * power;
  return negative ? -value : value;
}

class Reader final : public JsonEvents {
 public:
  Reader(const std::string& name, TokenizerText* out) : name_(name), out_(out) {}

  void null() override { value(nullptr, "null"); }
  void boolean(bool b) override { value(b, "a boolean"); }
  void number(std::string_view text) override {
    const JsonNumber n = json_number_of(text);
    if (!n.is_unsigned && !n.is_signed) return value(fraction_of(std::string(text)), "a fraction");
    if (part_ == Part::kVocab)
      return piece(n.is_signed ? n.negative : static_cast<int64_t>(std::min<uint64_t>(n.magnitude, INT64_MAX)));
    value(n.is_signed ? Json(n.negative) : Json(n.magnitude), "a number");
  }
  void string(std::string&& s) override {
    if (part_ == Part::kMerge) return part_of_merge(s);
    if (part_ == Part::kMerges) return merge_line(s);
    value(std::move(s), "a string");
  }
  void key(std::string&& k) override { key_ = std::move(k); }
  void open(bool object) override {
    if (object) return open_object();
    if (part_ == Part::kMerges) {
      part_ = Part::kMerge;
      pair_.clear();
      return;
    }
    if (in_model() && key_ == "merges" && part_ == Part::kRest) return begin(Part::kMerges, &has_merges_);
    open(Json::array(), "an array");
  }
  void close() override {
    if (part_ == Part::kMerge) {
      GT_REQUIRE(pair_.size() == 2, Exit::kUsage, name_, ": model.merges, merge ", out_->merges.size(),
                 ": expected two pieces, found ", pair_.size());
      merge(std::move(pair_[0]), std::move(pair_[1]));
      part_ = Part::kMerges;
    } else if (part_ != Part::kRest) {
      part_ = Part::kRest;
    } else {
      open_.pop_back();
    }
  }

 private:
  enum class Part { kRest, kVocab, kMerges, kMerge };

  bool in_model() const { return open_.size() == 2 && open_.back() == model_; }

  void open_object() {
    if (in_model() && key_ == "vocab" && part_ == Part::kRest) return begin(Part::kVocab, &has_vocab_);
    open(Json::object(), "an object");
    if (open_.size() == 2 && key_ == "model") model_ = open_.back();
  }

  void begin(Part part, bool* present) {
    GT_REQUIRE(!*present, Exit::kUsage, name_, ": model.", key_, ": occurs twice");
    *present = true;
    part_ = part;
  }

  void piece(int64_t id) {
    GT_REQUIRE(out_->vocab.size() < kMaxPieces, Exit::kUsage, name_, ": model.vocab: expected at most ", kMaxPieces,
               " pieces, found more");
    GT_REQUIRE(!key_.empty() && key_.size() <= kMaxPiece, Exit::kUsage, name_, ": model.vocab, id ", id,
               ": expected a piece of 1 to ", kMaxPiece, " bytes, found ", key_.size());
    out_->vocab.emplace_back(std::move(key_), id);
  }

  void merge_line(const std::string& s) {
    const size_t blank = s.find(' ');
    GT_REQUIRE(blank != std::string::npos && s.find(' ', blank + 1) == std::string::npos, Exit::kUsage, name_,
               ": model.merges, merge ", out_->merges.size(),
               ": expected two pieces with a blank between them, found \"", s.substr(0, 100), "\"");
    merge(s.substr(0, blank), s.substr(blank + 1));
  }

  void part_of_merge(std::string& s) {
    GT_REQUIRE(pair_.size() < 2, Exit::kUsage, name_, ": model.merges, merge ", out_->merges.size(),
               ": expected two pieces, found more");
    pair_.push_back(std::move(s));
  }

  void merge(std::string left, std::string right) {
    GT_REQUIRE(out_->merges.size() < kMaxMerges, Exit::kUsage, name_, ": model.merges: expected at most ", kMaxMerges,
               ", found more");
    out_->merges.emplace_back(std::move(left), std::move(right));
  }

  void value(Json v, const char* what) {
    GT_REQUIRE(part_ == Part::kRest, Exit::kUsage, name_, ": model.",
               part_ == Part::kVocab ? "vocab: expected ids" : "merges: expected pairs of pieces", ", found ", what);
    put(std::move(v));
  }

  void open(Json v, const char* what) {
    GT_REQUIRE(part_ == Part::kRest, Exit::kUsage, name_, ": model.",
               part_ == Part::kVocab ? "vocab: expected ids" : "merges: expected pairs of pieces", ", found ", what);
    open_.push_back(put(std::move(v)));
  }

  Json* put(Json v) {
    GT_REQUIRE(++values_ <= kMaxValues, Exit::kUsage, name_, ": expected at most ", kMaxValues,
               " values beside the vocabulary and the merges of a BPE model, found more");
    if (open_.empty()) {
      out_->rest = std::move(v);
      return &out_->rest;
    }
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(v));
    const auto [at, added] = open_.back()->emplace(key_, std::move(v));
    GT_CHECK(added, "a key twice: ", key_);
    return &*at;
  }

  const std::string& name_;
  TokenizerText* out_;
  std::vector<Json*> open_;  // objects and arrays around the current value
  const Json* model_ = nullptr;
  Part part_ = Part::kRest;
  bool has_vocab_ = false, has_merges_ = false;
  std::string key_;
  std::vector<std::string> pair_;
  size_t values_ = 0;
};

}  // namespace

TokenizerText parse_tokenizer_text(std::string_view text, const std::string& name) {
  TokenizerText out;
  Reader reader(name, &out);
  const std::string kind = text.substr(0, kKindBytes).find('{') < 16 ? "" : other_kind(text.substr(0, kKindBytes));
  GT_REQUIRE(kind.empty(), Exit::kUsage, name, ": expected a tokenizer.json; it ", kind);
  read_json(text, name, {.bytes = kMaxTokenizerFile}, reader);
  GT_REQUIRE(out.rest.is_object(), Exit::kUsage, name, ": expected a JSON object, found a ", out.rest.type_name());
  return out;
}

}  // namespace gt
