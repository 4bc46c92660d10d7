// Validates an untrusted SentencePiece .model: walks the protocol buffer framing before the library reads a byte, since
// the library crashes on some broken models (github.com/google/sentencepiece, 1263 and 1269).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct ModelInfo {
  int64_t pieces = 0;
  int64_t longest_piece = 0;  // bytes
  int type = 1;               // 1 unigram, 2 bpe, 3 word, 4 char
  bool byte_fallback = false;
  bool split_by_whitespace = true, whitespace_suffix = false;
  bool identity = true;  // no normalization rules
  bool dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool blank_inside = false;    // some piece has a blank after its start
  bool newline_inside = false;  // some longer piece contains a newline
  int byte_pieces = 0;
  std::vector<int32_t> user_defined;  // ids of symbols that are never split
};

// Validates a model. Throws kUsage naming `name`, the byte offset, expected and found. Limits: 16 MB, 2 million pieces,
// 16 kB per piece, finite scores.
ModelInfo walk_model(std::string_view bytes, const std::string& name);

// Returns what is expected of a table of replacements ("precompiled_charsmap") and found otherwise; "" for a valid one:
// every node of its trie lies inside of it, every leaf inside of the replacements, which end with a zero byte.
std::string charsmap_error(std::string_view map);

}  // namespace gt
