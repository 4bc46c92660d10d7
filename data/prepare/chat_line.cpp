// Lines of conversations, parsed without building a tree: memory stays proportional to the line.
#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "data/prepare/chat.h"
#include "data/prepare/json_line.h"
#include "kernels/core/check.h"
#include "kernels/core/text.h"

namespace gt {
namespace {

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Keys of a message beside role, content and weight that do not change its text.
bool describes_message(std::string_view key) {
  return is_one_of(key, {"id", "message_id", "timestamp", "created_at", "create_time"});
}

// Keys of a line with messages that change what should be learned from them, in any case.
bool changes_messages(std::string_view key) {
  std::string k(key);
  std::transform(k.begin(), k.end(), k.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view begin : {"train", "loss", "mask", "weight", "system", "tool", "function", "image",
                                       "video", "audio", "reasoning", "thinking", "ignore", "exclude", "chat_template"})
    if (k.starts_with(begin)) return true;
  return k.ends_with("_mask") ||
         is_one_of(
             k, {"answer",        "answers",      "chosen",    "completion",     "completions", "context",
                 "conversations", "deleted",      "developer", "documents",      "history",     "input",
                 "instruction",   "instructions", "labels",    "output",         "outputs",     "parallel_tool_calls",
                 "rejected",      "response",     "responses", "roles_to_train", "skip",        "target",
                 "targets"});
}

// Keys of an instruction that do not change its text; "text" is the whole of it in Alpaca's files.
bool describes_instruction(std::string_view key) {
  return is_one_of(key,
                   {"id",   "uuid",     "idx",       "index",      "source", "dataset", "category", "topic",   "task",
                    "text", "split",    "timestamp", "created_at", "date",   "lang",    "language", "license", "url",
                    "meta", "metadata", "tags",      "difficulty", "score",  "model",   "generator"});
}

// Collects the strings of the outermost object, and the messages of its list "messages".
struct ConversationListener final : nlohmann::json_sax<nlohmann::json> {
  std::map<std::string, std::string> texts;  // of the outermost object
  std::map<std::string, bool> others;        // its keys without a text; whether the value is more than null or empty
  Conversation messages;
  JsonKeys keys;
  bool has_messages = false, ignore_unknown = false;
  size_t broken = 0;  // byte of a syntax error
  std::string why;

