// The reader of untrusted JSON (kernels/core/json.h): limits, positions, and the same values as nlohmann's parser.
#include <nlohmann/json.hpp>

#include "kernels/core/json.h"
#include "tests/support/test.h"

using namespace gt;
using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

namespace {

std::string error_of(const std::string& text, const JsonLimits& limits = {}, const std::string& where = "x") {
  try {
    parse_json<Json>(text, where, limits);
  } catch (const Error& e) {
    CHECK(e.code() == limits.code);
    return e.what();
  }
  return "";
}

// A random document of every kind of value, as text.
std::string random_text(int depth, uint32_t& seed) {
  const auto draw = [&](uint32_t n) { return seed = seed * 1664525 + 1013904223, (seed >> 8) % n; };
  static const std::vector<std::string> kLeaves = {"0",
                                                   "-0",
                                                   "-1",
                                                   "12",
                                                   "9223372036854775807",
                                                   "-9223372036854775808",
                                                   "18446744073709551615",
                                                   "18446744073709551616",
                                                   "-9223372036854775809",
                                                   "0.1",
                                                   "-2.5e-3",
                                                   "1E+10",
                                                   "1e-400",
                                                   "4.9e-324",
                                                   "true",
                                                   "false",
                                                   "null",
                                                   "\"\"",
                                                   "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\"",
                                                   "\"\xC3\xA9\xE2\x82\xAC\x7F\""};
  if (depth == 0 || draw(3) == 0) return kLeaves[draw(static_cast<uint32_t>(kLeaves.size()))];
  const bool object = draw(2) == 0;
  std::string out = object ? "{" : "[";
  for (uint32_t k = draw(5), i = 0; i < k; ++i) {
    out += i > 0 ? " ,\n" : "\t";
    if (object) out += "\"k" + std::to_string(7 * i % 5) + "\" : ";
    out += random_text(depth - 1, seed);
  }
  return out + (object ? "}" : "]");
}

template <class J>
void require_equal(const J& a, const J& b) {
  REQUIRE(a.type() == b.type());
  REQUIRE(a.dump() == b.dump());
}

}  // namespace

TEST_CASE("the JSON reader builds the values that nlohmann's parser builds, in the order of the text") {
  uint32_t seed = 7;
  for (int k = 0; k < 400; ++k) {
    const std::string text = random_text(4, seed);
    INFO(text);
    require_equal(parse_json<Json>(text, "x"), Json::parse(text));
    require_equal(parse_json<Ordered>(text, "x"), Ordered::parse(text));
  }
  for (const char* text : {"12", "-12", "18446744073709551615", "18446744073709551616", "1.0", "-0"})
    CHECK(parse_json<Json>(text, "x").type() == Json::parse(text).type());
  CHECK(parse_json<Json>("\xEF\xBB\xBF{}", "x").is_object());
}

TEST_CASE("errors of the JSON reader name line and column") {
  CHECK(error_of("{\"a\": 1,\n \"b\": }") == "x:2:7: expected a value, found '}'");
  CHECK(error_of("{\"a\": 1,\n \"b\": }", {.first_line = 8}) == "x:9:7: expected a value, found '}'");
  CHECK(error_of("{", {}, "") == "line 1, column 2: expected a key in quotes or }, found the end of the text");
  CHECK(error_of("[1 2]", {.code = Exit::kDamaged}) == "x:1:4: expected , or ], found '2'");
  CHECK(error_of(std::string("{}\0", 3)) == "x:1:3: expected the end of the text, found byte 0");
  CHECK(error_of("[\"\xFF\"]") == "x:1:3: not UTF-8: byte 255");
  CHECK(error_of("1e999") == "x:1:6: the number 1e999 is out of range");
}

TEST_CASE("the JSON reader refuses duplicate keys, also where they are escaped") {
  CHECK(error_of("{\"a\": 1,\n\"\\u0061\": 2}") == "x:2:1: the key \"a\" is given twice, first in line 1");
  CHECK(error_of("{\"a\": {\"a\": 1}, \"b\": {\"a\": 1}}").empty());
}

TEST_CASE("the JSON reader bounds bytes, nesting and entries before it builds more") {
  CHECK(error_of("[1,2]", {.bytes = 4}) == "x: 5 bytes of JSON; expected at most 4");
  CHECK(error_of("[[1]]", {.depth = 3}).empty());
  CHECK(error_of("[[1]]", {.depth = 2}) == "x:1:3: nested deeper than 2 levels");
  CHECK(error_of(std::string(1000000, '['), {}) == "x:1:33: nested deeper than 32 levels");
  CHECK(error_of("[1,2,3]", {.entries = 3}).empty());
  CHECK(error_of("[1,2,3]", {.entries = 2}) == "x:1:6: a list or an object of more than 2 entries");
  CHECK(error_of("{\"a\":1,\"b\":2}", {.entries = 1}) == "x:1:12: a list or an object of more than 1 entries");
}

TEST_CASE("comments and trailing commas are refused unless requested") {
  const std::string text = "// c\n{\"a\": [1, 2,], /* x */}";
  CHECK(error_of(text) == "x:1:1: expected a value, found '/'");
  CHECK(error_of("[1,]") == "x:1:4: expected a value after the comma, found ']'");
  CHECK(error_of("{\"a\":1,}") == "x:1:8: expected a value after the comma, found '}'");
  CHECK(error_of(text, {.comments = true}).empty());
  CHECK_FALSE(error_of("# c\n1", {.comments = true}).empty());
  CHECK(error_of("# c\n1", {.comments = true, .hash_comments = true}).empty());
}

TEST_CASE("parse_json_if_valid returns a discarded value for a broken text") {
  CHECK(parse_json_if_valid<Json>("{\"a\":").is_discarded());
  CHECK(parse_json_if_valid<Json>("{\"a\":1,\"a\":2}").is_discarded());
  CHECK(parse_json_if_valid<Json>("{\"a\":1}").at("a") == 1);
}
