#include "data/prepare/prepare.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/prepare/chat.h"
#include "data/prepare/jinja_template.h"
#include "data/prepare/prepare_journal.h"
#include "data/prepare/prepare_pipeline.h"
#include "data/samples/loss_mask.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/files.h"
#include "data/tokens/token_file.h"
#include "data/tokens/token_meta.h"
#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

struct Paths {
  explicit Paths(const std::string& given) : prefix(token_prefix(given)) {}
  std::string prefix;
  std::string bin() const { return prefix + ".bin"; }
  std::string idx() const { return prefix + ".idx"; }
  std::string mask() const { return prefix + ".mask"; }
  std::string meta() const { return prefix + ".meta.json"; }
  std::string bin_part() const { return prefix + ".bin.part"; }
  std::string mask_part() const { return prefix + ".mask.part"; }
  std::string len_part() const { return prefix + ".len.part"; }
  std::string idx_part() const { return prefix + ".idx.part"; }
  std::string journal() const { return prefix + ".progress.json"; }
};

void check_options(const PrepareOptions& o) {
  GT_REQUIRE(!o.output.empty(), Exit::kUsage, "--output: expected PREFIX, found nothing");
  GT_REQUIRE(o.threads >= 1 && o.threads <= 1024, Exit::kUsage, "--threads: expected 1 to 1024, found ", o.threads);
  GT_REQUIRE(o.memory_mb >= 64 + 32 * o.threads, Exit::kUsage, "--memory-mb: expected at least ", 64 + 32 * o.threads,
             " for ", o.threads, " threads, found ", o.memory_mb);
  GT_REQUIRE(o.max_doc_mb >= 1 && o.max_doc_mb <= 4096, Exit::kUsage, "--max-doc-mb: expected 1 to 4096, found ",
             o.max_doc_mb);
  const bool sep = o.split_docs == SplitDocs::kSeparator;
  GT_REQUIRE(sep ? !o.separator.empty() && o.separator.find('\n') == std::string::npos : o.separator.empty(),
             Exit::kUsage,
             sep ? "--split-docs sep: expected --separator with the line between documents, such as '%'"
                 : "--separator: is for --split-docs sep");
  GT_REQUIRE(o.max_tokens == 0 || (is_chat(o.format) && o.max_tokens >= 2), Exit::kUsage,
             "--max-tokens: expected at least 2 with --format chat or instruct, found ", o.max_tokens);
  GT_REQUIRE(is_chat(o.format) || o.chat_template.empty(), Exit::kUsage,
             "--template: is for --format chat or instruct");
  GT_REQUIRE(!is_chat(o.format) || o.eod, Exit::kUsage,
             "--no-eod: conversations end as their --template defines; leave it out");
  GT_REQUIRE(is_chat(o.format) || !o.ignore_unknown, Exit::kUsage,
             "--ignore-unknown: is for --format chat or instruct");
  GT_REQUIRE(!o.json_key.empty(), Exit::kUsage, "--json-key: expected a name, found nothing");
}

// Options that affect the output bytes; a preparation resumes only with equal ones.
std::string options_json(const PrepareOptions& o, const Tokenizer& t) {
  const char* formats[] = {"auto", "jsonl", "text", "chat", "instruct"};
  const char* splits[] = {"line", "blank-line", "file", "sep"};
  Json j = {{"tokenizer_sha256", t.sha256()},
            {"format", formats[static_cast<int>(o.format)]},
            {"json_key", o.json_key},
            {"split_docs", splits[static_cast<int>(o.split_docs)]},
            {"eod", o.eod},
            {"bos", o.bos},
            {"on_bad", o.on_bad == OnBad::kFail ? "fail" : "skip"},
            {"max_doc_mb", o.max_doc_mb},
            {"strict_utf8", o.strict_utf8}};
  if (o.split_docs == SplitDocs::kSeparator) j["separator"] = o.separator;
  if (o.ignore_unknown) j["ignore_unknown"] = true;
  if (!is_chat(o.format)) return j.dump();
  const ChatTemplate used = chosen_chat_template(o.chat_template, o.tokenizer);
  j["template"] = used.name;
  if (o.chat_template.empty() && fs::is_regular_file(used.name))
    j["template_sha256"] = sha256_hex(read_whole_file(used.name));
  j["max_tokens"] = o.max_tokens;
  if (fs::is_regular_file(o.chat_template)) j["template_sha256"] = sha256_hex(read_whole_file(o.chat_template));
  return j.dump();
}

