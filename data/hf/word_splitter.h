// Pre-tokenizer of a tokenizer.json: splits normalized text into words in steps, each applied to the pieces of the one
// before. Understood: ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer,
// CharDelimiterSplit, and Sequences of them.
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// What becomes of the matches of a pattern and of the text between them.
enum class SplitBehavior : uint8_t { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

// Immutable and thread-safe.
class WordSplitter {
 public:
  WordSplitter();
  // `j`: the object, or nullptr for none: the text is one word. `prepends`: text may begin with characters that its
  // source does not have. Throws kUsage naming `where` and what is not understood.
  WordSplitter(const nlohmann::json* j, const std::string& where, bool prepends);
  ~WordSplitter();
  WordSplitter(WordSplitter&&) noexcept;
  WordSplitter& operator=(WordSplitter&&) noexcept;

  // Calls act(word) for each word of `text`, in order; words are not empty. `first`: the text begins the source.
  // Requires: UTF-8.
  void for_each_word(std::string_view text, bool first, const std::function<void(std::string_view)>& act) const;

  // Of its ByteLevel steps, whether one puts a blank before every text; -1: it has none.
  int prefix_space() const { return prefix_space_; }

  class Step;

 private:
  class Run;
  std::vector<std::unique_ptr<const Step>> steps_;
  int prefix_space_ = -1;
};

}  // namespace gt
