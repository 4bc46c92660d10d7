#include "launch/options/help_text.h"

#include <algorithm>

#include "launch/options/console_text.h"

namespace gt {

namespace {

constexpr size_t kLeft = 34;  // width of the column of flags

// Appends `words` to the last line of `out`, in lines of at most `width` columns that begin at `indent`.
void append_wrapped(std::string& out, std::string_view words, size_t indent, size_t width) {
  size_t column = out.size() - (out.rfind('\n') + 1);  // npos + 1: 0
  bool first = true;
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    if (!first && column + 1 + word.size() > width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
      first = true;
    }
    out += (first ? "" : " ");
    out += word;
    column += word.size() + (first ? 0 : 1);
    first = false;
  }
  out += '\n';
}

}  // namespace

int help_width() {
  const int columns = terminal_width();
  return columns > 0 ? std::max(columns, 60) : 100;
}

std::string help_entry(std::string_view flag, std::string_view meaning) {
  constexpr size_t kIndent = 6;  // of further lines of a long list of values
  std::string out;
  for (size_t width = static_cast<size_t>(help_width()); flag.size() > width;
       width = static_cast<size_t>(help_width()) - kIndent) {
    const size_t bar = flag.rfind('|', width - 1);
    if (bar == std::string_view::npos) break;
    out += std::string(flag.substr(0, bar + 1)) + '\n' + std::string(kIndent, ' ');
    flag.remove_prefix(bar + 1);
  }
  out += flag;
  out += out.size() + 1 > kLeft ? '\n' + std::string(kLeft, ' ') : std::string(kLeft - out.size(), ' ');
  append_wrapped(out, meaning, kLeft, static_cast<size_t>(help_width()));
  return out;
}

std::string help_words(std::string_view words, int indent) {
  std::string out(static_cast<size_t>(indent), ' ');
  append_wrapped(out, words, static_cast<size_t>(indent), static_cast<size_t>(help_width()));
  return out;
}

}  // namespace gt