void check_space(const Paths& p, const std::vector<TextInput>& inputs, TokenType type, int64_t done) {
  double bytes = 0;
  for (const TextInput& i : inputs) bytes += static_cast<double>(i.size);
  const double need = bytes / 3.5 * static_cast<double>(width_of(type)) - static_cast<double>(done);
  std::error_code ec;
  const auto space = fs::space(fs::absolute(p.prefix).parent_path(), ec);
  GT_REQUIRE(ec || static_cast<double>(space.available) > need, Exit::kIo, p.prefix, ": about ",
             static_cast<int64_t>(need / 1e6), " MB are needed, ", space.available / 1'000'000,
             " MB are free; free some or choose another --output");
}

class Preparation {
 public:
  Preparation(const PrepareOptions& o, const std::function<void(const PrepareProgress&)>& progress)
      : options_(o),
        progress_(progress),
        paths_(o.output),
        tokenizer_(Tokenizer::load(o.tokenizer)),
        type_(token_type_for(tokenizer_.vocab())) {
    if (is_chat(o.format))  // refused before any output
      as_text_ = ChatFormat(chosen_chat_template(o.chat_template, o.tokenizer, &note_), tokenizer_).as_text();
    GT_REQUIRE(is_chat(o.format) || !o.eod || tokenizer_.eod() >= 0, Exit::kUsage, o.tokenizer,
               ": has neither <|endoftext|> nor an eos piece; give --no-eod");
    journal_.options = options_json(o, tokenizer_);
    journal_.inputs = expand_inputs(o.inputs);
    require_text(journal_.inputs);
  }

  PrepareResult run() {
    prepare_folder();
    if (!journal_.done) {
      check_space(paths_, journal_.inputs, type_, journal_.bin_bytes);
      write_tokens();
    }
    commit();
    return journal_.sums;
  }

 private:
  PrepareResult& sums() { return journal_.sums; }

  // Starts over, or resumes an interrupted call.
  void prepare_folder() {
    const auto parent = fs::path(paths_.prefix).parent_path();
    std::error_code ec;
    if (!parent.empty()) fs::create_directories(parent, ec);
    if (options_.force) {
      for (const std::string& f : {paths_.idx(), paths_.bin(), paths_.mask(), paths_.meta()}) fs::remove(f, ec);
      remove_parts();
    }
    if (const auto before = read_journal(paths_.journal())) {
      require_same_work(paths_.journal(), *before, journal_);
      if (take_up(*before)) return;
    }
    GT_REQUIRE(!fs::exists(paths_.idx()) && !fs::exists(paths_.bin()) && !fs::exists(paths_.mask()), Exit::kUsage,
               paths_.prefix, ": .bin, .mask or .idx exists already; choose another --output or give --force");
    bin_ = open_file(paths_.bin_part(), O_WRONLY | O_CREAT | O_TRUNC);
    len_ = open_file(paths_.len_part(), O_WRONLY | O_CREAT | O_TRUNC);
    if (!masked()) return;
    mask_ = open_file(paths_.mask_part(), O_WRONLY | O_CREAT | O_TRUNC);
    write_all(mask_.get(), kLossMaskMagic, kLossMaskHeader, paths_.mask_part());
  }
  bool masked() const { return is_chat(options_.format); }
  // Size of the loss mask file for the journal's tokens.
  static int64_t mask_bytes(const PrepareJournal& j, TokenType type) {
    return kLossMaskHeader + j.bin_bytes / width_of(type);
  }

