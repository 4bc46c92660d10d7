// Normalizer of a tokenizer.json: changes text before added tokens with `normalized` are matched and before it is split
// into words. Understood: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace, Nmt, BertNormalizer,
// Precompiled (data/hf/charsmap.h), and Sequences of them.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// Immutable and thread-safe.
class TextNormalizer {
 public:
  TextNormalizer() = default;
  // `j`: the object, or nullptr for none. `where`: its path, for messages. Throws kUsage naming what is not understood.
  TextNormalizer(const nlohmann::json* j, const std::string& where);

  bool empty() const { return steps_.empty(); }
  // Whether text may begin with a character that no character of the source stands for.
  bool prepends() const { return prepends_; }

  // Returns the normalized text: `text` itself or a view of *buffer. *moved becomes whether characters before the first
  // one that is left were removed. Throws kUsage when the text becomes more than 64 times as long: the steps of a
  // hostile file multiply it. Requires: UTF-8.
  std::string_view apply(std::string_view text, std::string* buffer, bool* moved) const;

 private:
  // Appends the normalized `text` to *out; returns whether its beginning was removed.
  using Step = std::function<bool(std::string_view text, std::string* out)>;
  std::vector<Step> steps_;
  std::string where_;
  bool prepends_ = false;
};

}  // namespace gt
