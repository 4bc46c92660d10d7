// Multiple-choice questions of gpttrain eval: JSON lines, untrusted, and their tokens.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace gt {

struct ChoiceQuestion {
  std::string where;  // FILE:LINE
  std::string task;   // "task" of the line, else the file's name without its extension
  std::string id;     // "id" of the line; may be empty
  std::string context;
  std::vector<std::string> choices;  // each follows the context as it stands, without a blank added
  int64_t answer = 0;                // index of the right choice
};

// Reads files of JSON lines; empty lines are skipped. Throws kUsage naming file, line and key for text that is not
// UTF-8 or JSON, missing or unknown keys, values out of range, and more than 256 MiB in all.
std::vector<ChoiceQuestion> read_questions(const std::vector<std::string>& files);
// Same for the text of one file.
std::vector<ChoiceQuestion> parse_questions(std::string_view text, const std::string& file);

// Context and a choice as one sequence. Only the choice is scored.
struct ChoiceTokens {
  std::vector<int32_t> ids;
  int64_t scored = 0;  // tokens of the choice, at the end of ids
};

// Returns the tokens of each choice. White space at the end of the context counts to the choice, because tokens begin
// with blanks. Before the context stands what the tokenizer puts before every text (`bos`); an empty context is that,
// or the token that stands for an empty text. Contexts are cut at their beginning to fit `context` tokens of input.
// Throws kUsage naming file and line for a choice that adds no token or is longer than that.
std::vector<ChoiceTokens> encode_choices(const ChoiceQuestion&, const Tokenizer&, int64_t context, bool bos = true);

int64_t characters(std::string_view utf8);  // code points

}  // namespace gt
