#include "data/bpe/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "kernels/core/check.h"

namespace gt {
namespace {

// Attempts to match: each with four times the steps at a start of the one before, at a quarter of the starts, and the
// clock is read in between. Patterns in use need the first alone.
constexpr uint32_t kFirstSteps = 2'000, kMaxSteps = 10'000'000, kAttempts = 8;
constexpr size_t kFirstStarts = 4096;
constexpr size_t starts_of(size_t attempt) { return std::max<size_t>(1, kFirstStarts >> (2 * attempt)); }
constexpr int kFindsPerCheck = 512;
constexpr uint32_t kMaxDepth = 100'000, kMaxHeapKiB = 64 << 10, kMaxNesting = 32;
constexpr size_t kMaxPattern = 16 << 10;

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

std::string message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR bytes(std::string_view s) { return reinterpret_cast<PCRE2_SPTR>(s.data()); }

}  // namespace

struct Regex::Impl {
  Impl(const std::string& pattern, std::string name, TimeLimit limit)
      : where(std::move(name)),
        budget(cat(where, ": the pattern \"", pattern.substr(0, 200),
                   "\" is too slow on this text: it is broken or hostile; simplify it, or use another tokenizer"),
               limit) {}
  Owned<pcre2_code> code;
  std::string where;
  TimeBudget budget;
};

Regex::Regex(const std::string& pattern, bool literal, const std::string& where, TimeLimit limit)
    : impl_(new Impl(pattern, where, limit)) {
  const std::string text = literal ? pattern : pcre2_pattern(pattern, where);
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  GT_CHECK(context != nullptr, "out of memory");
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  pcre2_set_max_pattern_length(context.get(), kMaxPattern);
  const uint32_t options = PCRE2_USE_OFFSET_LIMIT | (literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP);
  int error = 0;
  PCRE2_SIZE at = 0;
  impl_->code.reset(pcre2_compile(bytes(text), text.size(), options, &error, &at, context.get()));
  GT_REQUIRE(impl_->code != nullptr, Exit::kUsage, where, ": the pattern is refused: ", message(error), " (at byte ",
             at, " of ", text.substr(0, 200), ")");
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  GT_REQUIRE(matches_nothing == 0, Exit::kUsage, where, ": the pattern matches the empty text, which is not supported");
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter matches the same
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

struct Regex::Finder::Impl {
  explicit Impl(Regex::Impl& r) : regex(r), data(pcre2_match_data_create(1, nullptr)), meter(r.budget) {
    GT_CHECK(data != nullptr, "out of memory");
    uint32_t steps = kFirstSteps;
    for (auto& attempt : attempts) {
      attempt.reset(pcre2_match_context_create(nullptr));
      GT_CHECK(attempt != nullptr, "out of memory");
      pcre2_set_match_limit(attempt.get(), &attempt == &attempts.back() ? kMaxSteps : steps);
      pcre2_set_depth_limit(attempt.get(), kMaxDepth);
      pcre2_set_heap_limit(attempt.get(), kMaxHeapKiB);
      steps *= 4;
    }
  }
  // Matches at the first starts from `from` on that an attempt without too many steps allows; `end`: past them.
  int match(std::string_view text, size_t from, size_t* end) {
    int found = PCRE2_ERROR_MATCHLIMIT;
    for (size_t k = 0; k < kAttempts && found == PCRE2_ERROR_MATCHLIMIT; ++k) {
      if (k > 0) check();
      *end = from + starts_of(k);
      pcre2_match_context* limits = attempts[k].get();
      pcre2_set_offset_limit(limits, *end - 1);
      const auto match = [&](uint32_t options) {
        return pcre2_match(regex.code.get(), bytes(text), text.size(), from, options, data.get(), limits);
      };
      found = match(PCRE2_NO_UTF_CHECK);
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    }
    return found;
  }
  // Reads the clock.
  void check() {
    meter.check(searched);
    searched = 0;
    finds = 0;
  }
  Regex::Impl& regex;
  Owned<pcre2_match_data> data;
  std::array<Owned<pcre2_match_context>, kAttempts> attempts;  // limits of each
  TimeBudget::Meter meter;
  size_t searched = 0;  // bytes since the last check
  int finds = 0;
};

Regex::Finder::Finder(const Regex& regex) : impl_(new Impl(*regex.impl_)) {}
Regex::Finder::~Finder() = default;
Regex::Finder::Finder(Finder&&) noexcept = default;

bool Regex::Finder::find(std::string_view text, size_t from, size_t* begin, size_t* end) {
  const Regex::Impl& r = impl_->regex;
  if (++impl_->finds == kFindsPerCheck) impl_->check();
  size_t at = from, tried = from;
  int found = impl_->match(text, at, &tried);
  while (found == PCRE2_ERROR_NOMATCH && tried < text.size()) {
    impl_->searched += tried - at;
    impl_->check();
    for (at = tried; at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80;) ++at;
    found = impl_->match(text, at, &tried);
  }
  if (found == PCRE2_ERROR_NOMATCH) {
    impl_->searched += text.size() - at;
    return false;
  }
  GT_REQUIRE(found >= 0, Exit::kUsage, r.where, ": a match of the pattern in ", text.size(),
             " bytes of text ends with: ", message(found));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(impl_->data.get());
  *begin = span[0];
  *end = span[1];
  impl_->searched += *end - at;
  return true;
}

}  // namespace gt
