// Decoder of a tokenizer.json: the text of a list of pieces. Understood: ByteLevel, Metaspace, WordPiece, BPEDecoder,
// Replace, ByteFallback, Fuse, Strip, and Sequences of them.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gt {

// Immutable and thread-safe.
class TokenDecoder {
 public:
  TokenDecoder() = default;
  // `j`: the object, or nullptr for none: pieces are joined with blanks. Throws kUsage naming `where` and what is not
  // understood.
  TokenDecoder(const nlohmann::json* j, const std::string& where);

  // Returns the text; invalid UTF-8 becomes U+FFFD. Throws kUsage when it becomes more than 16 times as long as the
  // pieces.
  std::string decode(std::vector<std::string> pieces) const;

  bool joins() const { return joins_; }            // parts of the pieces decode to parts of the text
  bool has_bytes() const { return has_bytes_; }    // pieces are bytes in ByteLevel's spelling
  bool falls_back() const { return falls_back_; }  // pieces "<0x41>" are bytes

 private:
  using Step = std::function<void(std::vector<std::string>*)>;
  std::vector<Step> steps_;
  std::string where_;
  bool joins_ = true, has_bytes_ = false, falls_back_ = false;
};

}  // namespace gt
