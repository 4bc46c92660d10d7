#include "data/tokenizer/model_walk.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/file_kind.h"

namespace gt {
namespace {

constexpr int64_t kMaxBytes = 16 << 20, kMaxPieces = 2'000'000, kMaxPiece = 16 << 10;
constexpr size_t kMaxTrie = 4 << 20;
constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, a blank inside pieces

// One message of the framing: fields as (number, wire type, value). No recursion: callers open sub-messages.
class Fields {
 public:
  Fields(std::string_view bytes, size_t at, const std::string& name) : bytes_(bytes), offset_(at), name_(name) {}

  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    number = tag >> 3;
    wire = static_cast<int>(tag & 7);
    if (number == 0 || number >= (uint64_t{1} << 29)) bad("a field number of 1 to 2^29", number);
    if (wire == 0) {
      value = varint();
    } else if (wire == 1 || wire == 5) {
      text = take(wire == 1 ? 8 : 4);
    } else if (wire == 2) {
      const uint64_t n = varint();
      if (n > bytes_.size() - at_) bad("a field inside its message", n);
      text_at = offset_ + at_;
      text = take(n);
    } else {
      bad("a wire type of 0, 1, 2 or 5", static_cast<uint64_t>(wire));
    }
    return true;
  }
  [[noreturn]] void bad(const std::string& expected_and_found) const {
    const std::string kind = offset_ == 0 ? other_kind(bytes_.substr(0, kKindBytes)) : "";  // of the whole file
    fail(Exit::kUsage, name_, " byte ", offset_ + at_, ": not a tokenizer model: expected ", expected_and_found,
         kind.empty() ? "" : "; it ", kind);
  }
  [[noreturn]] void bad(const char* expected, uint64_t found) const { bad(cat(expected, ", found ", found)); }
  float as_float() const {
    float f;
    std::memcpy(&f, text.data(), 4);
    return f;
  }

  uint64_t number = 0, value = 0;
  int wire = 0;
  std::string_view text;
  size_t text_at = 0;

 private:
  std::string_view take(uint64_t n) {
    if (n > bytes_.size() - at_) bad("more bytes", bytes_.size() - at_);
    const auto s = bytes_.substr(at_, n);
    at_ += n;
    return s;
  }
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto b = static_cast<unsigned char>(take(1)[0]);
      v |= uint64_t{b & 0x7Fu} << shift;
      if (b < 0x80) return v;
    }
    bad("a number of at most 10 bytes", v);
  }
  std::string_view bytes_;
  size_t at_ = 0, offset_;
  const std::string& name_;
};

void walk_piece(Fields f, ModelInfo* info) {
  std::string_view piece;
  bool named = false;
  while (f.next()) {
    if (f.number == 1 && f.wire == 2) piece = f.text, named = true;
    if (f.number == 2 && (f.wire != 5 || !std::isfinite(f.as_float()))) f.bad("a finite score", 0);
    if (f.number == 3 && f.wire == 0) {
      info->byte_pieces += f.value == 6;
      if (f.value == 4) info->user_defined.push_back(static_cast<int32_t>(info->pieces));
    }
  }
  if (!named || piece.empty()) f.bad("a piece with text", 0);
  if (static_cast<int64_t>(piece.size()) > kMaxPiece) f.bad("a piece of at most 16384 bytes", piece.size());
  ++info->pieces;
  info->longest_piece = std::max<int64_t>(info->longest_piece, static_cast<int64_t>(piece.size()));
  info->blank_inside = info->blank_inside || piece.find(kBlank, 1) != std::string_view::npos ||
                       piece.find(' ') != std::string_view::npos;
  info->newline_inside = info->newline_inside || (piece.find('\n') != std::string_view::npos && piece != "\n");
}

void walk_trainer(Fields f, ModelInfo* info) {
  while (f.next()) {
    if (f.wire != 0) continue;
    if (f.number == 3) info->type = static_cast<int>(f.value);
    if (f.number == 22) info->split_by_whitespace = f.value != 0;
    if (f.number == 24) info->whitespace_suffix = f.value != 0;
    if (f.number == 35) info->byte_fallback = f.value != 0;
  }
  if (info->type < 1 || info->type > 4) f.bad("a model type of 1 to 4", static_cast<uint64_t>(info->type));
}

uint32_t number_at(std::string_view bytes, size_t at) {
  uint32_t v;
  std::memcpy(&v, bytes.data() + at, sizeof v);
  return v;
}

