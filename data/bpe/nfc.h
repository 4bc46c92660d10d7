// Unicode normalization form C by utf8proc, restricted to the tables of Unicode 9 like Hugging Face's library: newer
// combining marks are not reordered.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// Returns `text` in form C: `text` itself, or a view of *buffer, valid until *buffer changes. Requires: UTF-8.
std::string_view to_nfc(std::string_view text, std::string* buffer);

}  // namespace gt
