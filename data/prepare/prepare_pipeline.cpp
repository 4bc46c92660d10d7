#include "data/prepare/prepare_pipeline.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "data/prepare/chat.h"
#include "data/prepare/jinja_template.h"
#include "data/prepare/json_line.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

int64_t chunk_bytes_for(const PrepareOptions& o, int slots) {
  if (o.chunk_bytes > 0) return o.chunk_bytes;
  // Per encoder: a word cache of 16 MB, and up to 9 times its chunk in ids and decoded text. Per slot: text and packed
  // ids.
  const int64_t free = (o.memory_mb - 32 - 18 * o.threads) << 20;
  return std::clamp<int64_t>(free / (3 * slots + 9 * o.threads), 64 << 10, 4 << 20);
}

class PieceEncoder {  // one per thread
 public:
  PieceEncoder(const std::vector<TextInput>& inputs, const PrepareOptions& o, const Tokenizer& t, TokenType type)
      : inputs_(inputs), options_(o), tokenizer_(t), type_(type), encoder_(t) {
    if (is_chat(o.format)) chat_.emplace(chosen_chat_template(o.chat_template, o.tokenizer), t);
  }

  void run(EncodedChunk* c) {
    c->packed.clear();
    c->parts.clear();
    c->dropped = c->in.dropped;
    c->bad = c->in.bad;
    c->replaced = c->truncated = c->unanswered = 0;
    c->loss.clear();
    c->problem.clear();
    for (size_t i = 0; i < c->in.pieces.size() && c->problem.empty(); ++i) piece(c->in.pieces[i], i, c);
    if (c->problem.empty()) c->problem = c->in.problem;
  }

 private:
  void piece(const TextChunk& p, size_t index, EncodedChunk* c) {
    std::string_view text = std::string_view(c->in.text).substr(p.begin, p.size);
    const size_t valid = utf8_valid_prefix(text);
    if (valid != text.size()) {
      if (options_.strict_utf8 && options_.on_bad == OnBad::kFail) {
        c->problem = cat(where(p), ": invalid UTF-8, byte ", static_cast<int>(static_cast<unsigned char>(text[valid])),
                         " at ", valid, " from there");
        return;
      }
      clean_.clear();
      c->replaced += append_valid_utf8(text, &clean_);
      text = clean_;
    }
    if (chat_) return conversation(text, p, c);
    if (p.json) {
      decoded_.clear();
      std::string why;
      int64_t lone = 0;
      if (!json_text(text, options_.json_key, &decoded_, &why, &lone)) return bad(p, why, c);
      if (lone > 0 && options_.strict_utf8 && options_.on_bad == OnBad::kFail)
        return bad(p, "the line holds a lone surrogate (\\ud800 to \\udfff)", c);
      c->replaced += lone;
      if (decoded_.empty()) {
        ++c->dropped;
        return;
      }
      text = decoded_;
    }
    ids_.clear();
    if (p.starts && options_.bos) ids_ = tokenizer_.before_text();
    plain_ = ids_;
    encoder_.encode(text, &ids_);
    if (options_.check_cache && index % 1024 == 0) {
      tokenizer_.encode_append(text, &plain_);
      GT_CHECK(plain_ == ids_, where(p), ": the word cache gave other ids than the library; this is a bug");
    }
    if (p.ends) end_document();
    append(ids_, p.ends, c);
  }
  // An EOS of the tokenizer that is the end-of-document token is written once.
  void end_document() {
    const std::vector<int32_t>& after = tokenizer_.after_text();
    if (options_.bos) ids_.insert(ids_.end(), after.begin(), after.end());
    const bool ended = options_.bos && !after.empty() && after.back() == tokenizer_.eod();
    if (options_.eod && !ended) ids_.push_back(tokenizer_.eod());
  }
  // A conversation begins as every text does, unless its template has written that already.
  void begin_conversation() {
    const std::vector<int32_t>& before = tokenizer_.before_text();
    if (!options_.bos || before.empty()) return;
    std::vector<int32_t>& ids = tokens_.ids;
    if (ids.size() >= before.size() && std::equal(before.begin(), before.end(), ids.begin())) return;
    ids.insert(ids.begin(), before.begin(), before.end());
    tokens_.loss.insert(tokens_.loss.begin(), before.size(), 0);
  }
  // A document of a line: the template's tokens and their loss mask.
  void conversation(std::string_view line, const TextChunk& p, EncodedChunk* c) {
    std::string why;
    messages_.clear();
    tokens_.clear();
    const bool ignore = options_.ignore_unknown;
    if (!(options_.format == TextFormat::kChat ? parse_chat : parse_instruct)(line, &messages_, &why, ignore) ||
        !chat_->encode(messages_, encoder_, &tokens_, &why))
      return bad(p, why, c);
    begin_conversation();
    const auto limit = static_cast<size_t>(options_.max_tokens);
    const bool cut = limit > 0 && tokens_.ids.size() > limit;
    if (cut) tokens_.ids.resize(limit), tokens_.loss.resize(limit);
    const bool answered = std::any_of(messages_.begin(), messages_.end(), [](const ChatMessage& m) {
      return m.role == ChatRole::kAssistant && m.trained && !m.text.empty();
    });
    if (!answered || std::find(tokens_.loss.begin(), tokens_.loss.end(), 1) == tokens_.loss.end()) {
      ++c->unanswered;
      return;
    }
    c->truncated += cut ? 1 : 0;
    c->loss.insert(c->loss.end(), tokens_.loss.begin(), tokens_.loss.end());
    append(tokens_.ids, true, c);
  }
  void append(const std::vector<int32_t>& ids, bool ends, EncodedChunk* c) {
    const size_t at = c->packed.size();
    c->packed.resize(at + ids.size() * static_cast<size_t>(width_of(type_)));
    pack_tokens(ids, type_, c->packed.data() + at);
    c->parts.push_back({static_cast<int64_t>(ids.size()), ends});
  }
  void bad(const TextChunk& p, const std::string& why, EncodedChunk* c) {
    if (options_.on_bad == OnBad::kFail)
      c->problem =
          cat(where(p), ": ", why, "; mend the line, or leave out such lines with gpttrain data prepare --on-bad skip");
    else
      ++c->bad;
  }
  std::string where(const TextChunk& p) const {
    return cat(inputs_[static_cast<size_t>(p.input)].path, " line ", p.line + 1, " byte ", p.byte);
  }

