// Lines of conversations, template files and Jinja templates: each gets the same input. A template that is read meets a
// tokenizer.
#include "data/prepare/chat.h"

#include "data/prepare/jinja_template.h"
#include "tests/data/byte_level_json.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void line(bool (*parse)(std::string_view, Conversation*, std::string*, bool), std::string_view input) {
  Conversation c;
  std::string why;
  if (parse(input, &c, &why, false)) {
    ++outcome().accepted;
    size_t bytes = 0;
    for (const ChatMessage& m : c) bytes += m.text.size();
    GT_CHECK(bytes <= input.size() + 2 && why.empty());
  } else {
    GT_CHECK(!why.empty());
    outcome().refusals += why;
  }
}

void write_with(const ChatTemplate& t, const Tokenizer& tokenizer) {
  refused([&] {
    const ChatFormat format(t, tokenizer);
    Encoder encoder(tokenizer);
    ChatTokens tokens;
    std::string why;
    GT_CHECK(format.encode({{ChatRole::kUser, "a b"}, {ChatRole::kAssistant, "c"}}, encoder, &tokens, &why) ==
             why.empty());
    GT_CHECK(tokens.ids.size() == tokens.loss.size());
  });
}

void run(std::string_view input) {
  static const ScratchFile file("template.json");
  static const Tokenizer tokenizer = Tokenizer::from_bytes(test::byte_level_json().dump(), "tokenizer.json");
  line(parse_chat, input);
  line(parse_instruct, input);
  if (const auto jinja = read_jinja_template(input)) {
    ++outcome().accepted;
    GT_CHECK(!jinja->turns[2].end.empty());
    write_with(*jinja, tokenizer);
  }
  file.put(input);
  ChatTemplate t;
  if (!refused([&] { t = load_chat_template(file.path()); })) write_with(t, tokenizer);
}

std::vector<std::string> seeds() {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  return {
      R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"},)"
      R"( {"role": "assistant", "content": "c\u00e9"}], "id": 3})",
      R"({"instruction": "a", "input": "b", "output": "c", "system": "d"})",
      R"({"prompt": "a", "response": "c", "more": {"messages": [1, {"x": null}]}})",
      R"({"begin": "{bos}", "system": {"before": "s"}, "user": {"before": "u", "after": "\n"}, "assistant": {"end": "e",)"
      R"( "before": "x"}, "special": ["a"], "special_if": ["zz"], "trim": true, "system_in_user": false})",
      R"({"user": {}, "assistant": {"end": "c"}, "system_in_user": true})",
      R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'system:d;' }}{% endif %})"
      R"({{- message.role + ':' + message['content'] | trim + ';' }}{% endfor %})",
      R"({{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'u' + message['content'] }})"
      R"({% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% endif %}{% endfor %})",
      "{\"messages\": " + deep + "}",
      "{\"user\": " + deep + "}"};
}

}  // namespace

Target chat() {
  return {"chat",
          run,
          seeds,
          {"\"messages\"", "\"weight\": 0", "NaN", "\"tool_calls\"", "\"role\"", "\"content\"", "\"user\"",
           "\"assistant\"", "\"special\"", "{eos}", "\"before\"", "{%- ", " -%}", "{{ ", " }}", "{% endif %}",
           "{% else %}", "message['content']"},
          4000};
}

}  // namespace gt::fuzz
