// Converts text and JSON lines to a token file: one reader, T encoders, one writer that takes chunks in input order.
// The output depends on neither threads, memory nor interruptions; the same call after a kill resumes from the journal.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gt {

// kAuto: .jsonl .json .ndjson (+ .gz) and files that begin with JSON objects are JSON lines, all else is text. kChat,
// kInstruct: JSON lines of conversations, encoded with a chat template (data/prepare/chat.h) and written with a loss
// mask.
enum class TextFormat : uint8_t { kAuto, kJsonl, kText, kChat, kInstruct };
constexpr bool is_chat(TextFormat f) { return f == TextFormat::kChat || f == TextFormat::kInstruct; }
// End of a text document. kLine: each line, without its newline. kBlankLine: lines up to an empty one, with newlines.
// kSeparator: lines up to one that equals the separator.
enum class SplitDocs : uint8_t { kLine, kBlankLine, kFile, kSeparator };
enum class OnBad : uint8_t { kFail, kSkip };
TextFormat text_format_from(const std::string&);  // auto, jsonl, text, chat, instruct
SplitDocs split_docs_from(const std::string&);    // line, blank-line, file, sep
OnBad on_bad_from(const std::string&);            // fail, skip

struct PrepareOptions {
  std::vector<std::string> inputs;  // files, folders, patterns, "-"
  std::string tokenizer;            // as Tokenizer::load
  std::string output;               // PREFIX
  TextFormat format = TextFormat::kAuto;
  std::string json_key = "text";
  SplitDocs split_docs = SplitDocs::kFile;
  std::string separator;  // kSeparator: the line without its newline
  bool eod = true;        // append <|endoftext|> (or eos) to every document; conversations end as the template defines
  bool bos = true;        // write what the tokenizer puts around a text: Tokenizer::before_text, after_text
  std::string chat_template;    // kChat, kInstruct: as chosen_chat_template (data/prepare/jinja_template.h)
  int64_t max_tokens = 0;       // kChat, kInstruct: longer conversations lose their end; 0: unlimited
  bool ignore_unknown = false;  // kChat, kInstruct: drops keys that may change what a line means (chat.h)
  int threads = 1;              // encoder threads
  int64_t memory_mb = 512;
  OnBad on_bad = OnBad::kFail;
  int64_t max_doc_mb = 64;     // limit per line (per document, with a tokenizer whose pieces span lines)
  bool strict_utf8 = false;    // invalid UTF-8 is an error instead of U+FFFD
  bool check_cache = false;    // compare every 1024th document with the plain library
  bool force = false;          // start over, discarding existing output
  double journal_seconds = 5;  // interval between journal writes; 0: after every chunk
  double progress_seconds = 1;
  int64_t chunk_bytes = 0;                  // 0: up to 4 MB, as memory allows
  const std::atomic<bool>* stop = nullptr;  // set by a signal handler: writes the journal, then Error(kInterrupted)
  int64_t test_kill_after_chunks = -1;      // test hook: throws without writing the journal
};

struct PrepareProgress {
  int64_t input_bytes = 0, input_done = 0;  // bytes on disk, compressed: for the time estimate
  int64_t text_bytes = 0, documents = 0, tokens = 0, bad = 0;
  double seconds = 0;
};

struct PrepareResult {
  int64_t documents = 0, tokens = 0, text_bytes = 0, longest = 0;  // longest document in tokens
  int64_t dropped = 0, bad = 0, replaced = 0;  // empty documents, bad ones, bytes replaced by U+FFFD
  int64_t targets = 0;                         // conversations: tokens that carry loss
  int64_t truncated = 0, unanswered = 0;       // cut at max_tokens; dropped, without an answer
  bool masked = false;                         // PREFIX.mask was written
  std::string as_text;                         // ChatFormat::as_text
  std::string begins;                          // tokens that begin each document; empty: none
  std::string note;                            // Tokenizer::undecided_bos, or which chat template was used; empty: none
  double seconds = 0;
  bool resumed = false;
  std::string type;  // u16, i32
};
std::string to_text(const PrepareResult&);  // the final table

// Writes PREFIX.bin, of conversations PREFIX.mask, PREFIX.meta.json and finally PREFIX.idx, the commit. Throws kUsage
// for bad options and bad input (file, line, byte); kIo for I/O errors, after which the same call resumes.
PrepareResult prepare_data(const PrepareOptions& options,
                           const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace gt