  bool take_up(const PrepareJournal& before) {
    const int64_t spool = before.sums.documents * 4;
    const int64_t mask = masked() ? mask_bytes(before, type_) : 0;
    // Renamed already, or a part of at least the recorded size.
    const auto there = [&](const std::string& part, const std::string& whole, int64_t bytes) {
      if (before.done && !fs::exists(part) && stamp_of(whole).size == bytes) return true;
      return stamp_of(part).size >= bytes;
    };
    if (!there(paths_.bin_part(), paths_.bin(), before.bin_bytes) || stamp_of(paths_.len_part()).size < spool ||
        (masked() && !there(paths_.mask_part(), paths_.mask(), mask))) {
      remove_parts();  // parts are missing or shorter than recorded: nothing to resume from
      return false;
    }
    journal_ = before;
    sums().resumed = true;
    sums().type = name_of(type_);
    before_seconds_ = before.sums.seconds;
    if (before.done) return true;
    bin_ = open_file(paths_.bin_part(), O_WRONLY);
    len_ = open_file(paths_.len_part(), O_WRONLY);
    std::vector<std::pair<int, int64_t>> parts{{bin_.get(), before.bin_bytes}, {len_.get(), spool}};
    if (masked()) {
      mask_ = open_file(paths_.mask_part(), O_WRONLY);
      parts.emplace_back(mask_.get(), mask);
    }
    for (const auto& [fd, size] : parts)
      GT_REQUIRE(::ftruncate(fd, size) == 0 && ::lseek(fd, 0, SEEK_END) == size, Exit::kIo, paths_.prefix,
                 ": cannot go back to the journal: ", std::strerror(errno));
    return true;
  }

  void write_tokens() {
    PreparePipeline pipeline(journal_.inputs, options_, tokenizer_, type_, journal_.state);
    int64_t chunks = 0;
    auto last_journal = Clock::now(), last_progress = last_journal;
    for (EncodedChunk* c = nullptr; (c = pipeline.wait_next()) != nullptr; pipeline.release()) {
      GT_REQUIRE(c->problem.empty(), Exit::kUsage, c->problem);
      write_chunk(*c);
      if (++chunks == options_.test_kill_after_chunks) fail(Exit::kInterrupted, "stopped by a test");
      const auto now = Clock::now();
      const bool stop = options_.stop != nullptr && options_.stop->load();
      if (stop || std::chrono::duration<double>(now - last_journal).count() >= options_.journal_seconds) {
        save();
        last_journal = now;
      }
      if (stop)
        fail(Exit::kInterrupted, paths_.prefix, ": interrupted after ", sums().documents,
             " documents; run the same command to continue from here");
      if (progress_ && std::chrono::duration<double>(now - last_progress).count() >= options_.progress_seconds) {
        report(c->in.disk_done);
        last_progress = now;
      }
    }
    GT_REQUIRE(sums().documents > 0 && sums().tokens > 0, Exit::kUsage, "data prepare: the inputs have no text (",
               sums().dropped, " empty and ", sums().bad, " bad documents",
               masked() ? cat(", ", sums().unanswered, " conversations without an answer") : "", ")");
    journal_.done = true;
    save();
    report(-1);
  }

