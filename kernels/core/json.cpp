#include "kernels/core/json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "kernels/core/text.h"

namespace gt {
namespace {

// Returns the length of the UTF-8 sequence at s[i]; 0 if invalid (overlong, surrogate, beyond U+10FFFF, truncated).
size_t utf8_length(std::string_view s, size_t i) {
  auto at = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
  const unsigned char c = at(i);
  if (c < 0x80) return 1;
  const size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 0;
  if (n == 0 || c > 0xF4 || i + n > s.size()) return 0;
  for (size_t k = 1; k < n; ++k)
    if ((at(i + k) & 0xC0) != 0x80) return 0;
  const unsigned char d = at(i + 1);
  if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F) || (c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F))
    return 0;
  return n;
}

void append_utf8(std::string& out, uint32_t c) {
  auto put = [&](uint32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  }
}

// A number that from_chars refuses because it is nearer to 0 than any double, or an infinity.
double tiny(std::string_view text) { return std::strtod(std::string(text).c_str(), nullptr); }

class Parser {
 public:
  Parser(std::string_view text, const std::string& name, const JsonLimits& limits, JsonEvents& to)
      : s_(text), name_(name), limits_(limits), to_(to), line_(limits.first_line) {}

  void document() {
    value(1);
    space();
    if (i_ < s_.size()) error("expected the end of the text, found " + here());
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    const size_t column = i_ - line_start_ + 1;
    fail(limits_.code, name_.empty() ? cat("line ", line_, ", column ", column) : cat(name_, ':', line_, ':', column),
         ": ", what);
  }
  std::string here() const {
    if (i_ >= s_.size()) return "the end of the text";
    const auto c = static_cast<unsigned char>(s_[i_]);
    if (c > 0x20 && c < 0x7F) return cat('\'', s_[i_], '\'');
    return cat("byte ", static_cast<int>(c));
  }
  char peek() const { return i_ < s_.size() ? s_[i_] : '\0'; }
  void next() {
    if (s_[i_++] == '\n') ++line_, line_start_ = i_;
  }

  void space() {
    while (i_ < s_.size()) {
      const char c = s_[i_];
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        next();
      } else if (!limits_.comments) {
        return;
      } else if ((c == '/' && s_.substr(i_, 2) == "//") || (c == '#' && limits_.hash_comments)) {
        while (i_ < s_.size() && s_[i_] != '\n') next();
      } else if (c == '/' && s_.substr(i_, 2) == "/*") {
        if (s_.find("*/", i_ + 2) == std::string_view::npos) error("this comment is never closed: expected */");
        const size_t end = s_.find("*/", i_ + 2) + 2;
        while (i_ < end) next();
      } else {
        return;
      }
    }
  }

  void mark() {
    to_.line = line_;
    to_.column = static_cast<int>(i_ - line_start_ + 1);
  }

  void value(int depth) {
    space();
    if (depth > limits_.depth) error(cat("nested deeper than ", limits_.depth, " levels"));
    mark();
    const char c = peek();
    if (c == '{') {
      object(depth);
    } else if (c == '[') {
      array(depth);
    } else if (c == '"') {
      to_.string(string());
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      number();
    } else {
      word();
    }
  }

  void word() {
    size_t n = 0;
    while (i_ + n < s_.size() && std::isalpha(static_cast<unsigned char>(s_[i_ + n]))) ++n;
    const std::string_view w = s_.substr(i_, n);
    if (w == "true" || w == "false")
      to_.boolean(w == "true");
    else if (w == "null")
      to_.null();
    else
      error("expected a value, found " + (n ? cat("the word ", w.substr(0, 40), " (strings need quotes)") : here()));
    i_ += n;
  }

  void number() {
    const size_t begin = i_;
    auto digits = [&] {
      const size_t from = i_;
      while (peek() >= '0' && peek() <= '9') ++i_;
      if (i_ == from) error("expected a digit, found " + here());
      return i_ - from;
    };
    if (peek() == '-') ++i_;
    const bool zero = peek() == '0';
    if (digits() > 1 && zero) error("a number must not begin with 0");
    if (peek() == '.') ++i_, digits();
    if (peek() == 'e' || peek() == 'E') {
      ++i_;
      if (peek() == '+' || peek() == '-') ++i_;
      digits();
    }
    const std::string_view text = s_.substr(begin, i_ - begin);
    double x;
    if (!parse_double(text, x) && !std::isfinite(tiny(text)))
      error(cat("the number ", text.substr(0, 40), " is out of range"));
    to_.number(text);
  }

  uint32_t hex4() {
    uint32_t x = 0;
    for (int k = 0; k < 4; ++k, ++i_) {
      const char c = peek();
      const int d = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (d < 0) error("expected four hexadecimal digits after \\u, found " + here());
      x = x * 16 + static_cast<uint32_t>(d);
    }
    return x;
  }

  void escape(std::string& out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const char c = peek();
    if (const size_t k = kFrom.find(c); c != '\0' && k != std::string_view::npos) {
      out += kTo[k];
      ++i_;
    } else if (c == 'u') {
      ++i_;
      uint32_t x = hex4();
      if (x >= 0xD800 && x < 0xDC00 && s_.substr(i_, 2) == "\\u") {
        i_ += 2;
        const uint32_t low = hex4();
        if (low < 0xDC00 || low > 0xDFFF) error("a high surrogate without its low half");
        x = 0x10000 + ((x - 0xD800) << 10) + (low - 0xDC00);
      } else if (x >= 0xD800 && x <= 0xDFFF) {
        error("half of a surrogate pair");
      }
      append_utf8(out, x);
    } else {
      error("unknown escape \\ followed by " + here());
    }
  }

  std::string string() {
    std::string out;
    ++i_;
    for (;;) {
      if (i_ >= s_.size()) error("this string is never closed");
      const char c = s_[i_];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) error("control characters in strings must be escaped, found " + here());
      if (c == '\\') {
        ++i_;
        escape(out);
        continue;
      }
      const size_t n = utf8_length(s_, i_);
      if (n == 0) error("not UTF-8: " + here());
      out.append(s_.substr(i_, n));
      i_ += n;
    }
    ++i_;
    return out;
  }

  void array(int depth) {
    to_.open(false);
    ++i_;
    size_t entries = 0;
    for (space(); peek() != ']' || i_ >= s_.size(); space()) {
      count(++entries);
      value(depth + 1);
      if (!comma(']')) break;
    }
    ++i_;
    to_.close();
  }

  void object(int depth) {
    to_.open(true);
    ++i_;
    std::unordered_map<std::string, int> lines;  // key -> line
    for (space(); peek() != '}'; space()) {
      if (peek() != '"') error("expected a key in quotes or }, found " + here());
      const size_t at = i_;
      std::string key = string();
      if (const auto [first, fresh] = lines.emplace(key, line_); !fresh) {
        i_ = at;
        error(cat("the key \"", printable(key.substr(0, 80)), "\" is given twice, first in line ", first->second));
      }
      space();
      if (peek() != ':') error(cat("expected : after the key \"", printable(key.substr(0, 80)), "\", found ", here()));
      ++i_;
      count(lines.size());
      to_.key(std::move(key));
      value(depth + 1);
      if (!comma('}')) break;
    }
    ++i_;
    to_.close();
  }

  void count(size_t entries) const {
    if (entries > limits_.entries) error(cat("a list or an object of more than ", limits_.entries, " entries"));
  }

  // Consumes a comma after an element; returns true if another element may follow.
  bool comma(char end) {
    space();
    if (peek() == ',') {
      ++i_;
      space();
      if (peek() == end && !limits_.comments) error(cat("expected a value after the comma, found ", here()));
      return true;
    }
    if (peek() != end || i_ >= s_.size()) error(cat("expected , or ", end, ", found ", here()));
    return false;
  }

  std::string_view s_;
  const std::string& name_;
  const JsonLimits& limits_;
  JsonEvents& to_;
  size_t i_ = 0, line_start_ = 0;
  int line_;
};

}  // namespace

