#include <ctime>

#include "data/bpe/regex.h"
#include "data/tokenizer/utf8.h"
#include "tests/data/byte_level_json.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

constexpr size_t kText = 4096;
constexpr TimeLimit kLimit{.seconds = 0.01, .seconds_per_byte = 1e-6};

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The bytes before the first zero byte are the pattern, those after it are repeated as the text.
void run(std::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  std::string text;
  append_valid_utf8(input.substr(std::min(end + 1, input.size())), &text);
  if (text.empty()) text = "a";
  while (text.size() < kText) text += std::string(text);
  text.resize(utf8_cut(text, kText));
  const double begin = cpu_seconds();
  refused([&] {
    const Regex regex(std::string(input.substr(0, end)), false, "fuzz", kLimit);
    Regex::Finder finder(regex);
    for (size_t at = 0, from = 0, to = 0; at < text.size() && finder.find(text, at, &from, &to); at = to)
      GT_CHECK(at <= from && from < to && to <= text.size());
  });
  GT_CHECK(cpu_seconds() - begin < 2, "a pattern took ", cpu_seconds() - begin, " s for ", text.size(), " bytes");
}

std::vector<std::string> seeds() {
  const std::string zero(1, '\0');
  return {test::kLlama3Pattern + zero + "the quick\r\nbrown fox's   12345 \xF0\x9F\x98\x80",
          R"((?:[^q]|[^q][^q]){1,18}\t|[^\t])" + zero + "a", R"((?=[^q]*+z)a|[^q])" + zero + "a",
          R"([^q]*[^q]*[^q]*\t|[^q])" + zero + "ab", R"((?:a|aa|aaa)+(?:b|(?!a)c))" + zero + "a"};
}

}  // namespace

Target pattern_time() {
  return {"pattern_time",
          run,
          seeds,
          {"(?:a|aa)+", "{1,18}", "{1000}", "[^q]*", "[^q]*+", "(?=", "(?!", ")", "|", "+", "*", "\\s+", "\\p{L}",
           "(?i:'s)", std::string(1, '\0'), "a", "\\t"},
          1500};
}

}  // namespace gt::fuzz
