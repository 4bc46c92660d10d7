#include "launch/tools/eval/choice_tasks.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "launch/options/near_path.h"

namespace gt {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostBytes = 256 << 20;
constexpr size_t kMostLine = 16 << 20;
constexpr size_t kMostChoices = 1024;
constexpr const char* kShape = "expected {\"context\": TEXT, \"choices\": [TEXT, TEXT...], \"answer\": INDEX}";

// Parses line `number` of a file.
Json parse_line(std::string_view line, const std::string& file, int number) {
  const std::string where = cat(file, ":", number);
  Json j;
  try {
    j = parse_json<Json>(line, file, {.bytes = kMostLine, .depth = 8, .first_line = number});
  } catch (const Error& e) { fail(Exit::kUsage, e.what(), "; ", kShape); }
  GT_REQUIRE(j.is_object(), Exit::kUsage, where, ": found ", j.type_name(), "; ", kShape);
  for (const auto& [key, unused] : j.items())
    GT_REQUIRE(key == "context" || key == "choices" || key == "answer" || key == "task" || key == "id", Exit::kUsage,
               where, ": unknown key \"", printable(key.substr(0, 100)), "\"; ", kShape,
               " and optionally \"task\" and \"id\"");
  return j;
}

std::string text_of(const Json& j, const char* key, const std::string& where) {
  const auto it = j.find(key);
  if (it == j.end()) return "";
  GT_REQUIRE(it->is_string(), Exit::kUsage, where, ": ", key, ": expected a text, found ", it->type_name());
  return it->get<std::string>();
}

ChoiceQuestion question_of(const Json& j, const std::string& where, const std::string& task) {
  ChoiceQuestion q;
  q.where = where;
  q.task = j.contains("task") ? text_of(j, "task", where) : task;
  q.id = text_of(j, "id", where);
  GT_REQUIRE(j.contains("context"), Exit::kUsage, where, ": context: missing; ", kShape);
  q.context = text_of(j, "context", where);
  const auto choices = j.find("choices");
  GT_REQUIRE(choices != j.end() && choices->is_array(), Exit::kUsage, where,
             ": choices: ", choices == j.end() ? "missing" : "not a list", "; ", kShape);
  GT_REQUIRE(choices->size() >= 2 && choices->size() <= kMostChoices, Exit::kUsage, where,
             ": choices: ", choices->size(), ", expected 2 to ", kMostChoices);
  for (const Json& c : *choices) {
    GT_REQUIRE(c.is_string() && !c.get_ref<const std::string&>().empty(), Exit::kUsage, where, ": choices[",
               q.choices.size(), "]: expected a text that is not empty");
    q.choices.push_back(c.get<std::string>());
  }
  const auto answer = j.find("answer");
  GT_REQUIRE(answer != j.end() && answer->is_number_integer(), Exit::kUsage, where,
             ": answer: ", answer == j.end() ? "missing" : "not a whole number",
             "; expected the index of the right choice");
  // A number beyond int64 is unsigned and wraps below 0.
  q.answer = answer->get<int64_t>();
  GT_REQUIRE(q.answer >= 0 && q.answer < static_cast<int64_t>(q.choices.size()), Exit::kUsage, where,
             ": answer: ", answer->dump(), ", expected 0 to ", q.choices.size() - 1);
  return q;
}

}  // namespace

std::vector<ChoiceQuestion> parse_questions(std::string_view text, const std::string& file) {
  const std::string task = std::filesystem::path(file).stem().string();
  std::vector<ChoiceQuestion> out;
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1, ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = cat(file, ":", number);
    out.push_back(question_of(parse_line(line, file, number), where, task));
  }
  GT_REQUIRE(!out.empty(), Exit::kUsage, file, ": holds no question; ", kShape, ", one a line");
  return out;
}

std::vector<ChoiceQuestion> read_questions(const std::vector<std::string>& files) {
  std::vector<ChoiceQuestion> out;
  int64_t remaining = kMostBytes;  // all files together
  for (const std::string& file : files) {
    require_path("--tasks", file, "a file of JSON lines");
    const std::string text = read_whole_file(file, remaining);
    remaining -= static_cast<int64_t>(text.size());
    for (ChoiceQuestion& q : parse_questions(text, file)) out.push_back(std::move(q));
  }
  return out;
}

std::vector<ChoiceTokens> encode_choices(const ChoiceQuestion& q, const Tokenizer& t, int64_t context, bool bos) {
  const size_t last = q.context.find_last_not_of(" \t\n\r\f\v");
  const size_t stem = last == std::string::npos ? 0 : last + 1;
  const std::vector<int32_t> given = t.encode(std::string_view(q.context).substr(0, stem));
  std::vector<int32_t> before;
  if (bos) before = t.before_text();
  if (given.empty() && before.empty()) {
    before.push_back(bos ? t.empty_text() : t.eod());
    GT_REQUIRE(before[0] >= 0, Exit::kUsage, q.where,
               ": context: empty, and the tokenizer has no token that ends a document to put there");
  }
  std::vector<ChoiceTokens> out;
  for (size_t k = 0; k < q.choices.size(); ++k) {
    ChoiceTokens c;
    c.ids = t.encode(q.context + q.choices[k]);
    c.scored = static_cast<int64_t>(c.ids.size()) - static_cast<int64_t>(given.size());
    GT_REQUIRE(c.scored > 0, Exit::kUsage, q.where, ": choices[", k, "]: adds no token to the context");
    GT_REQUIRE(c.scored <= context, Exit::kUsage, q.where, ": choices[", k, "]: ", c.scored,
               " tokens, but the model's context is ", context);
    c.ids.insert(c.ids.begin(), before.begin(), before.end());
    const auto surplus = static_cast<int64_t>(c.ids.size()) - 1 - context;
    if (surplus > 0) c.ids.erase(c.ids.begin(), c.ids.begin() + surplus);
    out.push_back(std::move(c));
  }
  return out;
}

int64_t characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace gt
