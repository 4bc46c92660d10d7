#include "data/hf/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "kernels/core/check.h"

namespace gt {
namespace {

// Characters below U+0300, the first combining mark, are in form C in any sequence; those of ASCII in every form.
bool may_change(NormalForm form, std::string_view line) {
  const int first = form == NormalForm::kC ? 0xCC : 0x80;
  return std::any_of(line.begin(), line.end(), [first](char c) { return static_cast<unsigned char>(c) >= first; });
}

// Characters that are neither reordered nor composed: those newer than Unicode 9, the version of Hugging Face's tables,
// which utf8proc would change (determined over all characters of utf8proc 2.8, Unicode 15). Also U+11A7, which utf8proc
// 2.8 drops after a Hangul syllable.
constexpr std::array<std::array<char32_t, 2>, 38> kKept{{
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
}};

// Characters whose compatibility decomposition is newer than Unicode 9.
constexpr std::array<std::array<char32_t, 2>, 9> kKeptCompatible{{{0x32FF, 0x32FF},
                                                                  {0xA7F2, 0xA7F4},
                                                                  {0xAB69, 0xAB69},
                                                                  {0x10781, 0x10785},
                                                                  {0x10787, 0x107B0},
                                                                  {0x107B2, 0x107BA},
                                                                  {0x1E030, 0x1E06D},
                                                                  {0x1F16C, 0x1F16C},
                                                                  {0x1FBF0, 0x1FBF9}}};

template <size_t n>
bool is_in(const std::array<std::array<char32_t, 2>, n>& ranges, char32_t c) {
  const auto at =
      std::lower_bound(ranges.begin(), ranges.end(), c, [](const auto& range, char32_t x) { return range[1] < x; });
  return at != ranges.end() && (*at)[0] <= c;
}

bool is_compatible(NormalForm form) { return form == NormalForm::kKC || form == NormalForm::kKD; }

// U+11938 is composed of two characters that are kept.
bool is_kept(NormalForm form, char32_t c) {
  if (is_in(kKept, c) || c == 0x11938) return true;
  return is_compatible(form) && is_in(kKeptCompatible, c);
}

// Returns the bytes until the next of these characters, or all; *size: its own bytes.
size_t until_kept(NormalForm form, std::string_view line, size_t* size) {
  for (size_t at = 0; at < line.size();) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(line.data() + at),
                                                static_cast<utf8proc_ssize_t>(line.size() - at), &c);
    GT_CHECK(n > 0, "normalization of text that is no UTF-8");
    if (is_kept(form, static_cast<char32_t>(c))) {
      *size = static_cast<size_t>(n);
      return at;
    }
    at += static_cast<size_t>(n);
  }
  *size = 0;
  return line.size();
}

void append_changed(NormalForm form, std::string_view line, std::string* out) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kC || form == NormalForm::kKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (is_compatible(form)) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(line.data()), static_cast<utf8proc_ssize_t>(line.size()),
                   &made, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  GT_CHECK(n >= 0, "normalization failed: ", utf8proc_errmsg(n));
  out->append(reinterpret_cast<const char*>(made), static_cast<size_t>(n));
}

void append_line(NormalForm form, std::string_view line, std::string* out) {
  while (!line.empty()) {
    size_t kept = 0;
    const size_t n = until_kept(form, line, &kept);
    append_changed(form, line.substr(0, n), out);
    out->append(line.substr(n, kept));
    line.remove_prefix(n + kept);
  }
}

}  // namespace

// Processes line by line, because nothing composes with a newline.
std::string_view to_normal_form(NormalForm form, std::string_view text, std::string* buffer) {
  if (!may_change(form, text)) return text;
  buffer->clear();
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n') == text.npos ? text.size() : text.find('\n') + 1);
    if (may_change(form, line))
      append_line(form, line, buffer);
    else
      buffer->append(line);
    text.remove_prefix(line.size());
  }
  return *buffer;
}

}  // namespace gt