// A double-array trie of darts-clone, which the library searches without bounds checks (sentencepiece#1269). From every
// reachable node any byte may follow, and a leaf holds an offset into the replacements.
class Trie {
 public:
  Trie(std::string_view units, size_t replacements) : units_(units), replacements_(replacements) {}

  // Describes the first defect; nullptr if valid.
  const char* error() {
    std::vector<bool> visited(size());
    std::vector<uint32_t> open{0};
    visited[0] = true;
    while (!open.empty()) {
      const uint32_t at = open.back(), here = unit(at), base = at ^ offset(here);
      open.pop_back();
      if ((base | 255u) >= size()) return "a normalisation trie whose nodes lie inside it (sentencepiece#1269)";
      if ((here >> 8 & 1) != 0 && (unit(base) & 0x7FFFFFFFu) >= replacements_)
        return "a normalisation trie whose leaves lie inside the replacements (sentencepiece#1269)";
      for (uint32_t c = 0; c < 256; ++c) {
        const uint32_t next = base ^ c;
        if ((unit(next) & 0x800000FFu) != c || visited[next]) continue;
        visited[next] = true;
        open.push_back(next);
      }
    }
    return nullptr;
  }

 private:
  size_t size() const { return units_.size() / 4; }
  uint32_t unit(uint32_t at) const { return number_at(units_, size_t{4} * at); }
  static uint32_t offset(uint32_t u) { return (u >> 10) << ((u & (1u << 9)) >> 6); }
  std::string_view units_;
  size_t replacements_;
};

void walk_normalizer(Fields f, ModelInfo* info) {
  while (f.next()) {
    if (f.number == 2 && f.wire == 2 && !f.text.empty())
      if (const std::string error = charsmap_error(f.text); !error.empty()) f.bad(error);
    if ((f.number == 2 || f.number == 6) && f.wire == 2 && !f.text.empty()) info->identity = false;
    if (f.wire != 0) continue;
    if (f.number == 3) info->dummy_prefix = f.value != 0;
    if (f.number == 4) info->remove_extra_whitespaces = f.value != 0;
    if (f.number == 5) info->escape_whitespaces = f.value != 0;
  }
}

}  // namespace

// u32 size of the trie, the trie, zero-terminated replacements.
std::string charsmap_error(std::string_view map) {
  const auto found = [](const char* expected, auto value) { return cat(expected, ", found ", value); };
  if (map.size() < 8) return found("a normalisation table of at least 8 bytes", map.size());
  const size_t trie = number_at(map, 0);
  if (trie % 1024 != 0 || trie == 0 || trie > kMaxTrie)
    return found("a normalisation trie of 1 to 4096 blocks of 1024 bytes", trie);
  if (trie >= map.size() - 4) return found("a normalisation trie inside its table, and replacements behind it", trie);
  if (map.back() != 0)
    return found("normalisation replacements that end with a zero byte", int{static_cast<unsigned char>(map.back())});
  if (const char* wrong = Trie(map.substr(4, trie), map.size() - 4 - trie).error()) return found(wrong, trie);
  return "";
}

ModelInfo walk_model(std::string_view bytes, const std::string& name) {
  GT_REQUIRE(static_cast<int64_t>(bytes.size()) <= kMaxBytes, Exit::kUsage, name,
             ": expected a tokenizer model of at most ", kMaxBytes, " bytes, found ", bytes.size());
  GT_REQUIRE(!bytes.empty(), Exit::kUsage, name, ": expected a tokenizer model, found an empty file");
  ModelInfo info;
  ModelInfo of_decoding;  // only its table is checked
  int trainers = 0, normalizers = 0, denormalizers = 0;
  Fields f(bytes, 0, name);
  while (f.next()) {
    if (f.number > 5) continue;  // extensions
    if (f.wire != 2) f.bad("a message", static_cast<uint64_t>(f.wire));
    const Fields inner(f.text, f.text_at, name);
    if (f.number == 1) walk_piece(inner, &info);
    if (f.number == 2) ++trainers, walk_trainer(inner, &info);
    if (f.number == 3) ++normalizers, walk_normalizer(inner, &info);
    if (f.number == 5) ++denormalizers, walk_normalizer(inner, &of_decoding);
    if (info.pieces > kMaxPieces) f.bad("at most 2000000 pieces", static_cast<uint64_t>(info.pieces));
    if (trainers > 1 || normalizers > 1 || denormalizers > 1)
      f.bad("one training, one normaliser and one denormaliser section", 2);
  }
  if (info.pieces == 0) f.bad("at least 1 piece", 0);
  return info;
}

}  // namespace gt
