// Pre-tokenizer patterns, written for Oniguruma (Hugging Face's tokenizers) and run with PCRE2. Constructs with the
// same meaning in both engines are translated, others are rejected by name.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/time_budget.h"

namespace gt {

// Returns the PCRE2 pattern (UTF, UCP) that matches what `pattern` matches in Oniguruma. Supported: literals,
// alternatives, groups ( (?: (?i: (?= (?!, classes without nested classes (in a group (?i: ASCII letters only), \s \S
// \d \r \n \t, \p{..} \P{..} of general categories and scripts, escaped punctuation, ? * + {n} {n,} {n,m}, ?? *? +?, ?+
// *+ ++. Throws kUsage naming `where`.
std::string pcre2_pattern(const std::string& pattern, const std::string& where);

// Compiled pattern. Immutable and thread-safe.
class Regex {
 public:
  // `literal`: the pattern is a plain string. `limit`: of all searches together. Throws kUsage naming `where` for a
  // pattern that is unsupported, too large, or matches the empty text.
  Regex(const std::string& pattern, bool literal, const std::string& where, TimeLimit limit = {});
  ~Regex();
  Regex(Regex&&) noexcept;

  // Match state of one thread.
  class Finder {
   public:
    explicit Finder(const Regex& regex);
    ~Finder();
    Finder(Finder&&) noexcept;
    // Finds the first match in `text` from byte `from` on; a text is searched from its beginning to its end. Throws
    // kUsage if the match takes more than 10 million steps or 64 MB, or all searches more than the time limit.
    // Requires: UTF-8.
    bool find(std::string_view text, size_t from, size_t* begin, size_t* end);

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