void read_json(std::string_view text, const std::string& where, const JsonLimits& limits, JsonEvents& to) {
  GT_REQUIRE(text.size() <= limits.bytes, limits.code, where, ": ", text.size(), " bytes of JSON; expected at most ",
             limits.bytes);
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  Parser(text, where, limits, to).document();
}

JsonNumber json_number_of(std::string_view text) {
  JsonNumber n;
  const auto whole = [&](auto& to) {
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), to);
    return ec == std::errc() && end == text.data() + text.size();
  };
  n.is_unsigned = whole(n.magnitude);
  n.is_signed = !n.is_unsigned && whole(n.negative);
  if (!n.is_unsigned && !n.is_signed && !parse_double(text, n.real)) n.real = tiny(text);
  return n;
}

void append_json_string(std::string& out, std::string_view s) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (size_t i = 0; i < s.size();) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (c == '"' || c == '\\') {
      out += '\\', out += s[i++];
    } else if (c == '\n') {
      out += "\\n", ++i;
    } else if (c < 0x20 || c == 0x7F) {
      out += "\\u00", out += kHex[c >> 4], out += kHex[c & 15], ++i;
    } else if (const size_t n = utf8_length(s, i)) {
      out.append(s.substr(i, n)), i += n;
    } else {
      out += "\xEF\xBF\xBD", ++i;
    }
  }
  out += '"';
}

std::string json_number(double x) {
  if (std::isnan(x)) return "\"nan\"";
  if (std::isinf(x)) return x > 0 ? "\"inf\"" : "\"-inf\"";
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr);
}

bool parse_int(std::string_view s, int64_t& out) {
  if (!s.empty() && s[0] == '+') s.remove_prefix(1);
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), out);
  return !s.empty() && ec == std::errc() && end == s.data() + s.size();
}

bool parse_double(std::string_view s, double& out) {
  if (!s.empty() && s[0] == '+') s.remove_prefix(1);
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), out);
  return !s.empty() && ec == std::errc() && end == s.data() + s.size() && std::isfinite(out);
}

}  // namespace gt
