// Text that comes from elsewhere, made fit for where it goes: a terminal, a shell.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// The text as one line that does nothing to a terminal: control characters (C0, DEL, C1), marks that turn the direction
// of writing, and bytes that are not UTF-8 become \n, \t, \x1b, \u202e.
std::string printable(std::string_view text);
// The same for text of several lines: newlines and tabs stay.
std::string printable_lines(std::string_view text);

// The word as a shell needs it: in single quotes unless it is plain.
std::string shell_word(std::string_view word);

}  // namespace gt
