#include "data/hf/word_splitter.h"

#include <optional>

#include "data/bpe/added_tokens.h"
#include "data/bpe/byte_alphabet.h"
#include "data/bpe/regex.h"
#include "data/hf/characters.h"
#include "data/hf/json_fields.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::json;
using Emit = std::function<void(std::string_view)>;
using Matches = std::function<bool(char32_t c, std::string_view bytes)>;

// GPT-2's pattern, built into the ByteLevel step.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

SplitBehavior behavior_of(const JsonFields& f, SplitBehavior otherwise) {
  static const std::vector<std::pair<std::string, SplitBehavior>> kNames{
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"Contiguous", SplitBehavior::kContiguous},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext}};
  if (f.find("behavior") == nullptr) return otherwise;
  const std::string& name = f.text("behavior");
  for (const auto& [known, behavior] : kNames)
    if (name == known) return behavior;
  fail(Exit::kUsage, f.where(), ".behavior: expected Isolated, Removed, Contiguous, MergedWithPrevious or ",
       "MergedWithNext, found \"", name.substr(0, 100), "\", which is not supported");
}

// Joins the spans of a text, each a match or not, in order and without gaps, as the behavior defines.
class Joiner {
 public:
  Joiner(std::string_view text, SplitBehavior behavior, const Emit& emit)
      : text_(text), behavior_(behavior), emit_(emit) {}

  void add(size_t begin, size_t end, bool match) {
    if (begin == end || (behavior_ == SplitBehavior::kRemoved && match)) return flush();
    if (!extends(match)) flush();
    if (!open_) begin_ = begin;
    end_ = end;
    open_ = true;
    match_ = match;
  }
  void flush() {
    if (open_) emit_(text_.substr(begin_, end_ - begin_));
    open_ = false;
    match_ = false;
  }

 private:
  // Whether the next span belongs to the open one.
  bool extends(bool match) const {
    if (!open_) return false;
    switch (behavior_) {
      case SplitBehavior::kContiguous: return match == match_;
      case SplitBehavior::kMergedWithPrevious: return match && !match_;
      case SplitBehavior::kMergedWithNext: return !match && match_;
      case SplitBehavior::kIsolated:
      case SplitBehavior::kRemoved: break;
    }
    return false;
  }

  const std::string_view text_;
  const SplitBehavior behavior_;
  const Emit& emit_;
  size_t begin_ = 0, end_ = 0;
  bool open_ = false, match_ = false;
};

void split_by_characters(std::string_view text, SplitBehavior behavior, const Matches& matches, const Emit& emit) {
  Joiner joiner(text, behavior, emit);
  size_t between = 0;  // begin of the text since the last match
  for (size_t at = 0; at < text.size();) {
    char32_t c = 0;
    const size_t n = first_character(text.substr(at), &c);
    if (matches(c, text.substr(at, n))) {
      if (between < at) joiner.add(between, at, false);
      joiner.add(at, at + n, true);
      between = at + n;
    }
    at += n;
  }
  if (between < text.size()) joiner.add(between, text.size(), false);
  joiner.flush();
}

}  // namespace

// Splits pieces of one text, which it may change. `scratch` holds changed text until the next piece.
class WordSplitter::Step {
 public:
  struct State {
    std::optional<Regex::Finder> finder;
    std::string scratch;
  };
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step() = default;
  // `first`: the piece begins the source.
  virtual void split(std::string_view piece, bool first, State* state, const Emit& emit) const = 0;
};

namespace {

class CharacterStep final : public WordSplitter::Step {
 public:
  CharacterStep(SplitBehavior behavior, Matches matches) : behavior_(behavior), matches_(std::move(matches)) {}
  void split(std::string_view piece, bool, State*, const Emit& emit) const override {
    split_by_characters(piece, behavior_, matches_, emit);
  }

 private:
  const SplitBehavior behavior_;
  const Matches matches_;
};

class PatternStep final : public WordSplitter::Step {
 public:
  PatternStep(const JsonPattern& pattern, SplitBehavior behavior, bool invert, const std::string& where)
      : regex_(pattern.text, !pattern.regex, where), behavior_(behavior), invert_(invert) {}
  void split(std::string_view piece, bool, State* state, const Emit& emit) const override {
    if (!state->finder) state->finder.emplace(regex_);
    Joiner joiner(piece, behavior_, emit);
    size_t at = 0;
    for (size_t begin = 0, end = 0; at < piece.size() && state->finder->find(piece, at, &begin, &end); at = end) {
      if (at < begin) joiner.add(at, begin, invert_);
      joiner.add(begin, end, !invert_);
    }
    if (at < piece.size()) joiner.add(at, piece.size(), invert_);
    joiner.flush();
  }