  bool null() override { return other("null", false); }
  bool boolean(bool) override { return other("true or false", true); }
  bool number_integer(number_integer_t n) override { return number(static_cast<double>(n)); }
  bool number_unsigned(number_unsigned_t n) override { return number(static_cast<double>(n)); }
  bool number_float(number_float_t x, const string_t& s) override {
    return s == kNan || s == kInfinity || s == kMinusInfinity ? other("NaN or Infinity", true) : number(x);
  }
  bool binary(binary_t&) override { return other("bytes", true); }
  bool string(string_t& s) override {
    if (depth_ == 0) return refuse("expected an object, found a string");
    if (depth_ == 1 && key_ == "messages") return other("a string", true);
    if (depth_ == 1) keys.see(key_, true);
    if (depth_ == 1 && !texts.emplace(key_, std::move(s)).second)
      return refuse(cat("two keys \"", printable(key_), "\""));
    if (depth_ == 2 && in_list_) return refuse(cat(where(), ": expected an object, found a string"));
    if (depth_ != 3 || !in_list_) return filled();
    if (key_ == "content") {
      if (has_content_) return refuse(cat(where(), ": two keys \"content\""));
      messages.back().text = std::move(s), has_content_ = true;
      return true;
    }
    if (key_ == "weight") return other("a string", true);
    return key_ == "role" ? take_role(s) : unknown(!s.empty());
  }
  bool start_object(size_t) override {
    const bool message = depth_ == 2 && in_list_;
    if (depth_ > 0 && !message && !open("an object")) return false;
    if (message) messages.emplace_back(), has_role_ = has_content_ = false, weight_ = -1;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ != 2 || !in_list_) return true;
    if (!has_role_) return refuse(cat(where(), " has no key \"role\""));
    if (weight_ == 1 && messages.back().role != ChatRole::kAssistant)
      return refuse(cat(where(), ": \"weight\": 1 outside of an answer; only the assistant's messages are trained on"));
    messages.back().trained = weight_ != 0;
    return has_content_ || refuse(cat(where(), " has no key \"content\""));
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return refuse("expected an object, found a list; convert it: jq -c '.[]' FILE > FILE.jsonl");
    if (depth_ == 1 && key_ == "messages") {
      if (has_messages) return refuse("two keys \"messages\"");
      has_messages = in_list_ = true;
    } else if (!open("a list")) {
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
    const bool counts = depth_ == 1 || (depth_ == 3 && in_list_);
    if (counts) key_ = std::move(k);
    if (depth_ == 1) keys.see(key_, false);
    return counts || filled();
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    broken = at;
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
  bool number(double x) {
    if (depth_ != 3 || !in_list_ || key_ != "weight") return other("a number", true);
    if (weight_ >= 0) return refuse(cat(where(), ": two keys \"weight\""));
    if (x != 0 && x != 1) return refuse(cat(where(), ": \"weight\": expected 0 (no loss) or 1, found ", x));
    weight_ = x == 0 ? 0 : 1;
    return true;
  }
  // A list or object that begins; what is in it decides whether it is empty.
  bool open(const char* found) { return other(found, false); }
  // A value that is not a string, where one may be expected. `full`: not null, nor the beginning of a list or object.
  bool other(const char* found, bool full) {
    if (depth_ == 0) return refuse(cat("expected an object, found ", found));
    if (depth_ == 1 && key_ == "messages") return refuse(cat("\"messages\": expected a list, found ", found));
    if (depth_ == 1) return others[key_] |= full, true;
    if (depth_ == 2 && in_list_) return refuse(cat("\"messages\": expected objects, found ", found));
    if (depth_ != 3 || !in_list_) return filled();
    const bool list = std::string_view(found) == "a list";
    if (key_ == "role" || key_ == "content")
      return refuse(cat(where(), ": \"", key_, "\": expected a string, found ", found,
                        list ? " of parts; join their texts: jq -c '.messages[].content |= (if type == \"array\" then "
                               "map(.text) | join(\"\") else . end)' FILE > FILE.text.jsonl"
                             : ""));
    if (key_ == "weight" && full) return refuse(cat(where(), ": \"weight\": expected 0 or 1, found ", found));
    return unknown(full);
  }
  // A value inside of a list or object: its key has more than an empty value.
  bool filled() {
    if (in_list_ && depth_ > 3) return unknown(true);
    if (!in_list_ && depth_ > 1) others[key_] = true;
    return true;
  }
  // A value of a further key of a message.
  bool unknown(bool full) {
    if (!full || ignore_unknown || describes_message(key_)) return true;
    return refuse(cat(where(), ": \"", printable(key_.substr(0, 40)),
                      "\": a key that may change what the message means and is not understood; remove it, or give "
                      "--ignore-unknown to pass over it"));
  }
  int depth_ = 0, weight_ = -1;
  bool in_list_ = false, has_role_ = false, has_content_ = false;
  std::string key_;  // of the line, or of the message
};

bool listen(std::string_view line, bool ignore_unknown, ConversationListener* l, std::string* why) {
  if (const size_t zero = line.find('\0'); zero != std::string_view::npos) {  // the parser would end there
    *why = cat("broken JSON at byte ", zero, " of the line: a zero byte");
    return false;
  }
  l->ignore_unknown = ignore_unknown;
  if (nlohmann::json::sax_parse(line.begin(), line.end(), l)) return true;
  std::string again;
  if (l->broken > 0) again = line;
  if (l->broken > 0 && standard_json(&again) >= 0) {
    *l = ConversationListener();
    l->ignore_unknown = ignore_unknown;
    if (nlohmann::json::sax_parse(again, l)) return true;
  }
  *why = l->why;
  if (l->broken > 0 && opens_object(line)) *why += kOverLines;
  return false;
}

// Refuses keys of the line by `refused`, unless their values are null or empty.
template <class F>
bool only_known_keys(const ConversationListener& l, std::string* why, F&& refused) {
  if (l.ignore_unknown) return true;
  const auto stop = [&](const std::string& key, bool full) {
    if (!full || !refused(key)) return false;
    *why = cat("\"", printable(key.substr(0, 40)),
               "\": a key that may change what the line means and is not understood; remove it, or give "
               "--ignore-unknown to pass over it");
    return true;
  };
  for (const auto& [key, text] : l.texts)
    if (stop(key, !text.empty())) return false;
  for (const auto& [key, full] : l.others)
    if (stop(key, full)) return false;
  return true;
}

// The text under the only one of these keys that is there; nullptr: none is.
std::string* only_of(std::map<std::string, std::string>& texts, const char* first, const char* second,
                     std::string* why) {
  const auto a = texts.find(first), b = texts.find(second);
  if (a != texts.end() && b != texts.end() && !a->second.empty() && !b->second.empty() && a->second != b->second)
    *why = cat("two texts, \"", first, "\" and \"", second, "\"; keep one of them");
  if (a != texts.end() && (b == texts.end() || !a->second.empty())) return &a->second;
  return b != texts.end() ? &b->second : nullptr;
}

}  // namespace

bool parse_chat(std::string_view line, Conversation* out, std::string* why, bool ignore_unknown) {
  ConversationListener l;
  if (!listen(line, ignore_unknown, &l, why)) return false;
  if (!l.has_messages) {
    l.keys.text.clear();  // --json-key is for text
    const std::string form = other_form(l.keys);
    *why = cat("the object has no key \"messages\"", form.empty() ? "" : "; ", form);
    return false;
  }
  if (!only_known_keys(l, why, changes_messages)) return false;
  *out = std::move(l.messages);
  return true;
}

bool parse_instruct(std::string_view line, Conversation* out, std::string* why, bool ignore_unknown) {
  ConversationListener l;
  if (!listen(line, ignore_unknown, &l, why)) return false;
  std::string both;
  std::string* const question = only_of(l.texts, "instruction", "prompt", &both);
  std::string* const answer = only_of(l.texts, "output", "response", &both);
  if (!both.empty()) return *why = both, false;
  l.keys.text.clear();
  const std::string form = question == nullptr || answer == nullptr ? other_form(l.keys) : "";
  const std::string hint = form.empty() ? "" : "; " + form;
  if (question == nullptr) return *why = "the object has no text \"instruction\" or \"prompt\"" + hint, false;
  if (answer == nullptr) return *why = "the object has no text \"output\" or \"response\"" + hint, false;
  const auto known = [](std::string_view key) {
    return is_one_of(key, {"instruction", "prompt", "output", "response", "input", "system"}) ||
           describes_instruction(key);
  };
  if (!only_known_keys(l, why, [&](std::string_view key) { return !known(key); })) return false;
  for (const char* key : {"input", "system"})
    if (const auto it = l.others.find(key); it != l.others.end() && it->second)
      return *why = cat("\"", key, "\": expected a string"), false;
  out->clear();
  if (const auto system = l.texts.find("system"); system != l.texts.end() && !system->second.empty())
    out->push_back({ChatRole::kSystem, std::move(system->second)});
  if (const auto input = l.texts.find("input"); input != l.texts.end() && !input->second.empty())
    *question += "\n\n" + input->second;
  out->push_back({ChatRole::kUser, std::move(*question)});
  out->push_back({ChatRole::kAssistant, std::move(*answer)});
  return true;
}

}  // namespace gt
