#include "data/prepare/jinja_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/tokenizer/tokenizer_files.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kBlanks = " \t\r\n";
constexpr size_t kMaxTemplate = 256 << 10;

// Thrown and caught here alone: the template is of another form.
struct Unread {};

enum class Kind : uint8_t { kLiteral, kRole, kContent, kTrimmed, kBos, kEos, kVariable, kError };
struct Part {
  Kind kind;
  std::string text = {};  // of a literal
};
struct Statement {
  bool block = false;
  std::string text = {};         // of a block: its tokens, a blank between words
  std::vector<Part> parts = {};  // of an output
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Tokens of a tag; literals begin with a quote and have no escapes.
std::vector<std::string> tokens_of(std::string_view s) {
  std::vector<std::string> out;
  for (size_t i = 0; i < s.size();) {
    const char c = s[i];
    if (kBlanks.find(c) != std::string_view::npos) {
      ++i;
    } else if (c == '\'' || c == '"') {
      std::string literal = "'";
      for (++i; i < s.size() && s[i] != c; ++i) {
        if (s[i] != '\\') {
          literal += s[i];
          continue;
        }
        const size_t escape = ++i < s.size() ? std::string_view("nt\\'\"").find(s[i]) : std::string_view::npos;
        if (escape == std::string_view::npos) throw Unread();
        literal += "\n\t\\'\""[escape];
      }
      if (i++ >= s.size()) throw Unread();
      out.push_back(std::move(literal));
    } else {
      size_t end = i + 1;
      if (is_word(c))
        while (end < s.size() && is_word(s[end])) ++end;
      else if (end < s.size() && s[end] == '=' && (c == '=' || c == '!'))
        ++end;
      out.emplace_back(s.substr(i, end - i));
      i = end;
    }
  }
  return out;
}

// One spelling: message.role is message['role'].
std::string spelled(const std::vector<std::string>& tokens) {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& t = tokens[i];
    if (t == "." && i + 1 < tokens.size()) {
      out += "['" + tokens[++i] + "']";
      continue;
    }
    if (!out.empty() && is_word(out.back()) && is_word(t.front())) out += ' ';
    if (t.front() != '\'') {
      out += t;
      continue;
    }
    out += '\'';
    for (const char c : std::string_view(t).substr(1))
      out += c == '\\' || c == '\'' ? std::string{'\\', c} : std::string(1, c);
    out += '\'';
  }
  return out;
}

// The parts of an output: operands of +.
std::vector<Part> parts_of(const std::vector<std::string>& tokens) {
  if (!tokens.empty() && tokens[0] == "raise_exception") return {{Kind::kError}};
  std::vector<Part> out;
  for (size_t i = 0; i <= tokens.size();) {
    const size_t end =
        static_cast<size_t>(std::find(tokens.begin() + static_cast<int64_t>(i), tokens.end(), "+") - tokens.begin());
    const std::vector<std::string> operand(tokens.begin() + static_cast<int64_t>(i),
                                           tokens.begin() + static_cast<int64_t>(end));
    const std::string s = spelled(operand);
    const auto of = [&](std::string_view name, const char* more = "") {
      return s == cat("message['", name, "']", more) || s == cat("messages[0]['", name, "']", more);
    };
    if (operand.size() == 1 && s.front() == '\'')
      out.push_back({Kind::kLiteral, operand[0].substr(1)});
    else if (of("role"))
      out.push_back({Kind::kRole});
    else if (of("content"))
      out.push_back({Kind::kContent});
    else if (of("content", "|trim") || of("content", "['strip']()"))
      out.push_back({Kind::kTrimmed});
    else if (s == "bos_token" || s == "eos_token")
      out.push_back({s == "bos_token" ? Kind::kBos : Kind::kEos});
    else if (s == "content")
      out.push_back({Kind::kVariable});
    else
      throw Unread();
    i = end + 1;
  }
  return out;
}

// Splits a template into blocks and outputs, literal text among these, with white space as trim_blocks and
// lstrip_blocks leave it.
class Lexer {
 public:
  explicit Lexer(std::string_view s) : s_(s) {
    if (s_.ends_with('\n')) s_.remove_suffix(1);
  }
  std::vector<Statement> statements() {
    while (at_ < s_.size()) {
      size_t open = s_.find('{', at_);
      while (open != std::string_view::npos && !is_open(open)) open = s_.find('{', open + 1);
      add_text(s_.substr(at_, open == std::string_view::npos ? open : open - at_), open);
      if (open == std::string_view::npos) break;
      tag(open);
    }
    return std::move(out_);
  }

 private:
  bool is_open(size_t k) const { return k + 1 < s_.size() && std::string_view("{%#").find(s_[k + 1]) != s_.npos; }