 private:
  const Regex regex_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// Words of letters and digits, and of other signs.
class WhitespaceStep final : public WordSplitter::Step {
 public:
  void split(std::string_view piece, bool, State*, const Emit& emit) const override {
    enum class Kind : uint8_t { kSpace, kWord, kSign } before = Kind::kSpace;
    size_t begin = 0;
    for (size_t at = 0; at < piece.size();) {
      char32_t c = 0;
      const size_t n = first_character(piece.substr(at), &c);
      const std::string_view bytes = piece.substr(at, n);
      const Kind kind = begins_with_word(bytes) ? Kind::kWord : begins_with_space(bytes) ? Kind::kSpace : Kind::kSign;
      if (kind != before) {
        if (before != Kind::kSpace) emit(piece.substr(begin, at - begin));
        begin = at;
      }
      before = kind;
      at += n;
    }
    if (before != Kind::kSpace) emit(piece.substr(begin));
  }
};

// Spells every byte as a character (data/bpe/byte_alphabet.h).
class ByteLevelStep final : public WordSplitter::Step {
 public:
  explicit ByteLevelStep(const JsonFields& f) : prefix_(f.flag("add_prefix_space", true)) {
    f.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (f.flag("use_regex", true)) regex_.emplace(kGpt2Pattern, false, f.where());
    for (size_t b = 0; b < letters_.size(); ++b) letters_[b] = letter_of(static_cast<uint8_t>(b));
  }
  bool prefix() const { return prefix_; }
  void split(std::string_view piece, bool, State* state, const Emit& emit) const override {
    std::string with_blank;
    if (prefix_ && !piece.starts_with(' ')) {
      with_blank.assign(" ").append(piece);
      piece = with_blank;
    }
    const auto spell = [&](std::string_view word) {
      state->scratch.clear();
      for (const char b : word) state->scratch += letters_[static_cast<uint8_t>(b)];
      emit(state->scratch);
    };
    if (!regex_) return spell(piece);
    if (!state->finder) state->finder.emplace(*regex_);
    size_t at = 0;
    for (size_t begin = 0, end = 0; at < piece.size() && state->finder->find(piece, at, &begin, &end); at = end) {
      if (at < begin) spell(piece.substr(at, begin - at));
      spell(piece.substr(begin, end - begin));
    }
    if (at < piece.size()) spell(piece.substr(at));
  }