  void write_chunk(const EncodedChunk& c) {
    lengths_.clear();
    PrepareResult& s = sums();
    for (const EncodedChunk::Part& part : c.parts) {
      journal_.document_tokens += part.tokens;
      s.tokens += part.tokens;
      if (!part.ends) continue;
      GT_REQUIRE(journal_.document_tokens <= INT32_MAX, Exit::kUsage, "data prepare: document ", s.documents,
                 " has more than 2^31 - 1 tokens; use --split-docs line or blank-line");
      lengths_.push_back(static_cast<int32_t>(journal_.document_tokens));
      s.longest = std::max(s.longest, journal_.document_tokens);
      journal_.document_tokens = 0;
      ++s.documents;
    }
    write_all(bin_.get(), c.packed.data(), c.packed.size(), paths_.bin_part());
    write_all(len_.get(), lengths_.data(), lengths_.size() * 4, paths_.len_part());
    if (masked()) {
      GT_CHECK(static_cast<int64_t>(c.loss.size()) * width_of(type_) == static_cast<int64_t>(c.packed.size()));
      write_all(mask_.get(), c.loss.data(), c.loss.size(), paths_.mask_part());
    }
    journal_.bin_bytes += static_cast<int64_t>(c.packed.size());
    journal_.state = c.in.after;
    s.text_bytes += c.in.read_bytes;
    s.dropped += c.dropped;
    s.bad += c.bad;
    s.replaced += c.replaced;
    s.truncated += c.truncated;
    s.unanswered += c.unanswered;
    s.targets += std::count(c.loss.begin(), c.loss.end(), 1);
  }

  // Syncs the parts to disk before the journal that refers to them.
  void save() {
    for (const Fd* fd : {&bin_, &len_, &mask_})
      GT_REQUIRE(!*fd || ::fdatasync(fd->get()) == 0, Exit::kIo, paths_.prefix,
                 ": sync failed: ", std::strerror(errno));
    sums().seconds = seconds();
    write_journal(paths_.journal(), journal_);
  }

  void report(int64_t disk_done) {
    if (!progress_) return;
    PrepareProgress p;
    for (const TextInput& i : journal_.inputs) p.input_bytes += i.size;
    p.input_done = disk_done < 0 ? p.input_bytes : disk_done;
    p.text_bytes = sums().text_bytes;
    p.documents = sums().documents;
    p.tokens = sums().tokens;
    p.bad = sums().bad;
    p.seconds = seconds();
    progress_(p);
  }

  void commit() {
    bin_ = Fd();
    len_ = Fd();
    mask_ = Fd();
    write_index();
    if (fs::exists(paths_.bin_part())) rename_file(paths_.bin_part(), paths_.bin());
    if (masked() && fs::exists(paths_.mask_part())) rename_file(paths_.mask_part(), paths_.mask());
    TokenMeta m;
    m.tokenizer_sha256 = tokenizer_.sha256();
    m.version = GPT_VERSION;
    m.vocab = tokenizer_.vocab();
    m.eod = options_.eod ? tokenizer_.eod() : -1;
    if (options_.bos) m.bos = tokenizer_.before_text(), m.eos = tokenizer_.after_text();
    if (masked()) m.mask_xxh3_128 = xxh3_128_file(paths_.mask());
    m.options = journal_.options;
    for (const TextInput& i : journal_.inputs) m.inputs.push_back(i.path);
    m.documents = sums().documents;
    m.tokens = sums().tokens;
    m.bytes = sums().text_bytes;
    m.bin_xxh3_128 = xxh3_128_file(paths_.bin());
    m.idx_xxh3_128 = xxh3_128_file(paths_.idx_part());
    write_token_meta(paths_.meta(), m);
    rename_file(paths_.idx_part(), paths_.idx());  // commit: from here on it is a dataset
    remove_parts();
    sums().seconds = seconds();
    sums().type = name_of(type_);
    sums().masked = masked();
    sums().as_text = as_text_;
    if (options_.bos) sums().begins = tokenizer_.names_of(tokenizer_.before_text());
    sums().note = masked() ? note_ : options_.bos ? tokenizer_.undecided_bos() : "";
  }