  // `next`: position of the tag behind it; npos: none.
  void add_text(std::string_view text, size_t next) {
    if (strip_) text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (trim_ && !strip_ && text.starts_with('\n')) text.remove_prefix(1), begins_line_ = true;
    if (next != std::string_view::npos) {
      const char kind = s_[next + 1];
      const size_t kept = text.find_last_not_of(kBlanks), line = text.find_last_not_of(" \t");
      if (next + 2 < s_.size() && s_[next + 2] == '-')
        text = text.substr(0, kept == text.npos ? 0 : kept + 1);
      else if (kind != '{' && (line == text.npos ? begins_line_ : text[line] == '\n'))
        text = text.substr(0, line == text.npos ? 0 : line + 1);
    }
    if (!text.empty()) add({Part{Kind::kLiteral, std::string(text)}});
  }

  void tag(size_t open) {
    const char kind = s_[open + 1];
    size_t close = open + 2;
    if (kind == '#') {
      close = s_.find("#}", close);
    } else {
      for (char quote = 0; close < s_.size(); ++close) {
        const char c = s_[close];
        if (quote != 0) {
          if (c == '\\') ++close;
          if (c == quote) quote = 0;
        } else if (c == '\'' || c == '"') {
          quote = c;
        } else if (c == (kind == '{' ? '}' : '%') && close + 1 < s_.size() && s_[close + 1] == '}') {
          break;
        }
      }
    }
    if (close >= s_.size()) throw Unread();
    std::string_view inside = s_.substr(open + 2, close - open - 2);
    if (inside.starts_with('-')) inside.remove_prefix(1);
    strip_ = inside.ends_with('-');
    if (strip_) inside.remove_suffix(1);
    if (inside.starts_with('+') || inside.ends_with('+')) throw Unread();
    trim_ = kind != '{';
    begins_line_ = false;
    at_ = close + 2;
    if (kind == '%') out_.push_back({.block = true, .text = spelled(tokens_of(inside))});
    if (kind == '{') add(parts_or_block(inside));
  }

  // An output of another form may stand in a branch that is passed over.
  static std::vector<Part> parts_or_block(std::string_view inside) {
    try {
      return parts_of(tokens_of(inside));
    } catch (const Unread&) { return {{Kind::kError, "?"}}; }
  }

  void add(std::vector<Part> parts) {
    std::erase_if(parts, [](const Part& p) { return p.kind == Kind::kLiteral && p.text.empty(); });
    if (parts.empty()) return;
    if (out_.empty() || out_.back().block) out_.push_back({});
    for (Part& p : parts) out_.back().parts.push_back(std::move(p));
  }

  std::string_view s_;
  std::vector<Statement> out_;
  size_t at_ = 0;
  bool strip_ = false, trim_ = false, begins_line_ = true;  // of the text behind the last tag
};

// Matches statements against the forms that are read.
class Converter {
 public:
  explicit Converter(std::vector<Statement> statements) : all_(std::move(statements)) {}

  ChatTemplate run() {
    tools_and_default();
    if (at_ < all_.size() && !all_[at_].block) out_.begin = literal(take_output());
    take("set loop_messages=messages");
    if (!take("for message in messages")) need("for message in loop_messages");
    if (take("if loop['first']and messages[0]['role']!='system'")) {
      default_turn_ = literal(take_output());
      need("endif");
    }
    skip_check();
    turns();
    if (take("if loop['last']and add_generation_prompt")) skip_to_end();
    need("endfor");
    if (take("if add_generation_prompt")) prompt();
    if (at_ != all_.size() && !is_prompt(take_output())) throw Unread();
    if (at_ != all_.size()) throw Unread();
    finish();
    return std::move(out_);
  }

 private:
  bool take(std::string_view block) {
    if (at_ >= all_.size() || !all_[at_].block || all_[at_].text != block) return false;
    ++at_;
    return true;
  }
  void need(std::string_view block) {
    if (!take(block)) throw Unread();
  }
  const std::vector<Part>& take_output() {
    if (at_ >= all_.size() || all_[at_].block) throw Unread();
    return all_[at_++].parts;
  }
  bool at_block(std::string_view begin) const {
    return at_ < all_.size() && all_[at_].block && all_[at_].text.starts_with(begin);
  }

  static bool is_error(const std::vector<Part>& parts) {
    return parts.size() == 1 && parts[0].kind == Kind::kError && parts[0].text.empty();
  }
  static std::string literal(const std::vector<Part>& parts) {
    std::string out;
    for (const Part& p : parts)
      if (p.kind == Kind::kLiteral)
        out += p.text;
      else if (p.kind == Kind::kBos || p.kind == Kind::kEos)
        out += p.kind == Kind::kBos ? "{bos}" : "{eos}";
      else
        throw Unread();
    return out;
  }

