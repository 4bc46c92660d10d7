// Translation of Oniguruma patterns (syntax Ruby, UTF-8) to PCRE2.
#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "data/bpe/regex.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

// Names of \p{..} with the same meaning in both engines. Unassigned characters (C, Cn) depend on the Unicode version.
constexpr std::array<std::string_view, 45> kProperties{
    "L",        "Lu",     "Ll",    "Lt",    "Lm",       "Lo",     "M",    "Mn",     "Mc",
    "Me",       "N",      "Nd",    "Nl",    "No",       "P",      "Pc",   "Pd",     "Ps",
    "Pe",       "Pi",     "Pf",    "Po",    "S",        "Sm",     "Sc",   "Sk",     "So",
    "Z",        "Zs",     "Zl",    "Zp",    "Cc",       "Cf",     "Co",   "Han",    "Hiragana",
    "Katakana", "Hangul", "Latin", "Greek", "Cyrillic", "Arabic", "Thai", "Hebrew", "Devanagari"};
constexpr int64_t kMaxRepeat = 1000;

class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where) : p_(pattern), where_(where) {}

  std::string run() {
    while (at_ < p_.size()) step();
    GT_REQUIRE(ignores_case_.empty(), Exit::kUsage, where_, ": a group is not closed");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(Exit::kUsage, where_, ": ", what, " at byte ", at_,
         " of the pattern is not supported; \\s \\S \\d \\r \\n \\t ",
         "\\p{..}, classes, groups (?: (?i: (?= (?! and repetitions are");
  }
  bool starts(std::string_view s) const { return std::string_view(p_).substr(at_).starts_with(s); }
  void take(size_t n) {
    out_.append(p_, at_, n);
    at_ += n;
  }
  bool ignoring_case() const { return !ignores_case_.empty() && ignores_case_.back(); }

  void step() {
    const char c = p_[at_];
    switch (c) {
      case '\\': return escape();
      case '[': return set();
      case '(': return group();
      case ')': return close();
      case '|': return take(1);
      case '?':
      case '*':
      case '+': return repeat();
      case '{': return interval();
      case '.':
      case '^':
      case '$': refuse(cat("\"", c, "\""));
      default: return take(1);
    }
  }

  void group() {
    const bool ignores = starts("(?i:");
    bool known = !starts("(?");
    size_t size = 1;
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!"})
      if (starts(opening)) known = true, size = opening.size();
    if (!known || starts("(*")) refuse(cat("\"", p_.substr(at_, 4), "\""));
    ignores_case_.push_back(ignores || ignoring_case());
    take(size);
  }

  void close() {
    if (ignores_case_.empty()) refuse("\")\" without a group");
    ignores_case_.pop_back();
    take(1);
  }

  void repeat() {
    take(1);
    if (at_ < p_.size() && (p_[at_] == '?' || p_[at_] == '+')) take(1);
    if (at_ < p_.size() && (p_[at_] == '?' || p_[at_] == '*' || p_[at_] == '+' || p_[at_] == '{'))
      refuse("a repetition of a repetition");
  }

  // {n}, {n,} and {n,m}. A following + repeats in Oniguruma and is possessive in PCRE2; likewise ? after {n}.
  void interval() {
    const size_t end = p_.find('}', at_);
    const std::string inside = end == std::string::npos ? "" : p_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = inside.find(',');
    const std::string low = inside.substr(0, comma), high = comma == std::string::npos ? "" : inside.substr(comma + 1);
    const auto number = [](const std::string& s) {
      return !s.empty() && s.size() <= 4 && std::all_of(s.begin(), s.end(), ::isdigit) && std::stol(s) <= kMaxRepeat;
    };
    if (!number(low) || !(high.empty() || (number(high) && std::stol(low) <= std::stol(high))))
      refuse(cat("\"", p_.substr(at_, 12), "\": a repetition of more than ", kMaxRepeat, ", or none,"));
    take(end + 1 - at_);
    if (at_ < p_.size() && (p_[at_] == '?' || p_[at_] == '*' || p_[at_] == '+' || p_[at_] == '{'))
      refuse("a repetition of a repetition");
  }

  // \s is White_Space, as in Oniguruma; PCRE2's \s also matches U+180E.
  void escape() {
    const char c = at_ + 1 < p_.size() ? p_[at_ + 1] : '\0';
    if (c == 'p' || c == 'P') return property();
    if (ignoring_case() && std::isalnum(static_cast<unsigned char>(c))) refuse(cat("\"\\", c, "\" in a group (?i:"));
    if (c == 's' || c == 'S' || c == 'd') {
      out_ += c == 's' ? "\\p{White_Space}" : c == 'S' ? "\\P{White_Space}" : "\\p{Nd}";
      at_ += 2;
      return;
    }
    const bool punctuation = c > ' ' && c < 0x7F && !std::isalnum(static_cast<unsigned char>(c));
    if (c != 'r' && c != 'n' && c != 't' && !punctuation) refuse(cat("\"\\", std::string(c != '\0', c), "\""));
    take(2);
  }

  void property() {
    const size_t end = p_.find('}', at_);
    const bool braces = at_ + 2 < p_.size() && p_[at_ + 2] == '{' && end != std::string::npos;
    const std::string name = braces ? p_.substr(at_ + 3, end - at_ - 3) : "";
    if (ignoring_case() || std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end())
      refuse(cat("\"", p_.substr(at_, std::min<size_t>(braces ? end + 1 - at_ : 3, 40)), "\""));
    take(end + 1 - at_);
  }

  // Character class inside a group (?i:.
  void letters() {
    const size_t end = std::min(p_.find(']', at_), p_.size());
    const auto is_letter = [](unsigned char c) { return c < 0x80 && std::isalpha(c); };
    if (end == p_.size() || end == at_ + 1 ||
        !std::all_of(p_.begin() + static_cast<ptrdiff_t>(at_) + 1, p_.begin() + static_cast<ptrdiff_t>(end), is_letter))
      refuse("a class of more than ASCII letters in a group (?i:");
    take(end + 1 - at_);
  }

  void set() {
    if (ignoring_case()) return letters();
    take(1);
    if (at_ < p_.size() && p_[at_] == '^') take(1);
    if (at_ < p_.size() && p_[at_] == ']') refuse("an empty class");
    while (at_ < p_.size() && p_[at_] != ']') {
      if (p_[at_] == '[' || starts("&&")) refuse("a class in a class");
      if (p_[at_] == '\\')
        escape();
      else
        take(1);
    }
    GT_REQUIRE(at_ < p_.size(), Exit::kUsage, where_, ": a class is not closed");
    take(1);
  }

  const std::string& p_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
  std::vector<bool> ignores_case_;  // of the open groups
};

}  // namespace

std::string pcre2_pattern(const std::string& pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace gt
