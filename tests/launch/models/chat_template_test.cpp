// Chat templates of Hugging Face folders: conversations have the text and ids that transformers gives them, or the
// template is reported as one that is not read.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/prepare/jinja_template.h"
#include "tests/data/byte_level_json.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;
using test::Json;

const std::string kPrompt = R"({% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";
const std::string kTurn = R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}})";

// Templates of the forms in use.
const std::vector<std::pair<std::string, std::string>> kRead = {
    {"chatml", "{% for message in messages %}" + kTurn + "{% endfor %}" + kPrompt},
    {"lines", R"(
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\n" + message.content | trim + "<|im_end|>\n" }}
{%- endfor %}
{#- the answer begins here #}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\n" -}}
{%- endif %}
)"},
    {"default",
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
     R"({{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %})" +
         kTurn + "{% endfor %}" + kPrompt},
    {"tools", R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.name }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)"},
    {"roles", R"({% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %})"},
    {"headers",
     R"({% set loop_messages = messages %}{% for message in loop_messages %})"
     R"({% set content = '<|start|>' + message['role'] + '<|end|>\n\n'+ message['content'] | trim + '<|eot|>' %})"
     R"({% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %})"
     R"({% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %})"},
    {"marks",
     R"({{ bos_token }}{% for message in messages %})"
     R"({% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turn') }}{% endif %})"
     R"({% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }})"
     R"({% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }})"
     R"({% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %})"}};

// Of other forms, or broken.
const std::vector<std::string> kUnread = {
    "",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for message in messages %}{{ message['content'] }}{% endfor %}",  // no token ends an answer
    "{% for message in messages %}{{ message['role'] + message['content'] | upper + '<e>' }}{% endfor %}",
    "{% for message in messages %}" + kTurn + "{% endfor %}{% if add_generation_prompt %}x{% endif %}",
    "{% for message in messages %}" + kTurn + "{% endfor %}{{ eos_token }}",
    "{% for message in messages %}" + kTurn +
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}" +
        "{% else %}{{ eos_token }}{% endif %}",
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'u' + message['content'] + '<e>' }}" +
        std::string("{% else %}{{ unheard(message) }}{% endif %}{% endfor %}"),
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ 'sys' }}{% endif %}" +
        kTurn + "{% endfor %}",
    "{% set role = 'model' %}{% for message in messages %}" + kTurn + "{% endfor %}",
    "{% for message in messages %}{{ 'a' + message['content'] + '<e>",
    "{% for message in messages +%}" + kTurn + "{% endfor %}",
    "{% for message in messages %}{{ '\\x41' + message['content'] + '<e>' }}{% endfor %}"};

const std::vector<std::string> kTalks = {
    R"({"messages": [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "hello\nyou"}]})",
    R"({"messages": [{"role": "system", "content": "be kind "}, {"role": "user", "content": "a"}, )"
    R"({"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d "}]})"};

// A tokenizer of bytes with the tokens of kRead.
void write_folder(const std::string& folder, const std::string& chat_template) {
  fs::create_directories(folder);
  Json j = test::byte_level_json();
  Json config{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"tokenizer_class", "PreTrainedTokenizerFast"}};
  Json added = j["added_tokens"][0];
  for (const char* token : {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|system|>", "<|assistant|>",
                            "<|start|>", "<|end|>", "<|eot|>", "[INST]", "[/INST]"}) {
    added["id"] = added["id"].get<int64_t>() + 1, added["content"] = token;
    j["added_tokens"].push_back(added);
  }
  write_file(folder + "/tokenizer.json", j.dump());
  write_file(folder + "/tokenizer_config.json", config.dump());
  write_file(folder + "/chat_template.jinja", chat_template);
}

std::vector<int32_t> ids_of(const Tokenizer& t, const ChatTemplate& chat_template, const std::string& line) {
  const ChatFormat format(chat_template, t);
  Encoder encoder(t);
  Conversation messages;
  ChatTokens out;
  std::string why;
  REQUIRE(parse_chat(line, &messages, &why));
  REQUIRE(format.encode(messages, encoder, &out, &why));
  return out.ids;
}

}  // namespace

