// Patterns of a pre-tokenizer. They are written for Oniguruma, the engine of Hugging Face's tokenizers, and run by
// PCRE2: what both engines read alike is passed on, what they would read differently is refused by name.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace gt {

// The pattern for PCRE2 (UTF, UCP) that matches what `pattern` matches in Oniguruma. Understood: literals,
// alternatives, groups ( (?: (?i: (?= (?!, classes without classes inside (in a group (?i: of ASCII letters alone), \s
// \S \d \r \n \t, \p{..} \P{..} of general categories and scripts, escaped punctuation, ? * + {n} {n,} {n,m}, ?? *? +?,
// ?+ *+ ++. Throws kUsage naming `where`.
std::string pcre2_pattern(const std::string& pattern, const std::string& where);

// A compiled pattern. Immutable and thread-safe.
class Regex {
 public:
  // `literal`: the pattern is a string. Throws kUsage naming `where` for a pattern that is not understood, that is too
  // large or that matches the empty text.
  Regex(const std::string& pattern, bool literal, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  // Where one thread finds matches.
  class Finder {
   public:
    explicit Finder(const Regex& regex);
    ~Finder();
    Finder(Finder&&) noexcept;
    // The first match in `text` from byte `from` on. Throws kUsage when the match takes more than 10 million steps, or
    // 64 MB. Requires: UTF-8.
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
