#include "data/hf/normalizer.h"

#include <algorithm>
#include <memory>

#include "data/bpe/regex.h"
#include "data/hf/characters.h"
#include "data/hf/charsmap.h"
#include "data/hf/json_fields.h"
#include "data/hf/normal_form.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::json;
using Step = std::function<bool(std::string_view text, std::string* out)>;
constexpr size_t kMaxGrowth = 64, kMaxMore = 64 << 10;

size_t most_bytes(size_t text) { return kMaxGrowth * text + kMaxMore; }

// Calls act(character, its bytes) for each character.
template <class Act>
void for_each_character(std::string_view text, const Act& act) {
  while (!text.empty()) {
    char32_t c = 0;
    const size_t n = first_character(text, &c);
    act(c, text.substr(0, n));
    text.remove_prefix(n);
  }
}

// Keeps the characters for which keep() returns true.
template <class Keep>
bool filter(std::string_view text, const Keep& keep, std::string* out) {
  bool removed = false;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (keep(c))
      out->append(bytes);
    else
      removed |= out->empty();
  });
  return removed;
}

Step normal_form(NormalForm form) {
  return [form](std::string_view text, std::string* out) {
    std::string buffer;
    out->append(to_normal_form(form, text, &buffer));
    return false;
  };
}

bool lowercase(std::string_view text, std::string* out) {
  for_each_character(text, [&](char32_t c, std::string_view) { append_lower(c, out); });
  return false;
}

Step strip(bool left, bool right) {
  return [left, right](std::string_view text, std::string* out) {
    const size_t size = text.size();
    while (left && begins_with_space(text)) {
      char32_t c = 0;
      text.remove_prefix(first_character(text, &c));
    }
    const bool removed = text.size() < size;
    while (right && ends_with_space(text)) {
      while ((static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.remove_suffix(1);
      text.remove_suffix(1);
    }
    out->append(text);
    return removed;
  };
}

// Control characters are removed, several others become blanks (SentencePiece's rules for machine translation).
bool nmt(std::string_view text, std::string* out) {
  bool removed = false;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
      removed |= out->empty();
    else if (c == '\t' || c == '\n' || c == 0xC || c == '\r' || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
             c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
      out->push_back(' ');
    else
      out->append(bytes);
  });
  return removed;
}

bool clean_bert(std::string_view text, std::string* out) {
  bool removed = false;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (c == 0 || c == 0xFFFD || is_hf_control(c))
      removed |= out->empty();
    else if (begins_with_space(bytes))
      out->push_back(' ');
    else
      out->append(bytes);
  });
  return removed;
}

bool isolate_chinese(std::string_view text, std::string* out) {
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!is_chinese(c)) {
      out->append(bytes);
      return;
    }
    out->push_back(' ');
    out->append(bytes);
    out->push_back(' ');
  });
  return false;
}

void add_bert(const JsonFields& f, std::vector<Step>* steps) {
  f.expect_keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lower = f.flag("lowercase", true);
  if (f.flag("clean_text", true)) steps->emplace_back(clean_bert);
  if (f.flag("handle_chinese_chars", true)) steps->emplace_back(isolate_chinese);
  if (f.flag("strip_accents", lower)) {
    steps->push_back(normal_form(NormalForm::kD));
    steps->emplace_back([](std::string_view text, std::string* out) {
      return filter(
          text, [](char32_t c) { return !is_hf_nonspacing_mark(c); }, out);
    });
  }
  if (lower) steps->emplace_back(lowercase);
}

Step replace(const JsonFields& f) {
  f.expect_keys({"type", "pattern", "content"});
  const JsonPattern pattern = read_pattern(f);
  const std::string content = f.text("content");
  GT_REQUIRE(content.size() <= kMaxHfText, Exit::kUsage, f.where(), ".content: expected at most ", kMaxHfText,
             " bytes, found ", content.size());
  const auto regex = std::make_shared<const Regex>(pattern.text, !pattern.regex, f.where() + ".pattern");
  return [regex, content, where = f.where()](std::string_view text, std::string* out) {
    Regex::Finder finder(*regex);
    const size_t most = most_bytes(text.size());
    bool removed = false;
    size_t at = 0;
    for (size_t begin = 0, end = 0; at < text.size() && finder.find(text, at, &begin, &end); at = end) {
      out->append(text.substr(at, begin - at));
      removed |= out->empty() && content.empty();
      out->append(content);
      GT_REQUIRE(out->size() <= most, Exit::kUsage, where, ": makes a text of ", text.size(), " bytes longer than ",
                 most, " bytes: the file is broken or hostile");
    }
    out->append(text.substr(at));
    return removed;
  };
}

Step precompiled(const JsonFields& f) {
  f.expect_keys({"type", "precompiled_charsmap"});
  const auto map = std::make_shared<const Charsmap>(f.text("precompiled_charsmap"), f.where());
  return [map](std::string_view text, std::string* out) {
    map->apply(text, out);
    return false;
  };
}

Step prepend(const JsonFields& f) {
  f.expect_keys({"type", "prepend"});
  const std::string before = f.text("prepend");
  GT_REQUIRE(before.size() <= kMaxHfText, Exit::kUsage, f.where(), ".prepend: expected at most ", kMaxHfText,
             " bytes, found ", before.size());
  return [before](std::string_view text, std::string* out) {
    if (!text.empty()) out->append(before).append(text);
    return false;
  };
}

Step step_of(const JsonFields& f) {
  const std::string& type = f.text("type");
  if (type == "Replace") return replace(f);
  if (type == "Prepend") return prepend(f);
  if (type == "Precompiled") return precompiled(f);
  if (type == "Strip") {
    f.expect_keys({"type", "strip_left", "strip_right"});
    return strip(f.flag("strip_left", true), f.flag("strip_right", true));
  }
  f.expect_keys({"type"});
  if (type == "NFC") return normal_form(NormalForm::kC);
  if (type == "NFD") return normal_form(NormalForm::kD);
  if (type == "NFKC") return normal_form(NormalForm::kKC);
  if (type == "NFKD") return normal_form(NormalForm::kKD);
  if (type == "Lowercase") return lowercase;
  if (type == "Nmt") return nmt;
  if (type == "StripAccents")
    return [](std::string_view text, std::string* out) {
      return filter(
          text, [](char32_t c) { return !is_hf_combining_mark(c); }, out);
    };
  f.refuse_type(
      "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Nmt, BertNormalizer or Precompiled");
}

}  // namespace

TextNormalizer::TextNormalizer(const Json* j, const std::string& where) : where_(where) {
  for_each_step(j, where, "normalizers", [&](const JsonFields& f) {
    if (f.text("type") == "BertNormalizer") return add_bert(f, &steps_);
    prepends_ |= f.text("type") == "Prepend" && f.find("prepend") != nullptr && !f.text("prepend").empty();
    steps_.push_back(step_of(f));
  });
}

std::string_view TextNormalizer::apply(std::string_view text, std::string* buffer, bool* moved) const {
  *moved = false;
  if (steps_.empty()) return text;
  const size_t most = most_bytes(text.size());
  std::string from(text);
  for (const Step& step : steps_) {
    buffer->clear();
    *moved |= step(from, buffer);
    GT_REQUIRE(buffer->size() <= most, Exit::kUsage, where_, ": makes a text of ", text.size(), " bytes longer than ",
               most, " bytes: the file is broken or hostile");
    from.swap(*buffer);
  }
  buffer->swap(from);
  return *buffer;
}

}  // namespace gt
