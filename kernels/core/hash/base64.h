// Base64 of RFC 4648, standard and url-safe.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace gt {

// Standard digits (+ and /), padded.
std::string encode_base64(std::string_view bytes);

// Accepts both alphabets, with or without padding. nullopt for any other character and for a truncated text.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace gt
