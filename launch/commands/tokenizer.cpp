// gpttrain tokenizer train, encode and decode.
#include "data/tokenizer/tokenizer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <sstream>
#include <thread>

#include "data/prepare/json_line.h"
#include "data/prepare/text_source.h"
#include "data/tokenizer/tokenizer_train.h"
#include "data/tokens/files.h"
#include "data/tokens/token_file.h"
#include "kernels/core/text.h"
#include "launch/commands/inputs.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/output.h"

namespace gt {
namespace {

constexpr int64_t kMostLine = int64_t{64} << 20;   // bytes of text per line
constexpr int64_t kMostText = int64_t{256} << 20;  // bytes of text encoded or decoded as a whole
constexpr int64_t kBatch = int64_t{1} << 20;       // bytes of text per thread between two writes

int thread_count(int64_t given) {
  return static_cast<int>(given > 0 ? given : std::max(1U, std::thread::hardware_concurrency()));
}

// Prints progress from its own thread, because the library trains for minutes without output.
class TrainProgress {
 public:
  explicit TrainProgress(const TokenizerTrainOptions& o)
      : what_(fmt::format("training {} {} pieces", o.type, format_thousands(o.vocab))),
        ticker_([this](const std::stop_token& end) { tick(end); }) {}
  void update(const TokenizerTrainProgress& p) {
    const std::lock_guard lock(mutex_);
    now_ = p;
  }

 private:
  void tick(const std::stop_token& end) {
    WorkLine line;
    const auto pause = std::chrono::duration<double>(line.seconds());
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, end, pause, [&] { return end.stop_requested(); })) {
      const std::string stage = now_.stage;
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
      const std::string doing = stage == "train" ? what_ : stage == "report" ? "measuring" : "reading";
      const std::string what = fmt::format("{}: {} read, {} lines", doing,
                                           format_bytes(static_cast<double>(now_.bytes)), format_thousands(now_.lines));
      // The library reports nothing while it trains: off a terminal, a line then comes after ever longer times.
      if (!line.terminal() && what == shown_ && seconds < again_) continue;
      if (what == shown_) again_ = 2 * seconds;
      if (what != shown_) again_ = seconds + 2 * line.seconds();
      shown_ = what;
      line.show(fmt::format("{}, {}", what, format_duration(seconds)));
    }
  }

  std::string what_, shown_;  // shown_: without the time
  double again_ = 0;          // seconds at which the same text is worth another line
  std::mutex mutex_;
  std::condition_variable_any wake_;
  TokenizerTrainProgress now_{"read"};
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::jthread ticker_;  // last member: destroyed first
};

// Ctrl-C during tokenizer training, which spends minutes inside a library. Nothing is written until the end, when the
// three files are written together.
enum class TrainingState : int { kBusy, kWriting, kInterrupted };
std::atomic<TrainingState> training_state{TrainingState::kBusy};

bool move_on(TrainingState to) {
  TrainingState from = TrainingState::kBusy;
  return training_state.compare_exchange_strong(from, to);
}

extern "C" void on_interrupt(int n) {
  if (!move_on(TrainingState::kInterrupted)) return;  // writing takes a moment and completes
  constexpr char kText[] = "\ngpttrain: tokenizer train: interrupted; nothing was written\n";
  _exit(write(STDERR_FILENO, kText, sizeof kText - 1) < 0 ? 128 + n : 128 + n);
}

// While alive, stop signals end the process; the destructor restores the previous handlers.
class EndTrainingOnSignals {
 public:
  EndTrainingOnSignals() {
    training_state = TrainingState::kBusy;
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    for (size_t k = 0; k < before_.size(); ++k) {
      sigaction(kSignals[k], nullptr, &before_[k]);
      if (before_[k].sa_handler != SIG_IGN) sigaction(kSignals[k], &action, nullptr);  // nohup
    }
  }
  ~EndTrainingOnSignals() {
    for (size_t k = 0; k < before_.size(); ++k) sigaction(kSignals[k], &before_[k], nullptr);
  }
  EndTrainingOnSignals(const EndTrainingOnSignals&) = delete;
  EndTrainingOnSignals& operator=(const EndTrainingOnSignals&) = delete;

