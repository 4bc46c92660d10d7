// Sanitizes untrusted text for a terminal or a shell.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// Escapes text to one line that is safe on a terminal: control characters (C0, DEL, C1), bidirectional marks and bytes
// that are not UTF-8 become \n, \t, \x1b, \u202e.
std::string printable(std::string_view text);
// printable() for several lines: keeps newlines and tabs.
std::string printable_lines(std::string_view text);

// Quotes a word for a shell: single quotes unless it is plain.
std::string shell_word(std::string_view word);

}  // namespace gt
