// SentencePiece's table of replacements ("precompiled_charsmap") as Hugging Face's library applies it: a cluster of
// characters of less than 6 bytes is replaced whole if a replacement of a beginning of it is in the table, other
// characters one by one.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gt {

// Immutable and thread-safe.
class Charsmap {
 public:
  // `base64`: the table. Throws kUsage naming `where` for a broken one, before anything of it is used.
  Charsmap(const std::string& base64, const std::string& where);

  // Appends `text` with replacements to *out. Requires: UTF-8.
  void apply(std::string_view text, std::string* out) const;

 private:
  std::optional<std::string_view> replacement(std::string_view part) const;
  void append(std::string_view cluster, std::string* out) const;
  uint32_t unit(uint32_t at) const;

  std::string bytes_;
  std::string_view trie_, texts_;  // of bytes_
};

}  // namespace gt
