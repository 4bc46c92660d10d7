#include "launch/options/json_text.h"

#include "kernels/core/files.h"

namespace gt {
namespace {

// Builds a JsonValue.
class ValueBuilder final : public JsonEvents {
 public:
  JsonValue root;
  void null() override { put(JsonValue::Kind::kNull); }
  void boolean(bool v) override { put(JsonValue::Kind::kBool).boolean = v; }
  void number(std::string_view text) override { put(JsonValue::Kind::kNumber).text = text; }
  void string(std::string&& v) override { put(JsonValue::Kind::kString).text = std::move(v); }
  void key(std::string&& k) override { open_.back().keys.push_back(std::move(k)); }
  void open(bool object) override {
    JsonValue v = made(object ? JsonValue::Kind::kObject : JsonValue::Kind::kArray);
    open_.push_back(std::move(v));
  }
  void close() override {
    JsonValue done = std::move(open_.back());
    open_.pop_back();
    slot() = std::move(done);
  }

 private:
  JsonValue made(JsonValue::Kind kind) const {
    JsonValue v;
    v.kind = kind, v.line = line, v.column = column;
    return v;
  }
  JsonValue& slot() { return open_.empty() ? root : open_.back().items.emplace_back(); }
  JsonValue& put(JsonValue::Kind kind) { return slot() = made(kind); }
  std::vector<JsonValue> open_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return &items[i];
  return nullptr;
}

JsonValue parse_json(std::string_view text, const std::string& name, JsonDialect dialect) {
  ValueBuilder to;
  read_json(text, name, {.comments = true, .hash_comments = dialect == JsonDialect::kHashComments}, to);
  return std::move(to.root);
}

std::string read_json_file(const std::string& path) { return read_whole_file(path, kMaxJsonBytes); }

const char* kind_name(JsonValue::Kind kind) {
  static constexpr const char* kNames[] = {"null", "true or false", "a number", "a string", "a list", "an object"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace gt
