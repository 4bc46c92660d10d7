#include "launch/options/near_word.h"

#include <algorithm>
#include <cctype>

namespace gt {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = static_cast<int>(i + j);
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

int distance(const std::string& a, const std::string& b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end()) ? (a == b ? 0 : 1) : edit_distance(a, b);
}

// Whether `part` stands in `text` as whole words: "steps" in "train.steps", not "eps".
bool holds_words(std::string_view text, std::string_view part) {
  const auto inside = [&](size_t i) { return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])); };
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    if (!(at > 0 && inside(at - 1)) && !inside(at + part.size())) return true;
  return false;
}

}  // namespace

std::string did_you_mean(std::string_view given, const std::vector<std::string>& candidates) {
  std::string best;
  if (given.empty() || given.size() > 100) return best;
  const std::string word = lower_case(given);
  int best_distance = (word.size() < 5 ? 1 : std::clamp(static_cast<int>(word.size()) / 3, 2, 4)) + 1;
  for (const std::string& c : candidates)
    if (const int d = distance(word, lower_case(c));
        d < best_distance && d < static_cast<int>(std::max(word.size(), c.size())))
      best = c, best_distance = d;
  if (!best.empty()) return best;
  for (const std::string& c : candidates)
    if (word.size() > 2 && c.size() > 2 && (holds_words(c, word) || holds_words(word, c))) return c;
  return best;
}

}  // namespace gt