  // Marks the start of writing. Does not return if a signal came first: its handler is ending the process.
  static void begin_writing() {
    move_on(TrainingState::kWriting);
    while (training_state == TrainingState::kInterrupted) pause();
  }

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

std::string report_text(const TokenizerTrainOptions& o, const TokenizerReport& r) {
  std::string longest;
  for (const std::string& p : r.longest) longest += (longest.empty() ? "" : "  ") + p;
  const std::string stem = o.output.ends_with(".model") ? o.output.substr(0, o.output.size() - 6) : o.output;
  return fmt::format("pieces           {} ({})\n", format_thousands(r.pieces), o.type) +
         fmt::format("seconds          {:.1f}\n", r.seconds) +
         fmt::format("peak memory      {}\n", format_bytes(static_cast<double>(r.peak_memory))) +
         fmt::format("read             {} in {} lines\n", format_bytes(static_cast<double>(r.bytes_read)),
                     format_thousands(r.lines_read)) +
         fmt::format("trained on       {} in {} lines\n", format_bytes(static_cast<double>(r.train_bytes)),
                     format_thousands(r.train_lines)) +
         fmt::format("measured on      {} {}\n", format_bytes(static_cast<double>(r.report_bytes)),
                     r.unseen ? "held-out" : "of the same text, because there is no other") +
         fmt::format("bytes per token  {:.3f}\n", r.bytes_per_token) +
         fmt::format("byte fallback    {:.4f} % of characters\n", r.fallback_percent) +
         fmt::format("longest pieces   {}\n\n{}.model, {}.vocab, {}.meta.json\n", longest, stem, stem, stem) +
         fmt::format("next: gpttrain data prepare --input TEXT --tokenizer {} --output PREFIX\n",
                     shell_word(stem + ".model"));
}

// ---- encode

enum class Form { kIds, kPieces, kBinary };

Form form_of(bool pieces, const std::string& binary) {
  GT_REQUIRE(!pieces || binary.empty(), Exit::kUsage,
             "--pieces and --ids-binary: give only one of them; pieces have no binary form");
  return pieces ? Form::kPieces : binary.empty() ? Form::kIds : Form::kBinary;
}

TokenType binary_type(const std::string& name, const Tokenizer& t) {
  const TokenType type = name == "u16" ? TokenType::kU16 : TokenType::kI32;
  GT_REQUIRE(type != TokenType::kU16 || t.vocab() <= 65536, Exit::kUsage, "--ids-binary u16: the tokenizer has ",
             t.vocab(), " pieces, u16 holds 65536; use i32");
  return type;
}

// Encodes batches of lines on several threads; results are in line order.
class LineEncoder {
 public:
  LineEncoder(const Tokenizer& tokenizer, Form form, TokenType type, int threads)
      : tokenizer_(tokenizer), form_(form), type_(type), out_(static_cast<size_t>(threads)) {}

  size_t threads() const { return out_.size(); }

  // Writes the tokens of the lines, `bytes` of text, to standard output.
  void flush(std::vector<std::string>& lines, int64_t bytes) {
    const size_t parts = std::min({threads(), std::max<size_t>(lines.size(), 1), static_cast<size_t>(bytes >> 16) + 1});
    while (encoders_.size() < parts) encoders_.emplace_back(tokenizer_);  // created on demand: each has a cache
    const auto work = [&](size_t k) {
      out_[k].clear();
      for (size_t i = lines.size() * k / parts; i < lines.size() * (k + 1) / parts; ++i)
        encode(encoders_[k], lines[i], &out_[k]);
    };
    {
      std::vector<std::jthread> helpers;
      for (size_t k = 1; k < parts; ++k) helpers.emplace_back(work, k);
      work(0);
    }
    for (size_t k = 0; k < parts; ++k) write_out(out_[k]);
    flush_out();
    lines.clear();
  }

 private:
  void encode(Encoder& encoder, const std::string& line, std::string* out) const {
    std::vector<int32_t> ids;
    encoder.encode(line, &ids);
    if (form_ == Form::kBinary) {
      const size_t at = out->size();
      out->resize(at + ids.size() * static_cast<size_t>(width_of(type_)));
      pack_tokens(ids, type_, reinterpret_cast<uint8_t*>(out->data()) + at);
      return;
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i) *out += ' ';
      *out += form_ == Form::kPieces ? tokenizer_.piece(ids[i]) : std::to_string(ids[i]);
    }
    *out += '\n';
  }

  const Tokenizer& tokenizer_;
  const Form form_;
  const TokenType type_;
  std::vector<Encoder> encoders_;
  std::vector<std::string> out_;
};

