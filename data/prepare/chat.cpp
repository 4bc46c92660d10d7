#include "data/prepare/chat.h"

#include <algorithm>
#include <initializer_list>

#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr std::string_view kBlank = " \t\r\n\f\v";

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

// Messages as the template takes them: trimmed, system messages joined to the user message behind them.
Conversation prepared(const Conversation& given, const ChatTemplate& t) {
  Conversation out;
  if (!t.default_system.empty() && (given.empty() || given.front().role != ChatRole::kSystem))
    out.push_back({ChatRole::kSystem, t.default_system, false});
  std::string system;
  for (const ChatMessage& m : given) {
    const std::string text(t.trim ? trimmed(m.text) : std::string_view(m.text));
    if (t.system_in_user && m.role == ChatRole::kSystem) {
      system += text + "\n\n";
      continue;
    }
    const bool takes = m.role == ChatRole::kUser;
    out.push_back({m.role, takes ? system + text : text, m.trained});
    if (takes) system.clear();
  }
  return out;
}

}  // namespace

bool ChatTemplate::writes_as(const ChatTemplate& o) const {
  const auto same = [](const Turn& a, const Turn& b) {
    return a.before == b.before && a.end == b.end && a.after == b.after;
  };
  return begin == o.begin && std::equal(turns.begin(), turns.end(), o.turns.begin(), same) &&
         system_in_user == o.system_in_user && trim == o.trim && default_system == o.default_system;
}

// Collects runs of text with the same loss; encodes a run when a token or another loss ends it.
class ChatFormat::Writer {
 public:
  Writer(Encoder& encoder, ChatTokens* out) : encoder_(encoder), out_(*out) {}
  void text(std::string_view s, bool target) {
    if (s.empty()) return;
    if (target != target_) flush();
    target_ = target;
    run_ += s;
  }
  void pieces(const Pieces& list, bool target) {
    for (const Piece& p : list) {
      if (p.id < 0) {
        text(p.text, target);
        continue;
      }
      flush();
      out_.ids.push_back(p.id);
      out_.loss.push_back(target ? 1 : 0);
    }
  }
  void flush() {
    if (!run_.empty()) encoder_.encode(run_, &out_.ids);
    out_.loss.resize(out_.ids.size(), target_ ? 1 : 0);
    run_.clear();
  }

 private:
  Encoder& encoder_;
  ChatTokens& out_;
  std::string run_;
  bool target_ = false;
};

ChatFormat::ChatFormat(ChatTemplate t, const Tokenizer& tokenizer) : template_(std::move(t)) {
  std::string missing;
  std::string all = template_.begin;
  for (const ChatTemplate::Turn& turn : template_.turns) all += turn.before + turn.end + turn.after;
  const auto take = [&](const std::string& written, const std::string& piece, int32_t id, bool must) {
    if (std::string& names = must ? missing : as_text_; id < 0) names += (names.empty() ? "" : ", ") + piece;
    if (id < 0) return;
    special_.emplace_back(written, id);
    if (tokenizer.kind(id) == PieceKind::kUserDefined) forbidden_.push_back(tokenizer.piece(id));
  };
  for (const auto& [name, id] :
       {std::pair("{bos}", tokenizer.bos()), {"{eos}", tokenizer.eos()}, {"{eod}", tokenizer.eod()}})
    if (all.find(name) != std::string::npos) take(name, name, id, true);
  for (const std::string& s : template_.special) take(s, s, tokenizer.id_of(s), true);
  for (const std::string& s : template_.special_if) take(s, s, tokenizer.id_of(s), false);
  GT_REQUIRE(missing.empty(), Exit::kUsage, tokenizer.name(), ": has no token ", missing, ", which the chat template ",
             template_.name, " uses; use --template ", fitting_chat_template(tokenizer),
             ", or train a tokenizer with them (tokenizer train --special)");
  std::stable_sort(special_.begin(), special_.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  begin_ = split(template_.begin);
  for (size_t r = 0; r < 3; ++r) {
    const ChatTemplate::Turn& turn = template_.turns[r];
    turns_[r] = {split(turn.before), split(turn.end), split(turn.after)};
  }
}

ChatFormat::Pieces ChatFormat::split(const std::string& text) const {
  Pieces out;
  for (size_t at = 0; at < text.size();) {
    const auto found = std::find_if(special_.begin(), special_.end(),
                                    [&](const auto& s) { return text.compare(at, s.first.size(), s.first) == 0; });
    if (found != special_.end()) {
      out.push_back({"", found->second});
      at += found->first.size();
      continue;
    }
    if (out.empty() || out.back().id >= 0) out.push_back({});
    out.back().text += text[at++];
  }
  return out;
}

bool ChatFormat::encode(const Conversation& given, Encoder& encoder, ChatTokens* out, std::string* why) const {
  const Conversation messages = prepared(given, template_);
  for (const ChatMessage& m : messages)
    for (const std::string& piece : forbidden_)
      if (m.text.find(piece) != std::string::npos) {
        *why = cat("a message contains ", piece, ", a special token of the chat template ", template_.name);
        return false;
      }
  Writer w(encoder, out);
  w.pieces(begin_, false);
  for (const ChatMessage& m : messages) {
    const bool target = m.role == ChatRole::kAssistant && m.trained;
    const auto& [before, end, after] = turns_[static_cast<size_t>(m.role)];
    w.pieces(before, false);
    w.text(m.text, target);
    w.pieces(end, target);
    w.pieces(after, false);
  }
  w.flush();
  return true;
}

}  // namespace gt
