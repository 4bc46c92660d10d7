// Classes and mappings of characters as Hugging Face's tokenizers have them: utf8proc's, corrected where that library's
// tables are of older versions of Unicode (8 for punctuation, controls and nonspacing marks, 9 for combining marks).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

// Size of the character that `text` begins with; *c: its code point. Requires: UTF-8, not empty.
size_t first_character(std::string_view text, char32_t* c);
void append_character(char32_t c, std::string* out);

bool is_hf_punctuation(char32_t c);      // category P, and all ASCII signs
bool is_hf_control(char32_t c);          // categories Cc, Cf, Co, without tab, newline and carriage return
bool is_hf_nonspacing_mark(char32_t c);  // category Mn
bool is_hf_combining_mark(char32_t c);   // category M
bool is_hf_number(char32_t c);           // category N
bool is_chinese(char32_t c);             // BERT's blocks of CJK ideographs

// Appends the lower case of one character, whatever stands around it: two characters for U+0130.
void append_lower(char32_t c, std::string* out);

}  // namespace gt
