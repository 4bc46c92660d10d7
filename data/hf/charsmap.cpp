#include "data/hf/charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "data/hf/characters.h"
#include "data/tokenizer/model_walk.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/base64.h"

namespace gt {

constexpr size_t kMaxCluster = 6;  // bytes; longer ones are replaced by characters

Charsmap::Charsmap(const std::string& base64, const std::string& where) {
  const std::string name = where + ".precompiled_charsmap";
  std::optional<std::string> decoded = decode_base64(base64);
  GT_REQUIRE(decoded.has_value(), Exit::kUsage, name, ": expected base64, found other text");
  bytes_ = *std::move(decoded);
  if (bytes_.empty()) return;
  const std::string error = charsmap_error(bytes_);
  GT_REQUIRE(error.empty(), Exit::kUsage, name, ": expected ", error);
  uint32_t size = 0;
  std::memcpy(&size, bytes_.data(), sizeof size);
  trie_ = std::string_view(bytes_).substr(4, size);
  texts_ = std::string_view(bytes_).substr(4 + size_t{size});
  GT_REQUIRE(utf8_valid_prefix(texts_) == texts_.size(), Exit::kUsage, name, ": expected replacements in UTF-8, found ",
             "other bytes");
}

uint32_t Charsmap::unit(uint32_t at) const {
  uint32_t v;
  std::memcpy(&v, trie_.data() + size_t{4} * at, sizeof v);
  return v;
}

// The replacement of the shortest beginning of `part` that has one. Every node lies inside of the trie and every leaf
// inside of the replacements, which charsmap_error() checks.
std::optional<std::string_view> Charsmap::replacement(std::string_view part) const {
  const auto offset = [](uint32_t u) { return (u >> 10) << ((u & (1u << 9)) >> 6); };
  uint32_t at = offset(unit(0));
  for (const char byte : part) {
    const auto c = static_cast<uint8_t>(byte);
    if (c == 0) return {};
    at ^= c;
    const uint32_t here = unit(at);
    if ((here & 0x800000FFu) != c) return {};
    at ^= offset(here);
    if ((here >> 8 & 1) == 0) continue;
    const std::string_view text = texts_.substr(unit(at) & 0x7FFFFFFFu);
    GT_REQUIRE((static_cast<uint8_t>(text[0]) & 0xC0) != 0x80, Exit::kUsage,
               "precompiled_charsmap: a replacement begins inside of a character: the file is broken or hostile");
    return text.substr(0, text.find('\0'));
  }
  return {};
}

void Charsmap::append(std::string_view cluster, std::string* out) const {
  if (cluster.size() < kMaxCluster)
    if (const auto found = replacement(cluster)) {
      out->append(*found);
      return;
    }
  while (!cluster.empty()) {
    char32_t c = 0;
    const size_t n = first_character(cluster, &c);
    out->append(replacement(cluster.substr(0, n)).value_or(cluster.substr(0, n)));
    cluster.remove_prefix(n);
  }
}

void Charsmap::apply(std::string_view text, std::string* out) const {
  if (trie_.empty()) {
    out->append(text);
    return;
  }
  size_t begin = 0, end = 0;
  utf8proc_int32_t before = 0, state = 0;
  while (end < text.size()) {
    char32_t c = 0;
    const size_t n = first_character(text.substr(end), &c);
    if (end > begin && utf8proc_grapheme_break_stateful(before, static_cast<utf8proc_int32_t>(c), &state)) {
      append(text.substr(begin, end - begin), out);
      begin = end;
    }
    before = static_cast<utf8proc_int32_t>(c);
    end += n;
  }
  append(text.substr(begin), out);
}

}  // namespace gt