  // To the block that ends the open `if`, or, with `branch`, to its next branch.
  void skip_to_end(bool branch = false) {
    for (int depth = 0;; ++at_) {
      if (at_ >= all_.size()) throw Unread();
      if (!all_[at_].block) continue;
      const std::string& t = all_[at_].text;
      if (branch && depth == 0 && (t == "else" || t.starts_with("elif "))) return;
      if (t.starts_with("if ") || t.starts_with("if(") || t.starts_with("for ")) ++depth;
      if ((t == "endif" || t == "endfor") && depth-- == 0) return void(++at_);
    }
  }

  // Qwen 2.5: tools, else the system message, else the default one, before the loop.
  void tools_and_default() {
    const bool tools = take("if tools");
    if (tools) {
      skip_to_end(true);
      need("else");
    }
    if (take("if messages[0]['role']=='system'")) {
      first_turn_ = take_output();
      need("else");
      default_turn_ = literal(take_output());
      need("endif");
    }
    if (tools) need("endif");
  }

  // Roles in turn are required there, not here.
  void skip_check() {
    if (!take("if(message['role']=='user')!=(loop['index0']%2==0)")) return;
    if (!is_error(take_output())) throw Unread();
    need("endif");
  }

  void turns() {
    if (at_block("set content=")) return header_turns();
    constexpr std::string_view kAnyRole =
        "if(message['role']=='user')or(message['role']=='system'and not "
        "loop['first'])or(message['role']=='assistant'and "
        "not message['tool_calls'])";
    if (!first_turn_.empty()) {
      need(kAnyRole);
      set_all(take_output());
      return skip_to_end();
    }
    if (!at_block("if ")) return set_all(take_output());
    for (bool first = true;; first = false) {
      bool any = false;
      for (size_t r = 0; r < 3 && !any; ++r)
        if (take(cat(first ? "if" : "elif", " message['role']=='", kRoles[r], "'"))) set(r, take_output()), any = true;
      if (any) continue;
      if (first) throw Unread();
      if (take("else")) {
        const std::vector<Part>& parts = take_output();
        for (size_t r = 0; r < 3 && !is_error(parts); ++r)
          if (!has_[r]) set(r, parts);
      }
      return need("endif");
    }
  }

  // Llama 3: the turn in a variable, before whose first BOS is put.
  void header_turns() {
    Statement set = all_[at_++];
    set_all(parts_of(tokens_of(std::string_view(set.text).substr(std::string_view("set content=").size()))));
    if (!take("if loop['index0']==0")) need("if loop['first']");
    need("set content=bos_token+content");
    need("endif");
    const std::vector<Part>& out = take_output();
    if (out.size() != 1 || out[0].kind != Kind::kVariable || !out_.begin.empty()) throw Unread();
    out_.begin = "{bos}";
  }

  void set_all(const std::vector<Part>& parts) {
    for (size_t r = 0; r < 3; ++r) set(r, parts);
  }
  void set(size_t r, const std::vector<Part>& parts) {
    std::string text[2];
    int content = 0;
    for (const Part& p : parts) {
      if (p.kind == Kind::kContent || p.kind == Kind::kTrimmed) {
        (p.kind == Kind::kTrimmed ? trimmed_ : untrimmed_) = true;
        ++content;
      } else {
        if (content > 1) throw Unread();
        text[content] += p.kind == Kind::kRole ? std::string(kRoles[r]) : literal({p});
      }
    }
    if (content != 1) throw Unread();
    const size_t end = text[1].find_last_not_of(kBlanks);  // white space behind the last token is not learned
    const size_t cut = end == std::string::npos ? 0 : end + 1;
    out_.turns[r] = {text[0], text[1].substr(0, cut), text[1].substr(cut)};
    has_[r] = true;
  }

  // The text that a generated answer follows: that of an assistant's turn.
  void prompt() {
    if (!is_prompt(take_output())) throw Unread();
    need("endif");
  }
  bool is_prompt(const std::vector<Part>& parts) const {
    const std::string &before = out_.turns[2].before, text = literal(parts);
    return !text.empty() && (text == before || before.starts_with(text) || text.starts_with(before));
  }

