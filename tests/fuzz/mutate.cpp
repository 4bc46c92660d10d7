#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gt::fuzz {

std::string Mutator::next(const std::vector<std::string>& pool, size_t limit) {
  std::string s = pool[below(pool.size())];
  for (size_t n = size_t{1} << below(4); n > 0; --n) change(s, pool);
  if (s.size() > limit) s.resize(limit);
  return s;
}

// Writes a binary number that parsers mishandle, little-endian, at any offset.
void Mutator::put_number(std::string& s) {
  static const int64_t odd[] = {0,
                                -1,
                                1,
                                127,
                                128,
                                255,
                                256,
                                32767,
                                65535,
                                65536,
                                2147483647,
                                -2147483648,
                                4294967295,
                                int64_t{1} << 32,
                                int64_t{1} << 61,
                                INT64_MAX,
                                INT64_MIN};
  const uint64_t v = static_cast<uint64_t>(odd[below(std::size(odd))]) + (below(3) == 0 ? below(5) : 0);  // may wrap
  const size_t width = size_t{1} << below(4);
  if (s.size() >= width) std::memcpy(s.data() + below(s.size() - width + 1), &v, width);
}

// Replaces a decimal number of a text.
void Mutator::change_digits(std::string& s) {
  static const char* const odd[] = {"0", "-1", "1e9", "0.5", "4294967296", "9223372036854775808", "1e-400", "007", "2"};
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto from = s.begin() + static_cast<std::ptrdiff_t>(below(s.size()));
  const auto begin = std::find_if(from, s.end(), digit);
  const auto end = std::find_if_not(begin, s.end(), digit);
  s.replace(begin, end, odd[below(std::size(odd))]);
}

void Mutator::change(std::string& s, const std::vector<std::string>& pool) {
  const size_t at = below(s.size() + 1), n = std::min(s.size() - at, below(2) ? 1 + below(4) : below(64));
  switch (below(10)) {
    case 0:
      if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
      break;
    case 1:
      if (at < s.size()) s[at] = static_cast<char>(below(256));
      break;
    case 2: put_number(s); break;
    case 3: s.erase(at, n); break;
    case 4: s.insert(at, std::string(s, at, n)); break;
    case 5:
      if (!words_.empty()) s.insert(at, words_[below(words_.size())]);
      break;
    case 6:
      if (const std::string& w = words_.empty() ? s : words_[below(words_.size())]; at + w.size() <= s.size())
        s.replace(at, w.size(), std::string(w));
      break;
    case 7: change_digits(s); break;
    case 8: {
      const std::string& other = pool[below(pool.size())];
      const size_t from = below(other.size() + 1);
      s.replace(at, n, std::string(other, from, below(64)));
      break;
    }
    default:
      if (below(4) == 0) s.resize(at);
  }
}

}  // namespace gt::fuzz