  void write_index() {
    Fd spool = open_file(paths_.len_part(), O_RDONLY);
    std::array<int32_t, 16384> block;
    size_t at = 0, have = 0;
    const auto next = [&] {
      if (at == have) {
        const ssize_t n = ::read(spool.get(), block.data(), sizeof block);
        GT_REQUIRE(n >= 4 && n % 4 == 0, Exit::kIo, paths_.len_part(), ": expected lengths of ", sums().documents,
                   " documents, found fewer");
        have = static_cast<size_t>(n) / 4;
        at = 0;
      }
      return block[at++];
    };
    write_token_index(
        paths_.idx_part(), type_, sums().documents,
        [&] {
          at = have = 0;
          GT_CHECK(::lseek(spool.get(), 0, SEEK_SET) == 0);
        },
        next);
  }

  void remove_parts() {
    std::error_code ec;
    for (const std::string& f :
         {paths_.journal(), paths_.bin_part(), paths_.mask_part(), paths_.len_part(), paths_.idx_part()})
      fs::remove(f, ec);
  }
  double seconds() const { return before_seconds_ + std::chrono::duration<double>(Clock::now() - began_).count(); }

  const PrepareOptions& options_;
  const std::function<void(const PrepareProgress&)>& progress_;
  const Paths paths_;
  const Tokenizer tokenizer_;
  std::string as_text_;  // ChatFormat::as_text
  std::string note_;     // of chosen_chat_template
  const TokenType type_;
  PrepareJournal journal_;
  Fd bin_, len_, mask_;
  std::vector<int32_t> lengths_;
  double before_seconds_ = 0;
  const Clock::time_point began_ = Clock::now();
};

template <class E>
E choice(const std::string& option, const std::string& given, const std::vector<std::pair<std::string, E>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == given) return value;
    names += (names.empty() ? "" : ", ") + name;
  }
  fail(Exit::kUsage, option, ": expected one of ", names, ", found \"", given, "\"");
}

}  // namespace

TextFormat text_format_from(const std::string& s) {
  return choice<TextFormat>("--format", s,
                            {{"auto", TextFormat::kAuto},
                             {"jsonl", TextFormat::kJsonl},
                             {"text", TextFormat::kText},
                             {"chat", TextFormat::kChat},
                             {"instruct", TextFormat::kInstruct}});
}
SplitDocs split_docs_from(const std::string& s) {
  return choice<SplitDocs>("--split-docs", s,
                           {{"line", SplitDocs::kLine},
                            {"blank-line", SplitDocs::kBlankLine},
                            {"file", SplitDocs::kFile},
                            {"sep", SplitDocs::kSeparator}});
}
OnBad on_bad_from(const std::string& s) {
  return choice<OnBad>("--on-bad", s, {{"fail", OnBad::kFail}, {"skip", OnBad::kSkip}});
}

PrepareResult prepare_data(const PrepareOptions& options, const std::function<void(const PrepareProgress&)>& progress) {
  check_options(options);
  return Preparation(options, progress).run();
}

std::string to_text(const PrepareResult& r) {
  const auto ratio = [](int64_t a, int64_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0; };
  return cat("documents         ", r.documents, "\ntokens            ", r.tokens, " (", r.type, ")\ntext bytes        ",
             r.text_bytes, "\nbytes per token   ", ratio(r.text_bytes, r.tokens), "\nlongest document  ", r.longest,
             " tokens\ndropped (empty)   ", r.dropped, "\nbad               ", r.bad, "\nreplaced bytes    ",
             r.replaced, r.begins.empty() ? "" : "\nbegin with        " + r.begins,
             r.masked ? cat("\ntargets           ", r.targets, " tokens (", 100 * ratio(r.targets, r.tokens),
                            " %)\ntruncated         ", r.truncated, "\nwithout answer    ", r.unanswered, " (dropped)",
                            r.as_text.empty() ? ""
                                              : "\nwritten as text   " + r.as_text +
                                                    ": no tokens of this tokenizer, but marks of the template")
                      : "",
             "\nseconds           ", r.seconds, r.resumed ? " (resumed)\n" : "\n");
}

}  // namespace gt