// Calls `take` for every line of every input, including its newline if present. `texts`: of JSON lines in files, for
// their texts.
template <class F>
void for_each_line(const std::vector<std::string>& inputs, bool texts, F&& take) {
  for (const TextInput& input : expand_inputs(inputs.empty() ? std::vector<std::string>{"-"} : inputs)) {
    LineReader reader(input.path, kMostLine);
    const bool json = texts && input.path != "-" && is_json_lines(input.path, reader.head());
    std::string text, why;
    for (LineReader::Line line; reader.next(&line);) {
      GT_REQUIRE(line.complete, Exit::kUsage, input_name(input.path), " line ", line.number + 1, ": longer than ",
                 kMostLine >> 20, " MiB; cut it into lines");
      if (json && line.text.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
      if (json) {
        GT_REQUIRE(json_text(line.text, "text", &text, &why), Exit::kUsage, input.path, " line ", line.number + 1, ": ",
                   why, "; or encode the lines as they are: < ", shell_word(input.path));
        line.text = text;
      }
      take(input, line);
    }
  }
}

void encode_inputs(const TokenizerEncodeArgs& args, const Tokenizer& tokenizer, Form form, LineEncoder& encoder) {
  // Binary output is the ids of the whole text. Most models may be cut after newlines; others get it as one piece.
  const bool whole = form == Form::kBinary && tokenizer.line_cuts() != LineCuts::kEveryLine;
  const int64_t batch = whole                         ? INT64_MAX
                        : ::isatty(STDIN_FILENO) == 1 ? 1
                                                      : kBatch * static_cast<int64_t>(encoder.threads());
  std::vector<std::string> lines;
  int64_t bytes = 0;
  const auto add = [&](std::string_view text) {
    if (form != Form::kBinary && text.ends_with('\n')) text.remove_suffix(1);
    bytes += static_cast<int64_t>(text.size()) + 1;
    GT_REQUIRE(!whole || bytes <= kMostText, Exit::kUsage, "--ids-binary: this tokenizer needs the text as a whole, ",
               "at most ", kMostText >> 20, " MiB; encode smaller files");
    if (whole && !lines.empty())
      lines[0] += text;
    else
      lines.emplace_back(text);
    if (bytes >= batch) encoder.flush(lines, bytes), bytes = 0;
  };
  if (!args.text.empty()) {
    for (const std::string& text : args.text) add(text);
  } else {
    for_each_line(args.input, true, [&](const TextInput&, const LineReader::Line& line) { add(line.text); });
  }
  encoder.flush(lines, bytes);
}

// ---- decode

int32_t parse_id(const std::string& word, const Tokenizer& t, const std::string& where) {
  int64_t id = -1;
  GT_REQUIRE(parse_int(word, id) && id >= 0 && id < t.vocab(), Exit::kUsage, where, ": expected token ids 0 to ",
             t.vocab() - 1, " with blanks between them, found \"", word, "\"",
             t.id_of(word) >= 0 ? "; give --pieces to read pieces" : "");
  return static_cast<int32_t>(id);
}

int32_t parse_piece(const std::string& word, const Tokenizer& t, const std::string& where) {
  const int32_t id = t.id_of(word);
  GT_REQUIRE(id >= 0, Exit::kUsage, where, ": expected pieces of the tokenizer with blanks between them, found \"",
             word, "\"; another tokenizer?");
  return id;
}

std::string decode_words(std::string_view line, const Tokenizer& t, bool pieces, const std::string& where) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < line.size();) {
    const size_t begin = line.find_first_not_of(" \r\n", at);
    if (begin == std::string_view::npos) break;
    at = std::min(line.find_first_of(" \r\n", begin), line.size());
    const std::string word(line.substr(begin, at - begin));
    ids.push_back(pieces ? parse_piece(word, t, where) : parse_id(word, t, where));
  }
  return t.decode(ids);
}

// Binary ids, processed in blocks. A block ends after a piece that is not a byte of a multi-byte character.
class BinaryDecoder {
 public:
  BinaryDecoder(const Tokenizer& tokenizer, TokenType type) : tokenizer_(tokenizer), type_(type) {}

  void read(const std::string& path) {
    const Fd file = path == "-" ? Fd(::dup(STDIN_FILENO)) : open_to_read(path);
    std::string bytes(kBatch, '\0');
    const auto width = static_cast<size_t>(width_of(type_));
    for (size_t have = 0;;) {
      const ssize_t n = ::read(file.get(), bytes.data() + have, bytes.size() - have);
      GT_REQUIRE(n >= 0, Exit::kIo, input_name(path), ": read failed: ", std::strerror(errno));
      have += static_cast<size_t>(n);
      GT_REQUIRE(n > 0 || have == 0, Exit::kUsage, input_name(path), ": ends inside of a number; expected ",
                 name_of(type_), ", ", width, " bytes each");
      if (n == 0) break;
      const size_t numbers = have / width;
      for (size_t k = 0; k < numbers; ++k) add(bytes.data() + k * width, path);
      std::memmove(bytes.data(), bytes.data() + numbers * width, have - numbers * width);
      have -= numbers * width;
      if (tokenizer_.joins()) write(false);
    }
  }

