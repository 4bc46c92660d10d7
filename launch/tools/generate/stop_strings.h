// Ends a streamed text at the first occurrence of a stop string.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

namespace gt {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) { std::erase(strings_, ""); }

  // Returns the text that can be shown, which no stop string can begin in. After a match, returns nothing.
  std::string push(const std::string& text) {
    if (found_) return "";
    held_ += text;
    size_t first = std::string::npos;
    for (const std::string& s : strings_) first = std::min(first, held_.find(s));
    if (first != std::string::npos) {
      found_ = true;
      return take(first);
    }
    size_t keep = 0;  // longest suffix of the text that is a prefix of a stop string
    for (const std::string& s : strings_)
      for (size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n)
        if (held_.compare(held_.size() - n, n, s, 0, n) == 0) keep = n;
    return take(held_.size() - keep);
  }
  // Returns the text still held back. Call at the end of the text.
  std::string finish() { return found_ ? "" : take(held_.size()); }
  bool found() const { return found_; }

 private:
  std::string take(size_t n) {
    std::string out = held_.substr(0, n);
    held_.erase(0, n);
    return out;
  }
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace gt
