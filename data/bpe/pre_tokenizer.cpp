#include "data/bpe/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "kernels/core/check.h"

namespace gt {
namespace {

// Published patterns that never match a newline together with a following non-space character, nor look beyond it:
// GPT-2, Llama 3, Qwen 2, GPT-4 (cl100k). tests/data/bpe_test.cpp verifies cuts between plain lines.
constexpr std::array<std::string_view, 4> kPlainLinePatterns{
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<SplitStep>& steps, const std::string& name) {
  for (size_t k = 0; k < steps.size(); ++k)
    steps_.push_back({steps[k], Regex(steps[k].pattern, !steps[k].regex, cat(name, ": pre_tokenizer, step ", k))});
}

bool PreTokenizer::lossless() const {
  return std::none_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.rule.removes; });
}

LineCuts PreTokenizer::line_cuts() const {
  const auto plain = [](const Step& s) {
    return s.rule.regex &&
           std::find(kPlainLinePatterns.begin(), kPlainLinePatterns.end(), s.rule.pattern) != kPlainLinePatterns.end();
  };
  const bool digits = steps_.size() == 2 && (steps_[0].rule.pattern == kDigit || steps_[0].rule.pattern == kDigits) &&
                      steps_[0].rule.regex && !steps_[0].rule.removes;
  return (digits || steps_.size() == 1) && plain(steps_.back()) ? LineCuts::kPlainLines : LineCuts::kNever;
}

}  // namespace gt