  const std::vector<TextInput>& inputs_;
  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  TokenType type_;
  Encoder encoder_;
  std::optional<ChatFormat> chat_;
  Conversation messages_;
  ChatTokens tokens_;
  std::string clean_, decoded_;
  std::vector<int32_t> ids_, plain_;
};

}  // namespace

struct PreparePipeline::Impl {
  enum class State : uint8_t { kFree, kRead, kEncoding, kDone };
  struct Slot {
    EncodedChunk chunk;
    State state = State::kFree;
    std::exception_ptr error;
    bool end = false;
  };
  std::vector<Slot> slots;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t to_encode = 0, to_write = 0;
  bool stopping = false;
  std::vector<std::thread> threads;

  Slot& slot(int64_t n) { return slots[static_cast<size_t>(n) % slots.size()]; }
  bool wait_for(std::unique_lock<std::mutex>& lock, Slot& s, State state) {
    changed.wait(lock, [&] { return stopping || s.state == state; });
    return !stopping;
  }
  void set(Slot& s, State state) {
    {
      const std::lock_guard lock(mutex);
      s.state = state;
    }
    changed.notify_all();
  }

  void read(ChunkReader reader) {
    for (int64_t n = 0;; ++n) {
      Slot& s = slot(n);
      {
        std::unique_lock lock(mutex);
        if (!wait_for(lock, s, State::kFree)) return;
      }
      try {
        s.end = !reader.next(&s.chunk.in);
      } catch (...) { s.error = std::current_exception(); }
      const bool last = s.end || s.error;
      set(s, last ? State::kDone : State::kRead);
      if (last) return;
    }
  }

  void encode(PieceEncoder encoder) {
    for (;;) {
      Slot* s;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || slot(to_encode).state == State::kRead; });
        if (stopping) return;
        s = &slot(to_encode++);
        s->state = State::kEncoding;
      }
      try {
        encoder.run(&s->chunk);
      } catch (...) { s->error = std::current_exception(); }
      set(*s, State::kDone);
    }
  }
};

PreparePipeline::PreparePipeline(const std::vector<TextInput>& inputs, const PrepareOptions& o, const Tokenizer& t,
                                 TokenType type, const ReadState& from)
    : impl_(new Impl) {
  const int slots = o.threads + 2;
  impl_->slots.resize(static_cast<size_t>(slots));
  impl_->threads.emplace_back([this, &inputs, &o, cuts = t.line_cuts(), bytes = chunk_bytes_for(o, slots), from] {
    impl_->read(ChunkReader(inputs, o, cuts, bytes, from));
  });
  for (int i = 0; i < o.threads; ++i)
    impl_->threads.emplace_back([this, &inputs, &o, &t, type] { impl_->encode(PieceEncoder(inputs, o, t, type)); });
}

PreparePipeline::~PreparePipeline() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  for (auto& t : impl_->threads) t.join();
}

EncodedChunk* PreparePipeline::wait_next() {
  Impl::Slot& s = impl_->slot(impl_->to_write);
  {
    std::unique_lock lock(impl_->mutex);
    impl_->wait_for(lock, s, Impl::State::kDone);
  }
  if (s.error) std::rethrow_exception(s.error);
  return s.end ? nullptr : &s.chunk;
}

void PreparePipeline::release() { impl_->set(impl_->slot(impl_->to_write++), Impl::State::kFree); }

}  // namespace gt
