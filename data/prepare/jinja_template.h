// Chat templates of Hugging Face folders, which are Jinja: those whose loop writes one turn after another are converted
// to a ChatTemplate that writes the same text; any other is left unread. Not an interpreter: nothing is evaluated.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/prepare/chat.h"

namespace gt {

// Returns nullopt for a template that is not of these forms, as transformers compiles it (blocks trimmed):
//  * a text, then for each message text, its role, its content (trimmed or not) and text, one form or one for each
//  role;
//  * before them a default system turn where the first message is no system message (Qwen 1.5 to 2.5, SmolLM2);
//  * Llama 3's, whose text begins with BOS in the first turn.
// Branches for tools and the generation prompt are passed over: training data has neither.
std::optional<ChatTemplate> read_jinja_template(std::string_view text);

// Template of the Hugging Face folder of a tokenizer.
struct FolderTemplate {
  std::string file;                      // for messages
  std::optional<ChatTemplate> readable;  // empty: not of a form that is read
};
// Returns that of `tokenizer`, a folder or one of the files of kTokenizerFileNames in it: chat_template.jinja, else
// chat_template.json, else the one in tokenizer_config.json (of several "default"); nullopt if there is none.
std::optional<FolderTemplate> folder_chat_template(const std::string& tokenizer);

// Returns load_chat_template(given), or, where `given` is empty, the template of the tokenizer's folder if it has one
// that is read, else chatml. `note`, unless null, is set to what is to be reported of the folder's own; "": nothing.
ChatTemplate chosen_chat_template(const std::string& given, const std::string& tokenizer, std::string* note = nullptr);

}  // namespace gt
