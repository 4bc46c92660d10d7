// Unicode normalization forms by utf8proc, restricted to the tables of Unicode 9 like Hugging Face's library: newer
// combining marks are not reordered, newer characters not decomposed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gt {

enum class NormalForm : uint8_t { kC, kD, kKC, kKD };

// Returns `text` in this form: `text` itself, or a view of *buffer, valid until *buffer changes. Requires: UTF-8.
std::string_view to_normal_form(NormalForm form, std::string_view text, std::string* buffer);

}  // namespace gt
