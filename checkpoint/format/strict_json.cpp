#include "checkpoint/format/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "kernels/core/check.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}
  Json root;

  bool null() override { return put(Json()); }
  bool boolean(bool v) override { return put(Json(v)); }
  bool number_integer(number_integer_t v) override { return put(Json(v)); }
  bool number_unsigned(number_unsigned_t v) override { return put(Json(v)); }
  bool number_float(number_float_t v, const string_t&) override { return put(Json(v)); }
  bool string(string_t& v) override { return put(Json(std::move(v))); }
  bool binary(binary_t&) override { return false; }  // has no text form
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    GT_REQUIRE(open_.back().keys.insert(k).second, Exit::kDamaged, "duplicate key \"", k.substr(0, 200), "\"");
    key_ = std::move(k);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    // Rethrow with its dynamic type: the handler receives the base class.
    if (const auto* parse = dynamic_cast<const Json::parse_error*>(&e)) throw *parse;
    if (const auto* range = dynamic_cast<const Json::out_of_range*>(&e)) throw *range;
    fail(Exit::kDamaged, e.what());
  }

 private:
  struct Container {
    Json value;
    std::string key;             // key of this container in its parent
    std::set<std::string> keys;  // keys of an object so far
  };

  bool open(Json value) {
    GT_REQUIRE(static_cast<int>(open_.size()) < max_depth_, Exit::kDamaged, "nested deeper than ", max_depth_);
    open_.push_back({std::move(value), std::move(key_), {}});
    return true;
  }
  bool close() {
    Container done = std::move(open_.back());
    open_.pop_back();
    key_ = std::move(done.key);
    return put(std::move(done.value));
  }
  bool put(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return true;
    }
    Json& parent = open_.back().value;
    if (parent.is_array())
      parent.get_ref<Json::array_t&>().push_back(std::move(value));
    else  // not operator[], which searches all keys: key() has checked that this one is new
      parent.get_ref<Json::object_t&>().emplace_back(std::move(key_), std::move(value));
    return true;
  }

  const int max_depth_;
  std::vector<Container> open_;
  std::string key_;
};

}  // namespace

void require_few_entries(std::string_view text, size_t most) {
  constexpr size_t kMostLevels = 100;
  std::vector<size_t> entries;  // per open container: entries - 1
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        while (++i < text.size() && text[i] != '"') i += text[i] == '\\';
        break;
      case '{':
      case '[':
        entries.push_back(0);
        if (entries.size() > kMostLevels) return;  // rejected later for its nesting
        break;
      case '}':
      case ']':
        if (!entries.empty()) entries.pop_back();
        break;
      case ',':
        GT_REQUIRE(entries.empty() || ++entries.back() < most, Exit::kDamaged, "a list or an object of more than ",
                   most, " entries");
        break;
      default: break;
    }
  }
}

Json parse_strict_json(std::string_view text, int max_depth) {
  const size_t zero = text.find('\0');  // which nlohmann's parser takes for the end of the text
  GT_REQUIRE(zero == std::string_view::npos, Exit::kDamaged, "a zero byte at byte ", zero);
  Builder builder(max_depth);
  Json::sax_parse(text, &builder);
  return std::move(builder.root);
}

}  // namespace gt