 private:
  const bool prefix_;
  std::optional<Regex> regex_;
  std::vector<std::string> letters_{256};
};

// Replaces blanks by a character, puts one more before, and splits before each.
class MetaspaceStep final : public WordSplitter::Step {
 public:
  explicit MetaspaceStep(const JsonFields& f) : blank_(f.text("replacement")), splits_(f.flag("split", true)) {
    f.expect_keys({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    char32_t c = 0;
    GT_REQUIRE(!blank_.empty() && first_character(blank_, &c) == blank_.size(), Exit::kUsage, f.where(),
               ".replacement: expected one character, found ", blank_.size(), " bytes");
    const std::string scheme =
        f.text_or("prepend_scheme", f.flag("add_prefix_space", true) ? std::string("always") : "never");
    prepend_ = scheme == "always"  ? Prepend::kAlways
               : scheme == "first" ? Prepend::kFirst
               : scheme == "never" ? Prepend::kNever
                                   : Prepend::kUnknown;
    GT_REQUIRE(prepend_ != Prepend::kUnknown, Exit::kUsage, f.where(),
               ".prepend_scheme: expected always, first or never, found \"", scheme.substr(0, 100), '"');
    GT_REQUIRE(f.flag("add_prefix_space", true) || prepend_ == Prepend::kNever, Exit::kUsage, f.where(),
               ".add_prefix_space: expected true with prepend_scheme ", scheme, ", found false");
  }
  bool of_first() const { return prepend_ == Prepend::kFirst; }
  void split(std::string_view piece, bool first, State* state, const Emit& emit) const override {
    std::string& text = state->scratch;
    text.clear();
    const bool before = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && first);
    if (before && !piece.starts_with(' ') && !piece.starts_with(blank_)) text = blank_;
    for (const char c : piece) c == ' ' ? text += blank_ : text += c;
    if (!splits_) return emit(text);
    char32_t blank = 0;
    first_character(blank_, &blank);
    split_by_characters(
        text, SplitBehavior::kMergedWithNext, [blank](char32_t c, std::string_view) { return c == blank; }, emit);
  }

 private:
  enum class Prepend : uint8_t { kAlways, kFirst, kNever, kUnknown };
  const std::string blank_;
  const bool splits_;
  Prepend prepend_ = Prepend::kUnknown;
};

bool is_space(char32_t, std::string_view bytes) { return begins_with_space(bytes); }
bool is_punctuation(char32_t c, std::string_view) { return is_hf_punctuation(c); }
bool is_number(char32_t c, std::string_view) { return is_hf_number(c); }

std::unique_ptr<const WordSplitter::Step> by_characters(SplitBehavior behavior, Matches matches) {
  return std::make_unique<CharacterStep>(behavior, std::move(matches));
}

std::unique_ptr<const WordSplitter::Step> split_step(const JsonFields& f) {
  f.expect_keys({"type", "pattern", "behavior", "invert"});
  f.get("behavior");
  const SplitBehavior behavior = behavior_of(f, SplitBehavior::kIsolated);
  return std::make_unique<PatternStep>(read_pattern(f), behavior, f.flag("invert", false), f.where());
}

std::unique_ptr<const WordSplitter::Step> delimiter_step(const JsonFields& f) {
  f.expect_keys({"type", "delimiter"});
  const std::string& text = f.text("delimiter");
  char32_t delimiter = 0;
  GT_REQUIRE(!text.empty() && first_character(text, &delimiter) == text.size(), Exit::kUsage, f.where(),
             ".delimiter: expected one character, found ", text.size(), " bytes");
  return by_characters(SplitBehavior::kRemoved, [delimiter](char32_t c, std::string_view) { return c == delimiter; });
}

// Any step but ByteLevel and Metaspace.
std::unique_ptr<const WordSplitter::Step> other_step(const JsonFields& f) {
  const std::string& type = f.text("type");
  if (type == "Split") return split_step(f);
  if (type == "CharDelimiterSplit") return delimiter_step(f);
  if (type == "Digits") {
    f.expect_keys({"type", "individual_digits"});
    const bool one = f.flag("individual_digits", false);
    return by_characters(one ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, is_number);
  }
  if (type == "Punctuation") {
    f.expect_keys({"type", "behavior"});
    return by_characters(behavior_of(f, SplitBehavior::kIsolated), is_punctuation);
  }
  f.expect_keys({"type"});
  if (type == "Whitespace") return std::make_unique<WhitespaceStep>();
  if (type == "WhitespaceSplit") return by_characters(SplitBehavior::kRemoved, is_space);
  f.refuse_type(
      "ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer or "
      "CharDelimiterSplit");
}

}  // namespace

// Splits one text.
class WordSplitter::Run {
 public:
  Run(const WordSplitter& splitter, const std::function<void(std::string_view)>& act)
      : splitter_(splitter), states_(splitter.steps_.size()), act_(act) {}

  void split(size_t step, std::string_view piece, bool first) {
    if (piece.empty()) return;
    if (step == states_.size()) return act_(piece);
    bool begins = first;  // the next piece begins the source
    const char* const begin = piece.data();
    splitter_.steps_[step]->split(piece, first, &states_[step], [&](std::string_view part) {
      const bool inside = part.data() >= begin && part.data() < begin + piece.size();
      split(step + 1, part, begins && (!inside || part.data() == begin));
      begins = false;
    });
  }

 private:
  const WordSplitter& splitter_;
  std::vector<Step::State> states_;
  const std::function<void(std::string_view)>& act_;
};

WordSplitter::WordSplitter() = default;
WordSplitter::~WordSplitter() = default;
WordSplitter::WordSplitter(WordSplitter&&) noexcept = default;
WordSplitter& WordSplitter::operator=(WordSplitter&&) noexcept = default;

WordSplitter::WordSplitter(const Json* j, const std::string& where, bool prepends) {
  for_each_step(j, where, "pretokenizers", [&](const JsonFields& f) {
    const std::string& type = f.text("type");
    if (type == "ByteLevel") {
      auto step = std::make_unique<ByteLevelStep>(f);
      prefix_space_ = std::max(prefix_space_, step->prefix() ? 1 : 0);
      prepends |= step->prefix();
      steps_.push_back(std::move(step));
    } else if (type == "Metaspace") {
      auto step = std::make_unique<MetaspaceStep>(f);
      GT_REQUIRE(!step->of_first() || !prepends, Exit::kUsage, f.where(),
                 ".prepend_scheme: first behind a step that prepends a text, which is not supported");
      prepends = true;
      steps_.push_back(std::move(step));
    } else if (type == "BertPreTokenizer") {
      f.expect_keys({"type"});
      steps_.push_back(by_characters(SplitBehavior::kRemoved, is_space));
      steps_.push_back(by_characters(SplitBehavior::kIsolated, is_punctuation));
    } else {
      steps_.push_back(other_step(f));
    }
  });
}

void WordSplitter::for_each_word(std::string_view text, bool first,
                                 const std::function<void(std::string_view)>& act) const {
  Run(*this, act).split(0, text, first);
}

}  // namespace gt
