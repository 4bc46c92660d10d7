// Chat templates: those known by name, and files.
#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "data/prepare/chat.h"
#include "data/tokens/files.h"
#include "kernels/core/check.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {
using Json = nlohmann::json;
using Turn = ChatTemplate::Turn;
constexpr int64_t kMaxTemplateFile = 64 << 10;
constexpr const char* kRoles[] = {"system", "user", "assistant"};

std::array<Turn, 3> alike(const std::string& before, const std::string& behind_name, const std::string& end,
                          const std::string& after) {
  std::array<Turn, 3> turns;
  for (size_t r = 0; r < 3; ++r) turns[r] = {before + kRoles[r] + behind_name, end, after};
  return turns;
}

// ChatML as Qwen's tokenizer_config.json has it.
ChatTemplate chatml() {
  return {.name = "chatml",
          .begin = "",
          .turns = alike("<|im_start|>", "\n", "<|im_end|>", "\n"),
          .special = {"<|im_start|>", "<|im_end|>"},
          .special_if = {}};
}
// Llama 3 (llama.com/docs/model-cards-and-prompt-formats/meta-llama-3).
ChatTemplate llama3() {
  return {.name = "llama3",
          .begin = "<|begin_of_text|>",
          .turns = alike("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", ""),
          .special = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
          .special_if = {},
          .trim = true};
}
// Mistral 7B Instruct v0.1 (docs: huggingface.co/docs/transformers, chat templating); [INST] is text or a token.
ChatTemplate mistral() {
  return {.name = "mistral",
          .begin = "{bos}",
          .turns = {Turn{}, Turn{"[INST] ", "", " [/INST]"}, Turn{"", "{eos}", " "}},
          .special = {},
          .special_if = {"[INST]", "[/INST]"},
          .system_in_user = true};
}
// Words alone: for tokenizers without tokens of a chat.
ChatTemplate plain() {
  ChatTemplate t{.name = "plain", .begin = "", .turns = alike("", ":\n", "", "\n\n"), .special = {}, .special_if = {}};
  t.turns[static_cast<size_t>(ChatRole::kAssistant)] = {"assistant:\n", "{eod}", ""};
  return t;
}

void refuse_others(const Json& j, const std::string& where, std::initializer_list<const char*> known) {
  for (const auto& [key, value] : j.items())
    GT_REQUIRE(std::find(known.begin(), known.end(), key) != known.end(), Exit::kUsage, where, "\"", key,
               "\": no key of a chat template; it has begin, system, user, assistant (each with before, end, after), "
               "special, special_if, system_in_user, trim and default_system");
}

std::vector<std::string> names(const Json& j, const char* key) {
  std::vector<std::string> out;
  if (!j.contains(key)) return out;
  for (size_t k = 0; k < member(j, key).size(); ++k) {
    out.push_back(field<std::string>(j, cat(key, ".", k)));
    GT_REQUIRE(!out.back().empty(), Exit::kUsage, "\"", key, "\": a special token without characters");
  }
  return out;
}

ChatTemplate from_json(const Json& j, const std::string& path) {
  GT_REQUIRE(j.is_object(), Exit::kUsage, "expected an object");
  refuse_others(
      j, "",
      {"begin", "system", "user", "assistant", "special", "special_if", "system_in_user", "trim", "default_system"});
  ChatTemplate t{.name = path,
                 .begin = field_or(j, "begin", std::string()),
                 .turns = {},
                 .special = names(j, "special"),
                 .special_if = names(j, "special_if"),
                 .system_in_user = field_or(j, "system_in_user", false),
                 .trim = field_or(j, "trim", false),
                 .default_system = field_or(j, "default_system", std::string())};
  for (size_t r = 0; r < 3; ++r) {
    if (r == 0 && t.system_in_user && !j.contains("system")) continue;
    const Json& turn = member(j, kRoles[r]);
    refuse_others(turn, cat(kRoles[r], "."), {"before", "end", "after"});
    t.turns[r] = {field_or(turn, "before", std::string()), field_or(turn, "end", std::string()),
                  field_or(turn, "after", std::string())};
  }
  GT_REQUIRE(!t.turns[static_cast<size_t>(ChatRole::kAssistant)].end.empty(), Exit::kUsage,
             "\"assistant\": expected \"end\", the token that ends an answer, such as \"{eod}\"");
  return t;
}

}  // namespace

std::string fitting_chat_template(const Tokenizer& tokenizer) {
  for (const ChatTemplate& t : {chatml(), llama3(), mistral()}) {
    std::vector<std::string> tokens = t.special;
    tokens.insert(tokens.end(), t.special_if.begin(), t.special_if.end());
    if (std::all_of(tokens.begin(), tokens.end(), [&](const auto& s) { return tokenizer.id_of(s) >= 0; }))
      return t.name;
  }
  return "plain";
}

ChatTemplate load_chat_template(const std::string& name) {
  for (ChatTemplate t : {chatml(), llama3(), mistral(), plain()})
    if (t.name == (name.empty() ? "chatml" : name)) return t;
  GT_REQUIRE(std::filesystem::is_regular_file(name), Exit::kUsage, "--template ", name,
             ": expected chatml, llama3, mistral, plain or a template file, found neither");
  const std::string text = read_whole_file(name, kMaxTemplateFile);
  const Json json = parse_json<Json>(text, name);
  try {
    return from_json(json, name);
  } catch (const Error& e) {
    fail(Exit::kUsage, name, ": not a chat template (", e.what(), ")");
  } catch (const Json::exception& e) { fail(Exit::kUsage, name, ": not a chat template (", no_json(e.what()), ")"); }
}

}  // namespace gt
