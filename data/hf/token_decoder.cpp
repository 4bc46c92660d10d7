#include "data/hf/token_decoder.h"

#include <algorithm>
#include <memory>

#include "data/bpe/byte_alphabet.h"
#include "data/bpe/regex.h"
#include "data/hf/characters.h"
#include "data/hf/json_fields.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::json;
using Pieces = std::vector<std::string>;
using Step = std::function<void(Pieces*)>;
constexpr const char* kReplacement = "\xEF\xBF\xBD";
constexpr size_t kMaxContent = 16, kMaxGrowth = 16, kMaxMore = 64 << 10;

size_t bytes_in(const Pieces& pieces) {
  size_t n = 0;
  for (const std::string& p : pieces) n += p.size();
  return n;
}

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  size_t at = text->find(from);
  if (at == std::string::npos) return;
  std::string out;
  size_t begin = 0;
  for (; at != std::string::npos; begin = at + from.size(), at = text->find(from, begin))
    out.append(*text, begin, at - begin).append(to);
  *text = out.append(*text, begin);
}

std::string joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& p : pieces) text += p;
  return text;
}

void decode_bytes(Pieces* pieces) {
  std::string bytes, of_piece, text;
  for (const std::string& p : *pieces) bytes += bytes_of(p, &of_piece) ? of_piece : p;
  append_lossy_utf8(bytes, &text);
  *pieces = {text};
}

// The byte of "<0x41>"; -1: another piece. Hexadecimal digits may be of any case.
int fallback_byte(const std::string& p) {
  if (p.size() != 6 || !p.starts_with("<0x") || p[5] != '>') return -1;
  int value = 0;
  for (const char c : {p[3], p[4]}) {
    const int lower = c | 0x20;
    if (c >= '0' && c <= '9')
      value = 16 * value + c - '0';
    else if (lower >= 'a' && lower <= 'f')
      value = 16 * value + lower - 'a' + 10;
    else
      return -1;
  }
  return value;
}

