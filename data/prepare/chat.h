// Conversations for fine-tuning: JSON lines in, tokens and their loss mask out. A template defines which text and
// special tokens stand around each message; targets are the assistant's words and the token that ends them. Templates:
// four by name, any other from a file (data/FORMAT.md). Untrusted input: lines and template files are checked.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace gt {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant };
struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string text;
  bool trained = true;  // false: an answer that is no target ("weight": 0)
};
using Conversation = std::vector<ChatMessage>;

// Reads {"messages": [{"role": "system"|"user"|"assistant", "content": TEXT, "weight": 0|1 (optional)}...]}. Returns
// false with the reason in *why: invalid JSON, a missing or repeated key, another role, content that is not a string, a
// key that may change what the line means and is not understood: any further key of a message, and of the line those
// known to (tools, images, system, response). Such a key is passed over if its value is null or empty, or with
// `ignore_unknown`.
bool parse_chat(std::string_view line, Conversation* out, std::string* why, bool ignore_unknown = false);
// Reads {"instruction" or "prompt": TEXT, "input": TEXT (optional), "output" or "response": TEXT, "system": TEXT
// (optional)} as a question and its answer; input follows the instruction after an empty line. Refuses further keys,
// except those known to describe the line (id, source, category).
bool parse_instruct(std::string_view line, Conversation* out, std::string* why, bool ignore_unknown = false);

// Text around messages. "{bos}", "{eos}", "{eod}" stand for those tokens of the tokenizer.
struct ChatTemplate {
  struct Turn {
    std::string before, end, after;  // `end` is also a target if the message is
  };
  std::string name;                     // shown in errors
  std::string begin;                    // of a conversation
  std::array<Turn, 3> turns;            // by ChatRole
  std::vector<std::string> special;     // parts of these texts that are one token each; the tokenizer must have them
  std::vector<std::string> special_if;  // the same where the tokenizer has them; else text
  bool system_in_user = false;  // a system message begins the user message that follows, with an empty line between
  bool trim = false;            // messages lose white space at both ends
  std::string default_system;   // begins a conversation whose first message is no system message; "": none
  // Whether conversations have the same text under both.
  bool writes_as(const ChatTemplate&) const;
};
// `name`: chatml (also ""), llama3, mistral, plain, or the path of a template file. Throws kUsage naming file, key,
// expected and found.
ChatTemplate load_chat_template(const std::string& name);

// Returns the built-in template whose tokens the tokenizer has: chatml, llama3 or mistral, else plain.
std::string fitting_chat_template(const Tokenizer&);

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> loss;  // of each id: 1, a target
  void clear() { ids.clear(), loss.clear(); }
};

// A template over a tokenizer. Immutable and thread-safe.
class ChatFormat {
 public:
  // Throws kUsage where the tokenizer lacks a special token of the template, naming all of them.
  ChatFormat(ChatTemplate t, const Tokenizer& tokenizer);

  // Appends the tokens of a conversation. Text is encoded between special tokens and where targets begin or end, so
  // that an answer is tokenized exactly as in generation after the same prompt. Returns false with the reason in *why
  // for a message that contains a special token of the template.
  bool encode(const Conversation&, Encoder&, ChatTokens* out, std::string* why) const;

  // Those of the template's special_if that the tokenizer does not have and that are written as text, with ", "
  // between them.
  const std::string& as_text() const { return as_text_; }

 private:
  struct Piece {
    std::string text;
    int32_t id = -1;  // >= 0: this token instead of text
  };
  using Pieces = std::vector<Piece>;
  class Writer;
  void resolve(const std::string& name, int32_t id);
  Pieces split(const std::string& text) const;

  ChatTemplate template_;
  std::string as_text_;
  std::vector<std::pair<std::string, int32_t>> special_;  // the longest first
  std::vector<std::string> forbidden_;                    // in messages: the tokenizer would make tokens of them
  Pieces begin_;
  std::array<std::array<Pieces, 3>, 3> turns_;  // by role: before, end, after
};

}  // namespace gt
