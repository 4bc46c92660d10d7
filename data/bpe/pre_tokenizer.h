// Pre-tokenizer: splits text into words in steps, each applied to the pieces of the previous one.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe/regex.h"
#include "data/bpe/tokenizer_json.h"
#include "data/tokenizer/tokenizer_model.h"

namespace gt {

class PreTokenizer {
 public:
  // Throws kUsage naming `name` for an unsupported pattern (data/bpe/regex.h).
  PreTokenizer(const std::vector<SplitStep>& steps, const std::string& name);

  bool lossless() const;       // the concatenated words equal the text
  LineCuts line_cuts() const;  // where text may be cut without changing words

  // Calls act(word) for each word of `text`, in order. Thread-safe. Requires: UTF-8.
  template <class Act>
  void for_each_word(std::string_view text, const Act& act) const {
    std::vector<Regex::Finder> finders;
    for (const Step& s : steps_) finders.emplace_back(s.regex);
    split(0, text, finders, act);
  }

 private:
  struct Step {
    SplitStep rule;
    Regex regex;
  };

  template <class Act>
  void split(size_t step, std::string_view text, std::vector<Regex::Finder>& finders, const Act& act) const {
    if (text.empty()) return;
    if (step == steps_.size()) return act(text);
    const SplitStep& rule = steps_[step].rule;
    const auto piece = [&](size_t begin, size_t end, bool matches) {
      if (begin < end && !(rule.removes && matches != rule.invert))
        split(step + 1, text.substr(begin, end - begin), finders, act);
    };
    size_t at = 0;
    for (size_t begin = 0, end = 0; at < text.size() && finders[step].find(text, at, &begin, &end); at = end) {
      piece(at, begin, false);
      piece(begin, end, true);
    }
    piece(at, text.size(), false);
  }

  std::vector<Step> steps_;
};

}  // namespace gt