TEST_CASE("conversations have the ids that transformers gives them with the folder's own chat template") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  if (!fs::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  write_file(dir / "talks.jsonl", kTalks[0] + "\n" + kTalks[1] + "\n");
  std::string folders;
  for (const auto& [name, text] : kRead) {
    write_folder(dir / name, text);
    folders += " " + name;
  }
  const Outcome r = shell(
      python + " " + source_dir() + "/tests/readers/chat_template.py talks.jsonl out.jsonl" + folders, dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  std::istringstream theirs(read_file(dir / "out.jsonl"));
  for (const auto& [name, text] : kRead) {
    INFO(name);
    const auto own = folder_chat_template(dir / name);
    REQUIRE((own && own->readable));
    const Tokenizer t = Tokenizer::load(dir / name);
    for (const std::string& talk : kTalks) {
      INFO(talk);
      std::string line;
      std::getline(theirs, line);
      const Json expected = Json::parse(line);
      CHECK(expected.is_null() == (name == "marks" && talk == kTalks[1]));  // it refuses a system message
      if (!expected.is_null()) CHECK(ids_of(t, *own->readable, talk) == expected["ids"].get<std::vector<int32_t>>());
    }
  }
}

TEST_CASE("chat templates of other forms, and broken ones, are not read") {
  for (const std::string& text : kUnread) {
    INFO(text);
    CHECK_FALSE(read_jinja_template(text));
  }
  // Every beginning of one, and every one without a character: read or not, without a crash.
  for (const auto& [name, text] : kRead)
    for (size_t n = 0; n < text.size(); ++n) {
      read_jinja_template(text.substr(0, n));
      read_jinja_template(text.substr(0, n) + text.substr(n + 1));
    }
}

TEST_CASE("data prepare takes the chat template of the tokenizer's folder, and reports where another is used") {
  TempDir dir;
  write_file(dir / "talks.jsonl", kTalks[0] + "\n");
  write_folder(dir / "tok", kRead[2].second);
  const std::string prepare = "data prepare --input talks.jsonl --format chat --tokenizer tok --force --output ";
  const Outcome own = must(prepare + "own", dir);
  CHECK(own.prints("the chat template is that of tok/chat_template.jinja"));
  CHECK(own.prints("without a system message begin with \"You help.\""));
  CHECK(must(prepare + "other --template chatml", dir)
            .prints("--template chatml writes other text than the folder's own chat template in tok/"));
  const std::string bytes = read_file(dir / "own.bin");
  CHECK(bytes != read_file(dir / "other.bin"));
  write_file(dir / "mine.json", R"({"system": {"before": "<|im_start|>system\n", "end": "<|im_end|>", "after": "\n"},
    "user": {"before": "<|im_start|>user\n", "end": "<|im_end|>", "after": "\n"}, "default_system": "You help.",
    "assistant": {"before": "<|im_start|>assistant\n", "end": "<|im_end|>", "after": "\n"},
    "special": ["<|im_start|>", "<|im_end|>"]})");
  CHECK_FALSE(must(prepare + "mine --template mine.json", dir).prints("writes other text"));
  CHECK(read_file(dir / "mine.bin") == bytes);

  // In tokenizer_config.json, alone or by name; a file comes first.
  fs::remove(dir / "tok/chat_template.jinja");
  Json config = Json::parse(read_file(dir / "tok/tokenizer_config.json"));
  config["chat_template"] = Json::array(
      {Json{{"name", "tool_use"}, {"template", "x"}}, Json{{"name", "default"}, {"template", kRead[2].second}}});
  write_file(dir / "tok/tokenizer_config.json", config.dump());
  CHECK(must(prepare + "named", dir).prints("that of tok/tokenizer_config.json"));
  CHECK(read_file(dir / "named.bin") == bytes);
  write_file(dir / "tok/chat_template.jinja", kUnread[1]);
  CHECK(must(prepare + "unread", dir).prints("a form that is not read; chatml is used"));
  CHECK(read_file(dir / "unread.bin") == read_file(dir / "other.bin"));
}
