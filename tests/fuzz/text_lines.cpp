// Text as `tokenizer train` and `data prepare` read it: what it is, its lines, and the texts of JSON lines.
#include <nlohmann/json.hpp>

#include "data/prepare/json_line.h"
#include "data/prepare/text_content.h"
#include "data/prepare/text_source.h"
#include "data/tokenizer/utf8.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void line(std::string_view input) {
  std::string changed(input), text, why;
  const int64_t replaced = standard_json(&changed);
  GT_CHECK(changed.size() == input.size() && (replaced >= 0 || changed == input));
  if (json_text(input, "text", &text, &why)) {
    ++outcome().accepted;
    GT_CHECK(text.size() <= input.size());
    return;
  }
  GT_CHECK(!why.empty());
  outcome().refusals += why;
}

void run(std::string_view input) {
  static const ScratchFile file("text");
  file.put(input);
  int64_t bytes = 0, at = 0;
  const bool gzip = input.starts_with("\x1F\x8B");
  const auto read = [&] {
    LineReader reader(file.path(), 64);
    const std::string_view head = reader.head();
    GT_CHECK(head.size() <= input.size() || gzip);
    const bool json = is_json_lines("x", head);
    for (LineReader::Line l; reader.next(&l); at = l.number) {
      GT_CHECK(l.number >= at && !l.text.empty());
      bytes += static_cast<int64_t>(l.text.size());
      if (json) line(l.text);
    }
  };
  const bool none = refused([&] {
    try {
      read();
    } catch (const Error& e) {  // damaged gzip is a failed read
      throw Error(e.what(), gzip && e.code() == Exit::kIo ? Exit::kDamaged : e.code());
    }
  });
  const size_t mark = input.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  const size_t text = input.find_first_not_of("\r\n") == std::string_view::npos ? 0 : input.size() - mark;
  GT_CHECK(none || gzip || bytes == static_cast<int64_t>(text));
  line(input.substr(0, input.find('\n')));
  const ByteCounts c = count_bytes(input);
  std::string clean;
  const int64_t bad = append_valid_utf8(input.substr(0, input.size() - utf8_open_suffix(input)), &clean);
  GT_CHECK(c.invalid == bad && c.zeros <= c.control && c.control <= c.bytes);
}

std::vector<std::string> seeds() {
  return {"You may convey covered works.\nTo others.\n",
          "{\"id\": NaN, \"text\": \"a \\ud83d\\ude00 \\udc00\"}\n{\"text\": \"b\", \"x\": [-Infinity, 1e999]}\n",
          "\xEF\xBB\xBFtext\n",
          "PK\3\4\x14\0\0\0\x08",
          std::string("\xFF\xFE"
                      "a\0b\0c\0",
                      8),
          "%PDF-1.4\n",
          "caf\xE9 na\xEFve fa\xE7on\n",
          "\x1F\x8B\x08",
          "{\"messages\": [{\"role\": \"user\"}]}\n[1]\n{\n"};
}

}  // namespace

Target text_lines() {
  return {"text_lines",
          run,
          seeds,
          {"{\"text\": \"", "NaN", "Infinity", "\\ud800", "\\", "\"}", "ustar", "{\"", "\n", "1e999", "-"},
          4000};
}

}  // namespace gt::fuzz
