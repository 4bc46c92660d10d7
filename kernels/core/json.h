// The reader of JSON from disk, from other programs and from users. Bounds size, nesting and entries; rejects duplicate
// keys and invalid UTF-8, in time and memory linear in the text. Errors name line and column. Include it where JSON is
// read; it works with any Json type of nlohmann's and includes none.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/check.h"

namespace gt {

struct JsonLimits {
  Exit code = Exit::kUsage;  // of the errors
  size_t bytes = size_t{1} << 20;
  int depth = 32;              // objects and lists inside each other, the innermost value included
  size_t entries = SIZE_MAX;   // of one list or object
  bool comments = false;       // accept // and /* */ comments and trailing commas
  bool hash_comments = false;  // with `comments`: # also starts one
  int first_line = 1;          // number of the text's first line in errors
};

// For texts that this program wrote.
inline constexpr JsonLimits kOwnJson{.code = Exit::kInternal, .bytes = SIZE_MAX, .depth = 100};

// Receives a document in order. An exception ends the reading and passes through.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void number(std::string_view text) = 0;  // as written; within the range of a double
  virtual void string(std::string&& value) = 0;    // unescaped UTF-8
  virtual void key(std::string&& name) = 0;        // new in its object
  virtual void open(bool object) = 0;              // an object, or a list
  virtual void close() = 0;
  int line = 1, column = 1;  // where the value begins, both 1-based; set by read_json()
};

// Reads one document. Throws Error(limits.code) "where:line:column: expected …, found …", or where `where` is empty
// "line 1, column 1: expected …".
void read_json(std::string_view text, const std::string& where, const JsonLimits& limits, JsonEvents& to);

// A number that is written as an integer and fits 64 bits, or a real.
struct JsonNumber {
  bool is_unsigned = false, is_signed = false;  // neither: real
  uint64_t magnitude = 0;                       // is_unsigned
  int64_t negative = 0;                         // is_signed
  double real = 0;
};
JsonNumber json_number_of(std::string_view text);

// Builds a value of nlohmann's.
template <class Json>
class JsonBuilder final : public JsonEvents {
 public:
  Json root;
  void null() override { put(Json()); }
  void boolean(bool v) override { put(Json(v)); }
  void number(std::string_view text) override {
    const JsonNumber n = json_number_of(text);
    put(n.is_unsigned ? Json(n.magnitude) : n.is_signed ? Json(n.negative) : Json(n.real));
  }
  void string(std::string&& v) override { put(Json(std::move(v))); }
  void key(std::string&& k) override { key_ = std::move(k); }
  void open(bool object) override { open_.push_back({object ? Json::object() : Json::array(), std::move(key_)}); }
  void close() override {
    Container done = std::move(open_.back());
    open_.pop_back();
    key_ = std::move(done.key);
    put(std::move(done.value));
  }

 private:
  struct Container {
    Json value;
    std::string key;  // of this container in its parent
  };
  void put(Json v) {
    if (open_.empty()) {
      root = std::move(v);
    } else if (Json& parent = open_.back().value; parent.is_array()) {
      parent.template get_ref<typename Json::array_t&>().push_back(std::move(v));
    } else {  // not operator[], which in an ordered object compares all keys
      auto& members = parent.template get_ref<typename Json::object_t&>();
      if constexpr (requires { members.emplace_back(std::move(key_), std::move(v)); })
        members.emplace_back(std::move(key_), std::move(v));
      else
        members.emplace(std::move(key_), std::move(v));
    }
  }
  std::vector<Container> open_;
  std::string key_;
};

template <class Json>
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {}) {
  JsonBuilder<Json> to;
  read_json(text, where, limits, to);
  return std::move(to.root);
}

// A discarded value (Json::is_discarded) where parse_json() throws.
template <class Json>
Json parse_json_if_valid(std::string_view text, const JsonLimits& limits = {}) {
  try {
    return parse_json<Json>(text, "", limits);
  } catch (const Error&) { return Json(Json::value_t::discarded); }
}

// Appends the quoted, escaped form of a UTF-8 string; invalid bytes become U+FFFD.
void append_json_string(std::string& out, std::string_view s);

// Returns the shortest decimal that round-trips to the same double; "nan", "inf", "-inf" (quoted), which JSON numbers
// lack.
std::string json_number(double x);

// Parse the whole of `s` as a number; return false on trailing characters. Shared by flags and JSON.
bool parse_int(std::string_view s, int64_t& out);
bool parse_double(std::string_view s, double& out);  // finite only

}  // namespace gt
