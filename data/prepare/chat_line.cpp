// Lines of conversations, parsed without building a tree: memory stays proportional to the line.
#include <map>
#include <nlohmann/json.hpp>

#include "data/prepare/chat.h"
#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

// Collects the strings of the outermost object, and the messages of its list "messages".
struct ConversationListener final : nlohmann::json_sax<nlohmann::json> {
  std::map<std::string, std::string> texts;  // of the outermost object
  Conversation messages;
  bool has_messages = false;
  std::string why;

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("true or false"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("bytes"); }
  bool string(string_t& s) override {
    if (depth_ == 0) return refuse("expected an object, found a string");
    if (depth_ == 1 && key_ == "messages") return other("a string");
    if (depth_ == 1 && !texts.emplace(key_, std::move(s)).second)
      return refuse(cat("two keys \"", printable(key_), "\""));
    if (depth_ == 2 && in_list_) return refuse(cat(where(), ": expected an object, found a string"));
    if (depth_ != 3 || !in_list_) return true;
    if (key_ == "content") {
      if (has_content_) return refuse(cat(where(), ": two keys \"content\""));
      messages.back().text = std::move(s), has_content_ = true;
    }
    return key_ != "role" || take_role(s);
  }
  bool start_object(size_t) override {
    const bool message = depth_ == 2 && in_list_;
    if (depth_ > 0 && !message && !other("an object")) return false;
    if (message) messages.emplace_back(), has_role_ = has_content_ = false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ != 2 || !in_list_) return true;
    if (!has_role_) return refuse(cat(where(), " has no key \"role\""));
    return has_content_ || refuse(cat(where(), " has no key \"content\""));
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return refuse("expected an object, found a list");
    if (depth_ == 1 && key_ == "messages") {
      if (has_messages) return refuse("two keys \"messages\"");
      has_messages = in_list_ = true;
    } else if (!other("a list")) {
      return false;
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) in_list_ = false;
    return true;
  }
  bool key(string_t& k) override {
    key_ = std::move(k);
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(cat("broken JSON at byte ", at, " of the line"));
  }

 private:
  bool refuse(std::string reason) {
    if (why.empty()) why = std::move(reason);
    return false;
  }
  std::string where() const { return cat("message ", messages.size()); }
  bool take_role(const std::string& role) {
    if (has_role_) return refuse(cat(where(), ": two keys \"role\""));
    has_role_ = true;
    for (const auto& [name, r] :
         {std::pair("system", ChatRole::kSystem), {"user", ChatRole::kUser}, {"assistant", ChatRole::kAssistant}})
      if (role == name) return messages.back().role = r, true;
    return refuse(cat(where(), ": expected the role system, user or assistant, found ", printable(role.substr(0, 40))));
  }
  // A value that is not a string, where one may be expected.
  bool other(const char* found) {
    if (depth_ == 0) return refuse(cat("expected an object, found ", found));
    if (depth_ == 1 && key_ == "messages") return refuse(cat("\"messages\": expected a list, found ", found));
    if (depth_ == 2 && in_list_) return refuse(cat("\"messages\": expected objects, found ", found));
    if (depth_ == 3 && in_list_ && (key_ == "role" || key_ == "content"))
      return refuse(cat(where(), ": \"", key_, "\": expected a string, found ", found));
    return true;
  }
  int depth_ = 0;
  bool in_list_ = false, has_role_ = false, has_content_ = false;
  std::string key_;
};

bool listen(std::string_view line, ConversationListener* l, std::string* why) {
  const bool ok = nlohmann::json::sax_parse(line.begin(), line.end(), l);
  if (!ok) *why = l->why;
  return ok;
}

// The text under the first of these keys that is there; nullptr: none is.
std::string* first_of(std::map<std::string, std::string>& texts, std::initializer_list<const char*> keys) {
  for (const char* k : keys)
    if (const auto it = texts.find(k); it != texts.end()) return &it->second;
  return nullptr;
}

}  // namespace

bool parse_chat(std::string_view line, Conversation* out, std::string* why) {
  ConversationListener l;
  if (!listen(line, &l, why)) return false;
  if (!l.has_messages) return *why = "the object has no key \"messages\"", false;
  *out = std::move(l.messages);
  return true;
}

bool parse_instruct(std::string_view line, Conversation* out, std::string* why) {
  ConversationListener l;
  if (!listen(line, &l, why)) return false;
  std::string* const question = first_of(l.texts, {"instruction", "prompt"});
  std::string* const answer = first_of(l.texts, {"output", "response"});
  if (question == nullptr) return *why = "the object has no text \"instruction\" or \"prompt\"", false;
  if (answer == nullptr) return *why = "the object has no text \"output\" or \"response\"", false;
  out->clear();
  if (std::string* const system = first_of(l.texts, {"system"}); system != nullptr && !system->empty())
    out->push_back({ChatRole::kSystem, std::move(*system)});
  if (const std::string* const input = first_of(l.texts, {"input"}); input != nullptr && !input->empty())
    *question += "\n\n" + *input;
  out->push_back({ChatRole::kUser, std::move(*question)});
  out->push_back({ChatRole::kAssistant, std::move(*answer)});
  return true;
}

}  // namespace gt