  void finish() {
    constexpr size_t kUser = 1, kAssistant = 2;
    if (!has_[kUser] || !has_[kAssistant] || out_.turns[kAssistant].end.empty() || (trimmed_ && untrimmed_))
      throw Unread();
    out_.system_in_user = !has_[0];
    out_.trim = trimmed_;
    const auto& [before, end, after] = out_.turns[0];
    if (!default_turn_.empty()) {
      const std::string behind = end + after;
      if (default_turn_.size() <= before.size() + behind.size() || !default_turn_.starts_with(before) ||
          !default_turn_.ends_with(behind))
        throw Unread();
      out_.default_system = default_turn_.substr(before.size(), default_turn_.size() - before.size() - behind.size());
    }
    if (!first_turn_.empty()) {  // the system message that it writes before the loop is that of the loop
      Converter first({});
      first.set(0, first_turn_);
      const ChatTemplate::Turn& t = first.out_.turns[0];
      if (t.before != before || t.end != end || t.after != after) throw Unread();
    }
    std::string all = out_.begin;
    for (const ChatTemplate::Turn& t : out_.turns) all += ' ' + t.before + ' ' + t.end + ' ' + t.after;
    collect_tokens(all);
  }

  // <...> and [...] are tokens where the tokenizer has them.
  void collect_tokens(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '<' && text[i] != '[') continue;
      const size_t end = text.find_first_of(text[i] == '<' ? std::string_view("<> \n") : "[] \n", i + 1);
      if (end == std::string::npos || text[end] != (text[i] == '<' ? '>' : ']')) continue;
      std::string token = text.substr(i, end + 1 - i);
      if (std::find(out_.special_if.begin(), out_.special_if.end(), token) == out_.special_if.end())
        out_.special_if.push_back(std::move(token));
    }
  }

  static constexpr std::string_view kRoles[] = {"system", "user", "assistant"};
  std::vector<Statement> all_;
  size_t at_ = 0;
  ChatTemplate out_{};
  std::array<bool, 3> has_{};
  bool trimmed_ = false, untrimmed_ = false;
  std::string default_turn_;
  std::vector<Part> first_turn_;  // of a system message before the loop
};

std::string template_in(const nlohmann::json& config) {
  const auto at = config.is_object() ? config.find("chat_template") : config.end();
  if (at == config.end()) return "";
  if (at->is_string()) return at->get<std::string>();
  for (const auto& named : at->is_array() ? *at : nlohmann::json::array())
    if (named.is_object() && named.value("name", nlohmann::json()) == "default" && named.contains("template") &&
        named["template"].is_string())
      return named["template"].get<std::string>();
  return "";
}

}  // namespace

std::optional<ChatTemplate> read_jinja_template(std::string_view text) {
  if (text.size() > kMaxTemplate) return std::nullopt;
  try {
    return Converter(Lexer(text).statements()).run();
  } catch (const Unread&) { return std::nullopt; }
}

std::optional<FolderTemplate> folder_chat_template(const std::string& tokenizer) {
  std::error_code ec;
  const fs::path path(tokenizer);
  const bool folder = fs::is_directory(path, ec);
  if (!folder && std::find(kTokenizerFileNames.begin(), kTokenizerFileNames.end(), path.filename().string()) ==
                     kTokenizerFileNames.end())
    return std::nullopt;
  for (const char* name : {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"}) {
    const fs::path file = (folder ? path : path.parent_path()) / name;
    if (!fs::exists(file, ec)) continue;
    std::string text = read_whole_file(file.string(), kMaxTokenizerConfig);
    if (file.extension() == ".json") text = template_in(parse_json_if_valid<nlohmann::json>(text));
    if (text.empty()) continue;
    FolderTemplate out{file.string(), read_jinja_template(text)};
    if (out.readable) out.readable->name = out.file;
    return out;
  }
  return std::nullopt;
}

ChatTemplate chosen_chat_template(const std::string& given, const std::string& tokenizer, std::string* note) {
  std::string unused;
  std::string& text = note != nullptr ? *note : unused;
  const std::optional<FolderTemplate> own = folder_chat_template(tokenizer);
  if (!own || (own->readable && given.empty())) {
    ChatTemplate t = own ? *own->readable : load_chat_template(given);
    if (own) text = cat("the chat template is that of ", own->file);
    if (!t.default_system.empty())
      text +=
          cat(text.empty() ? "" : "; ", "conversations without a system message begin with \"", t.default_system, '"');
    if (own && t.system_in_user) text += "; it has no system turn: system messages begin the next user message";
    return t;
  }
  ChatTemplate t = load_chat_template(given);
  if (!own->readable)
    text = cat(own->file, " has a chat template of a form that is not read; ", t.name, " is used. Compare both, or ",
               "describe its turns in a file for --template (data/FORMAT.md)");
  else if (!t.writes_as(*own->readable))
    text = cat("--template ", t.name, " writes other text than the folder's own chat template in ", own->file,
               ", which is used without --template");
  return t;
}

}  // namespace gt