  void write(bool all) {
    const size_t n = ids_.size() - (all ? 0 : tokenizer_.open_tokens(ids_));
    write_out(tokenizer_.decode(std::span(ids_).first(n)));
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(n));
    if (all) flush_out();
  }

 private:
  void add(const char* bytes, const std::string& path) {
    uint16_t u16 = 0;
    int32_t id = 0;
    if (type_ == TokenType::kU16)
      std::memcpy(&u16, bytes, 2), id = u16;
    else
      std::memcpy(&id, bytes, 4);
    GT_REQUIRE(id >= 0 && id < tokenizer_.vocab(), Exit::kUsage, input_name(path), " number ", count_, ": expected ",
               name_of(type_), " token ids 0 to ", tokenizer_.vocab() - 1, ", found ", id,
               "; another tokenizer or another width?");
    ++count_;
    ids_.push_back(id);
    GT_REQUIRE(static_cast<int64_t>(ids_.size()) <= kMostText / 4, Exit::kUsage, input_name(path), ": more than ",
               kMostText / 4, " ids that must be decoded together; decode smaller files");
  }

  const Tokenizer& tokenizer_;
  const TokenType type_;
  std::vector<int32_t> ids_;
  int64_t count_ = 0;
};

}  // namespace

Exit run_tokenizer_train(const Command& command) {
  const auto& args = command.get<TokenizerTrainArgs>();
  require_inputs(args.input);
  TokenizerTrainOptions options;
  options.inputs = args.input;
  options.output = args.output;
  options.vocab = args.vocab;
  options.type = args.type;
  options.sample_mb = args.sample_mb;
  options.coverage = args.coverage;
  options.special = args.special;
  options.json_key = args.json_key;
  std::istringstream symbols(args.control);
  for (std::string symbol; std::getline(symbols, symbol, ',');) options.control.push_back("[" + symbol + "]");
  options.seed = static_cast<uint64_t>(args.seed);
  options.threads = thread_count(args.threads);
  TokenizerReport report;
  {
    TrainProgress progress(options);
    const EndTrainingOnSignals signals;
    report = tokenizer_train(options, [&](const TokenizerTrainProgress& p) {
      progress.update(p);
      if (std::string_view(p.stage) == "write") EndTrainingOnSignals::begin_writing();
    });
  }
  write_out(report_text(options, report));
  flush_out();
  return Exit::kOk;
}

Exit run_tokenizer_encode(const Command& command) {
  const auto& args = command.get<TokenizerEncodeArgs>();
  GT_REQUIRE(args.text.empty() || args.input.empty(), Exit::kUsage, "--text and --input: expected one of them");
  const Form form = form_of(args.pieces, args.ids_binary);
  GT_REQUIRE(form != Form::kBinary || ::isatty(STDOUT_FILENO) != 1, Exit::kUsage,
             "--ids-binary writes binary data; redirect it to a file: > ids.bin");
  const Tokenizer tokenizer = Tokenizer::load(args.tokenizer);
  const TokenType type = form == Form::kBinary ? binary_type(args.ids_binary, tokenizer) : TokenType::kI32;
  LineEncoder encoder(tokenizer, form, type, thread_count(args.threads));
  encode_inputs(args, tokenizer, form, encoder);
  return Exit::kOk;
}

Exit run_tokenizer_decode(const Command& command) {
  const auto& args = command.get<TokenizerDecodeArgs>();
  const Form form = form_of(args.pieces, args.ids_binary);
  GT_REQUIRE(args.ids.empty() || args.input.empty(), Exit::kUsage, "--ids and --input: expected one of them");
  GT_REQUIRE(args.ids.empty() || form != Form::kBinary, Exit::kUsage, "--ids and --ids-binary: expected one of them");
  const Tokenizer tokenizer = Tokenizer::load(args.tokenizer);
  if (form == Form::kBinary) {
    BinaryDecoder decoder(tokenizer, binary_type(args.ids_binary, tokenizer));
    for (const TextInput& input : expand_inputs(args.input.empty() ? std::vector<std::string>{"-"} : args.input))
      decoder.read(input.path);
    decoder.write(true);
    return Exit::kOk;
  }
  const bool pieces = form == Form::kPieces;
  if (!args.ids.empty()) {
    const std::string line = fmt::format("{}", fmt::join(args.ids, " "));
    write_out(decode_words(line, tokenizer, pieces, "--ids") + "\n");
  } else {
    const bool at_once = ::isatty(STDIN_FILENO) == 1;
    for_each_line(args.input, false, [&](const TextInput& input, const LineReader::Line& line) {
      const std::string where = fmt::format("{} line {}", input_name(input.path), line.number + 1);
      write_out(decode_words(line.text, tokenizer, pieces, where) + "\n");
      if (at_once) flush_out();
    });
  }
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