// Bytes that form no text become one U+FFFD each.
void decode_fallback(Pieces* pieces) {
  Pieces out;
  std::string bytes;
  const auto flush = [&] {
    if (utf8_valid_prefix(bytes) != bytes.size())
      for (size_t k = 0; k < bytes.size(); ++k) out.emplace_back(kReplacement);
    else if (!bytes.empty())
      out.push_back(bytes);
    bytes.clear();
  };
  for (std::string& p : *pieces) {
    if (const int byte = fallback_byte(p); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    out.push_back(std::move(p));
  }
  flush();
  *pieces = std::move(out);
}

Step metaspace(const JsonFields& f, bool* joins) {
  f.expect_keys({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  const bool keeps = f.text_or("prepend_scheme", f.flag("add_prefix_space", true) ? "always" : "never") == "never";
  *joins = *joins && keeps;
  return [blank = f.text("replacement"), keeps](Pieces* pieces) {
    for (size_t k = 0; k < pieces->size(); ++k) replace_all(&(*pieces)[k], blank, k == 0 && !keeps ? "" : " ");
  };
}

void clean_up(std::string* text) {
  for (const auto& [from, to] : {std::pair(" .", "."),
                                 {" ?", "?"},
                                 {" !", "!"},
                                 {" ,", ","},
                                 {" ' ", "'"},
                                 {" n't", "n't"},
                                 {" 'm", "'m"},
                                 {" do not", " don't"},
                                 {" 's", "'s"},
                                 {" 've", "'ve"},
                                 {" 're", "'re"}})
    replace_all(text, from, to);
}

Step word_piece(const JsonFields& f) {
  f.expect_keys({"type", "prefix", "cleanup"});
  return [prefix = f.text_or("prefix", "##"), cleans = f.flag("cleanup", true)](Pieces* pieces) {
    for (size_t k = 0; k < pieces->size(); ++k) {
      std::string& p = (*pieces)[k];
      if (k > 0 && p.starts_with(prefix))
        p.erase(0, prefix.size());
      else if (k > 0)
        p.insert(0, " ");
      if (cleans) clean_up(&p);
    }
  };
}

Step bpe_suffix(const JsonFields& f) {
  f.expect_keys({"type", "suffix"});
  const std::string suffix = f.text_or("suffix", "</w>");
  GT_REQUIRE(!suffix.empty(), Exit::kUsage, f.where(), ".suffix: expected a text, found none");
  return [suffix](Pieces* pieces) {
    for (size_t k = 0; k < pieces->size(); ++k) replace_all(&(*pieces)[k], suffix, k + 1 < pieces->size() ? " " : "");
  };
}

Step replace(const JsonFields& f) {
  f.expect_keys({"type", "pattern", "content"});
  const JsonPattern pattern = read_pattern(f);
  const std::string content = f.text("content");
  GT_REQUIRE(content.size() <= kMaxContent, Exit::kUsage, f.where(), ".content: expected at most ", kMaxContent,
             " bytes, found ", content.size());
  if (!pattern.regex)
    return [from = pattern.text, content](Pieces* pieces) {
      for (std::string& p : *pieces) replace_all(&p, from, content);
    };
  const auto regex = std::make_shared<const Regex>(pattern.text, false, f.where() + ".pattern");
  return [regex, content](Pieces* pieces) {
    Regex::Finder finder(*regex);
    for (std::string& p : *pieces) {
      std::string out;
      size_t at = 0;
      for (size_t begin = 0, end = 0; at < p.size() && finder.find(p, at, &begin, &end); at = end)
        out.append(p, at, begin - at).append(content);
      p = out.append(p, at);
    }
  };
}

// Removes up to `start` characters `content` from the beginning of every piece, and `stop` from its end.
Step strip(const JsonFields& f) {
  f.expect_keys({"type", "content", "start", "stop"});
  const std::string content = f.text("content");
  char32_t c = 0;
  GT_REQUIRE(!content.empty() && first_character(content, &c) == content.size(), Exit::kUsage, f.where(),
             ".content: expected one character, found ", content.size(), " bytes");
  return [content, start = f.number("start", 0, 1 << 20), stop = f.number("stop", 0, 1 << 20)](Pieces* pieces) {
    for (std::string& p : *pieces) {
      size_t begin = 0;
      for (int64_t k = 0; k < start && std::string_view(p).substr(begin).starts_with(content); ++k)
        begin += content.size();
      p.erase(0, begin);
      for (int64_t k = 0; k < stop && p.ends_with(content); ++k) p.resize(p.size() - content.size());
    }
  };
}

}  // namespace

TokenDecoder::TokenDecoder(const Json* j, const std::string& where) : where_(where) {
  joins_ = j != nullptr;
  for_each_step(j, where, "decoders", [&](const JsonFields& f) {
    const std::string& type = f.text("type");
    if (type == "Metaspace") {
      steps_.push_back(metaspace(f, &joins_));
    } else if (type == "WordPiece" || type == "BPEDecoder" || type == "Strip") {
      steps_.push_back(type == "WordPiece" ? word_piece(f) : type == "Strip" ? strip(f) : bpe_suffix(f));
      joins_ = false;
    } else if (type == "Replace") {
      steps_.push_back(replace(f));
    } else if (type == "ByteLevel") {
      f.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps_.emplace_back(decode_bytes);
      has_bytes_ = true;
    } else {
      if (type != "ByteFallback" && type != "Fuse")
        f.refuse_type("ByteLevel, Metaspace, WordPiece, BPEDecoder, Replace, ByteFallback, Fuse or Strip");
      f.expect_keys({"type"});
      if (type == "ByteFallback") steps_.emplace_back(decode_fallback), falls_back_ = true;
      if (type == "Fuse") steps_.emplace_back([](Pieces* pieces) { *pieces = {joined(*pieces)}; });
    }
  });
  if (j == nullptr)
    steps_.emplace_back([](Pieces* pieces) {
      for (size_t k = 1; k < pieces->size(); ++k) (*pieces)[k].insert(0, " ");
    });
}

std::string TokenDecoder::decode(Pieces pieces) const {
  const size_t bytes = bytes_in(pieces), most = kMaxGrowth * bytes + kMaxMore;
  for (const Step& step : steps_) {
    step(&pieces);
    GT_REQUIRE(bytes_in(pieces) <= most, Exit::kUsage, where_, ": makes a text of ", bytes, " bytes longer than ", most,
               " bytes: the file is broken or hostile");
  }
  return joined(pieces);
}

}  // namespace gt
