// Subcommands other than training, called as main calls them: a command line in, exit code and output out.
#include "launch/commands/subcommands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <map>

#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_file.h"
#include "launch/commands/cli.h"
#include "launch/options/output.h"
#include "launch/options/version.h"
#include "launch/ranks/signals.h"
#include "tests/data/support.h"
#include "tests/support/paths.h"

using namespace gt;
using namespace gt::test;
using Catch::Contains;
using Words = std::vector<std::string>;

namespace {

// Redirects a standard stream to a file within a scope.
class Redirect {
 public:
  Redirect(int fd, const std::string& path, int flags) : fd_(fd), saved_(::dup(fd)) {
    const int file = ::open(path.c_str(), flags, 0600);
    REQUIRE(file >= 0);
    ::dup2(file, fd);
    ::close(file);
  }
  ~Redirect() {
    ::dup2(saved_, fd_);
    ::close(saved_);
  }

 private:
  int fd_, saved_;
};

struct Printed {
  Exit code = Exit::kInternal;
  std::string out, err, error;  // error: what main would print
};

Printed run(const Words& words, const std::string& input = "") {
  const TempDir dir;
  write_file(dir / "in", input);
  Printed s;
  std::cout.flush();
  std::fflush(stdout);
  {
    const Redirect in(0, dir / "in", O_RDONLY), out(1, dir / "out", O_WRONLY | O_CREAT),
        err(2, dir / "err", O_WRONLY | O_CREAT);
    try {
      const Command command = parse_command(words, RankEnv{});
      REQUIRE(command.run != nullptr);
      s.code = command.run(command);
    } catch (const Error& e) {
      s.code = e.code();
      s.error = e.what();
    }
    std::cout.flush();
    std::fflush(stdout);
  }
  s.out = read_file(dir / "out");
  s.err = read_file(dir / "err");
  return s;
}

std::string output_of(const Words& words, const std::string& input = "") {
  const Printed s = run(words, input);
  INFO(s.error);
  CHECK(s.code == Exit::kOk);
  return s.out;
}

void refused(const Words& words, Exit code, const Words& parts, const std::string& input = "") {
  const Printed s = run(words, input);
  INFO(fmt::format("gpttrain {}", fmt::join(words, " ")));
  CHECK(static_cast<int>(s.code) == static_cast<int>(code));
  for (const std::string& p : parts) CHECK_THAT(s.error, Contains(p));
}

// A folder with a text and two tokenizers, created once; cases write into their own folders.
struct Fixture : TempDir {
  Fixture() {
    write_file(*this / "text.txt", made_up_text(2500));
    write_file(*this / "empty.txt", "");
    train = output_of({"tokenizer", "train", "--input", *this / "text.txt", "--vocab", "400", "--output", tok(),
                       "--special", "<|user|>", "--threads", "2"});
    output_of({"tokenizer", "train", "--input", *this / "text.txt", "--vocab", "350", "--type", "unigram", "--output",
               *this / "other.model"});
  }
  std::string tok() const { return *this / "tok.model"; }
  std::string other() const { return *this / "other.model"; }
  std::string text() const { return *this / "text.txt"; }
  std::string train;  // output of training
};
const Fixture& world() {
  static const Fixture w;
  return w;
}

const std::string kDifficult =
    "plain words and 1234 numbers\n\n  two blanks  inside and behind  \n\ttab \xe2\x82\xac \xe4\xb8\xad\xe6\x96\x87 "
    "\xf0\x9f\x98\x80\r\n<|user|> says <|endoftext|>\n";

}  // namespace

TEST_CASE("tokenizer train writes a model and reports its quality") {
  const Fixture& w = world();
  for (const char* file : {"tok.model", "tok.vocab", "tok.meta.json"}) CHECK(std::filesystem::exists(w / file));
  CHECK_THAT(w.train, Contains("pieces           400 (bpe)") && Contains("bytes per token") &&
                          Contains("byte fallback    0.0000 %") && Contains("longest pieces") &&
                          Contains("peak memory") && Contains("next: gpttrain data prepare"));
  CHECK(Tokenizer::load(w.tok()).id_of("<|user|>") >= 0);
  CHECK(Tokenizer::load(w.other()).vocab() == 350);

  refused({"tokenizer", "train", "--input", w / "none.txt", "--output", w / "x"}, Exit::kUsage, {"none.txt"});
  refused({"tokenizer", "train", "--input", w / "empty.txt", "--output", w / "x"}, Exit::kUsage,
          {"empty.txt", "empty"});
  refused({"tokenizer", "train", "--input", w.text(), "--vocab", "200", "--output", w / "x"}, Exit::kUsage,
          {"--vocab", "found 200"});
  refused({"tokenizer", "train", "--input", w.text(), "--vocab", "90000", "--output", w / "x"}, Exit::kUsage,
          {"90000 pieces", "smaller --vocab"});
  refused({"tokenizer", "train", "--input", w.text(), "--type", "wordpiece", "--output", w / "x"}, Exit::kUsage,
          {"expected bpe or unigram"});
  CHECK_FALSE(std::filesystem::exists(w / "x.model"));
}

TEST_CASE("tokenizer encode and decode round-trip, line by line and as bytes") {
  const Fixture& w = world();
  for (const std::string& model : {w.tok(), w.other()}) {
    const std::string ids = output_of({"tokenizer", "encode", "--tokenizer", model}, kDifficult);
    CHECK(std::count(ids.begin(), ids.end(), '\n') == 5);
    CHECK(output_of({"tokenizer", "decode", "--tokenizer", model}, ids) == kDifficult);
    const std::string pieces = output_of({"tokenizer", "encode", "--tokenizer", model, "--pieces"}, kDifficult);
    CHECK_THAT(pieces, Contains("<0xF0> <0x9F> <0x98> <0x80>") && Contains("<|endoftext|>"));
    CHECK(output_of({"tokenizer", "decode", "--tokenizer", model, "--pieces"}, pieces) == kDifficult);
    for (const char* width : {"u16", "i32"}) {
      const std::string open = kDifficult + "no newline at the end";
      const std::string bytes = output_of({"tokenizer", "encode", "--tokenizer", model, "--ids-binary", width}, open);
      CHECK(bytes.size() == Tokenizer::load(model).encode(open).size() * (width[0] == 'u' ? 2 : 4));
      CHECK(output_of({"tokenizer", "decode", "--tokenizer", model, "--ids-binary", width}, bytes) == open);
    }
  }
}

TEST_CASE("tokenizer encode returns the same ids for any number of threads, from files, text and standard input") {
  const Fixture& w = world();
  std::string big = read_file(w.text());
  while (big.size() < 3'000'000) big += big;  // several batches of several parts
  const TempDir dir;
  write_file(dir / "big.txt", big);
  const std::string one = output_of({"tokenizer", "encode", "--tokenizer", w.tok(), "--threads", "1"}, big);
  CHECK(one ==
        output_of({"tokenizer", "encode", "--tokenizer", w.tok(), "--threads", "3", "--input", dir / "big.txt"}));
  CHECK(output_of({"tokenizer", "decode", "--tokenizer", w.tok()}, one) == big);

  const Tokenizer t = Tokenizer::load(w.tok());
  std::string expected;
  for (const char* line : {"two words", "more"}) {
    std::string ids;
    for (const int32_t id : t.encode(line)) ids += (ids.empty() ? "" : " ") + std::to_string(id);
    expected += ids + "\n";
  }
  CHECK(output_of({"tokenizer", "encode", "--tokenizer", w.tok(), "--text", "two words", "more"}) == expected);
  CHECK(output_of({"tokenizer", "decode", "--tokenizer", w.tok(), "--ids", std::to_string(t.encode("a")[0])}) == "a\n");
  CHECK(output_of({"tokenizer", "encode", "--tokenizer", w.tok()}, "") == "");
}

TEST_CASE("tokenizer encode and decode name the wrong word and its line") {
  const Fixture& w = world();
  const Words decode{"tokenizer", "decode", "--tokenizer", w.tok()},
      encode{"tokenizer", "encode", "--tokenizer", w.tok()};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  refused(decode, Exit::kUsage, {"standard input line 2", "0 to 399", "\"12x\""}, "7 8\n9 12x\n");
  refused(decode, Exit::kUsage, {"standard input line 1", "\"400\""}, "400");
  refused(decode, Exit::kUsage, {"line 1", "--pieces"}, "<0x41>");
  refused(with(decode, {"--pieces"}), Exit::kUsage, {"\"qqqqqqq\"", "another tokenizer?"}, "qqqqqqq");
  refused(with(decode, {"--ids", "1", "-2"}), Exit::kUsage, {"-2"});
  refused(with(decode, {"--ids-binary", "u16"}), Exit::kUsage, {"standard input", "ends inside of a number"},
          std::string("\7\0\7", 3));
  refused(with(decode, {"--ids-binary", "i32"}), Exit::kUsage, {"number 1", "found 65536", "0 to 399"},
          std::string("\1\0\0\0\0\0\1\0", 8));
  refused(with(decode, {"--ids", "1", "--ids-binary", "u16"}), Exit::kUsage, {"expected one of them"});
  refused(with(decode, {"--pieces", "--ids-binary", "u16"}), Exit::kUsage, {"give only one of them"});
  refused(with(encode, {"--pieces", "--ids-binary", "u16"}), Exit::kUsage, {"give only one of them"});
  refused(with(encode, {"--text", "a", "--input", w.text()}), Exit::kUsage, {"expected one of them"});
  refused(with(encode, {"--ids-binary", "u8"}), Exit::kUsage, {"expected u16 or i32"});
  refused(with(encode, {"--input", w / "none"}), Exit::kUsage, {"none", "no such file"});
  refused({"tokenizer", "encode", "--tokenizer", w / "none.model"}, Exit::kUsage, {"none.model"});
  refused({"tokenizer", "encode", "--tokenizer", w.text()}, Exit::kUsage, {"text.txt"});
}

TEST_CASE("data prepare and data inspect round-trip a text") {
  const Fixture& w = world();
  const TempDir dir;
  write_file(dir / "a.jsonl", "{\"id\": 1, \"body\": \"first \\u20ac document\"}\n{\"body\": \"second\"}\n");
  const std::string output = output_of({"data", "prepare", "--input", dir / "a.jsonl", "--json-key", "body",
                                        "--tokenizer", w.tok(), "--output", dir / "a"});
  CHECK_THAT(output, Contains("documents         2") && Contains("(u16)") && Contains("bytes per token") &&
                         Contains("next: gpttrain data inspect"));
  const std::string shown = output_of({"data", "inspect", dir / "a", "--tokenizer", w.tok()});
  CHECK_THAT(shown, Contains("documents    2\n") && Contains("verdict      good") &&
                        Contains("begins       \"first \xe2\x82\xac document<|endoftext|>\"") &&
                        Contains("nats per token: a trained model should end well below this"));
  CHECK_THAT(output_of({"data", "inspect", dir / "a.idx", "--tokenizer", w.tok(), "--doc", "1"}),
             Contains("\nsecond<|endoftext|>\n") && !Contains("verdict"));

  // Blank lines separate documents, without end-of-document tokens.
  write_file(dir / "b.txt", "one\nmore\n\ntwo\n");
  output_of({"data", "prepare", "--input", dir / "b.txt", "--split-docs", "blank-line", "--no-eod", "--tokenizer",
             w.tok(), "--output", dir / "b", "--threads", "2", "--memory-mb", "200", "--check-cache"});
  CHECK_THAT(output_of({"data", "inspect", dir / "b", "--tokenizer", w.tok(), "--doc", "1"}),
             Contains("two") && !Contains("endoftext"));

  refused({"data", "inspect", dir / "a", "--tokenizer", w.other()}, Exit::kUsage, {"SHA-256", "a.meta.json"});
  refused({"data", "inspect", dir / "a", "--doc", "2"}, Exit::kUsage, {"--doc 2", "0 to 1"});
  refused({"data", "inspect", dir / "none"}, Exit::kUsage, {"none: no such file"});
}

TEST_CASE("data inspect prints samples, their order, and the unigram entropy") {
  const TempDir dir;
  write_fixture(dir / "f");  // 5, 3, 7 tokens
  const std::string csv = output_of(
      {"data", "inspect", dir / "f", "--order", "--samples", "3", "--seq", "4", "--data.order", "sequential"});
  CHECK(csv == "sample,dataset,sequence,offset\n0,0,0,0\n1,0,0,4\n2,0,2,0\n");
  CHECK_THAT(output_of({"data", "inspect", dir / "f", "--sample", "1", "--seq", "4", "--data.order", "sequential"}),
             Contains("sequence 0, offset 4") && Contains("\n14 20 21 22 30\n"));
  const auto order = [&](const char* seed) {
    return output_of({"data", "inspect", dir / "f", "--order", "--samples", "6", "--seq", "2", "--seed", seed});
  };
  CHECK(order("1") == order("1"));
  CHECK(order("1") != order("2"));
  refused({"data", "inspect", dir / "f", "--sample", "0", "--seq", "50"}, Exit::kUsage, {"15 tokens", "51"});
  refused({"data", "inspect", dir / "f", "--order", "--split", "valid", "--seq", "2"}, Exit::kUsage,
          {"valid", "share"});
  refused({"data", "inspect", dir / "f", "--data.order", "random", "--order"}, Exit::kUsage, {"random", "megatron"});

  write_documents(dir / "h", {{1, 1, 2, 3}, {20'000'000, 20'000'000, 1, 1}}, TokenType::kI32);  // 4, 1, 1, 2 of 8
  CHECK_THAT(output_of({"data", "inspect", dir / "h"}),
             Contains(fmt::format("unigram entropy {:.2f} nats",
                                  0.5 * std::log(2) + 0.25 * std::log(8) + 0.25 * std::log(4))));
  write_documents(dir / "one", {{5, 5, 5}});
  CHECK_THAT(output_of({"data", "inspect", dir / "one"}), Contains("unigram entropy 0.00 nats"));
  std::string idx = read_file(dir / "h.idx");
  idx[10] = 7;
  write_file(dir / "h.idx", idx);
  const Printed bad = run({"data", "inspect", dir / "h"});
  CHECK(bad.code == Exit::kDamaged);
  CHECK_THAT(bad.out, Contains("verdict      bad") && Contains("h.idx") && !Contains("entropy"));
}

TEST_CASE("data prepare refuses unsupported inputs and overwrites nothing unless forced") {
  const Fixture& w = world();
  const TempDir dir;
  const auto prepare = [&](const Words& more) {
    Words words{"data", "prepare", "--tokenizer", w.tok()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  refused(prepare({"--input", dir / "none.txt", "--output", dir / "x"}), Exit::kUsage, {"none.txt", "no such file"});
  refused(prepare({"--input", w / "empty.txt", "--output", dir / "x"}), Exit::kUsage, {"empty.txt", "empty"});
  refused(prepare({"--input", w.text(), "--output", dir / "x", "--format", "parquet"}), Exit::kUsage,
          {"expected auto or jsonl or text", "parquet"});
  refused(prepare({"--input", w.text(), "--output", dir / "x", "--key", "text"}), Exit::kUsage,
          {"--key", "did you mean --json-key?"});
  refused(prepare({"--input", w.text(), "--output", dir / "x", "--memory-mb", "70", "--threads", "2"}), Exit::kUsage,
          {"--memory-mb", "128"});
  refused({"data", "prepare", "--input", w.text(), "--tokenizer", w.text(), "--output", dir / "x"}, Exit::kUsage,
          {"text.txt"});
  refused({"data", "prepare", "--input", w.text(), "--output", dir / "x"}, Exit::kUsage, {"--tokenizer: missing"});

  write_file(dir / "bad.jsonl", "{\"text\": \"good\"}\n{\"text\": 5}\n{\"text\": \"better\"}\n");
  refused(prepare({"--input", dir / "bad.jsonl", "--output", dir / "x"}), Exit::kUsage, {"bad.jsonl", "line 2"});
  CHECK_THAT(output_of(prepare({"--input", dir / "bad.jsonl", "--output", dir / "x", "--on-bad", "skip", "--force"})),
             Contains("documents         2") && Contains("bad               1"));
  write_file(dir / "latin1.txt", "caf\xe9 au lait\n");
  refused(prepare({"--input", dir / "latin1.txt", "--output", dir / "l", "--strict-utf8"}), Exit::kUsage,
          {"latin1.txt", "UTF-8"});
  CHECK_THAT(output_of(prepare({"--input", dir / "latin1.txt", "--output", dir / "l", "--force"})),
             Contains("replaced bytes    1"));

  const std::string before = read_file(dir / "l.bin");
  refused(prepare({"--input", w.text(), "--output", dir / "l"}), Exit::kUsage, {"exists already", "--force"});
  CHECK(read_file(dir / "l.bin") == before);
  output_of(prepare({"--input", w.text(), "--output", dir / "l", "--force"}));
  CHECK(read_file(dir / "l.bin") != before);
}

TEST_CASE("after Ctrl-C a closed output pipe does not kill the process") {
  for (const bool interrupted : {false, true}) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      int ends[2];
      if (::pipe(ends) != 0) ::_exit(1);
      install_stop_signals();
      if (interrupted) ::raise(SIGINT);
      ::close(ends[0]);
      ::_exit(::write(ends[1], "x", 1) == -1 ? 75 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((interrupted ? WIFEXITED(status) && WEXITSTATUS(status) == 75
                       : WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE));
  }
}

TEST_CASE("Ctrl-C during data prepare leaves a journal, ends with 75, and the same call resumes") {
  const Fixture& w = world();
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 12'000'000; i += static_cast<int>(read_file(w.text()).size())) text += read_file(w.text());
  write_file(dir / "big.txt", text);  // three chunks
  const auto words = [&](const char* name) {
    return Words{"data",        "prepare", "--input",  dir / "big.txt", "--split-docs", "line",
                 "--tokenizer", w.tok(),   "--output", dir / name,      "--threads",    "1"};
  };
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // child process, because a signal's flag stays set for the life of a process
    install_stop_signals();
    ::raise(SIGINT);
    try {
      const int null = ::open("/dev/null", O_WRONLY);
      ::dup2(null, 1);
      ::dup2(null, 2);
      ::_exit(static_cast<int>(run_data_prepare(parse_command(words("x"), RankEnv{}))));
    } catch (const Error& e) {
      write_file(dir / "message", e.what());
      ::_exit(static_cast<int>(e.code()));
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 75));
  CHECK_THAT(read_file(dir / "message"), Contains("interrupted after") && Contains("run the same command"));
  CHECK(std::filesystem::exists(dir / "x.progress.json"));
  CHECK_FALSE(std::filesystem::exists(dir / "x.idx"));
  refused({"data", "inspect", dir / "x"}, Exit::kUsage, {"interrupted, repeat it"});

  CHECK_THAT(output_of(words("x")), Contains("(resumed)"));
  CHECK_THAT(output_of(words("y")), !Contains("(resumed)"));
  CHECK(read_file(dir / "x.bin") == read_file(dir / "y.bin"));
  CHECK(read_file(dir / "x.idx") == read_file(dir / "y.idx"));
  CHECK_FALSE(std::filesystem::exists(dir / "x.progress.json"));
}

TEST_CASE("schedule prints programs, timeline, bubble and peaks") {
  const std::string s = output_of({"schedule", "--pp", "2", "--microbatches", "3"});
  CHECK_THAT(s, Contains("1f1b: 2 ranks, 2 stages, 3 microbatches") && Contains("r0 0F0 0F>0") && Contains(" 0G\n") &&
                    Contains("01..aa2bb.cc") && Contains(".0aa1bb2cc..") && Contains("25.0 %") &&
                    Contains("makespan") && Contains("r0 2, r1 1"));
  CHECK_THAT(output_of({"schedule"}), Contains("4 ranks, 4 stages, 8 microbatches") && Contains("27.3 %"));
  CHECK_THAT(output_of({"schedule", "--schedule", "gpipe", "--pp", "4", "--microbatches", "8"}),
             Contains("r0 8, r1 8, r2 8, r3 8"));
  CHECK_THAT(output_of({"schedule", "--schedule", "interleaved", "--pp", "2"}), Contains("2 ranks, 4 stages"));
  CHECK_THAT(output_of({"schedule", "--schedule", "zb-h1"}), Contains("0I0") && Contains("0W0"));
  CHECK_THAT(output_of({"schedule", "--schedule", "forward", "--vpp", "2"}), Contains("8 stages") && !Contains("0B0"));
  CHECK_THAT(output_of({"schedule", "--tied"}), Contains("0T") && Contains("3T"));
  CHECK_THAT(output_of({"schedule", "--pp", "2", "--microbatches", "3", "--cost", "1,1"}), Contains("makespan 8 "));
  // Two stages, one microbatch: forward, transfer, forward and backward, transfer, backward.
  CHECK_THAT(output_of({"schedule", "--pp", "2", "--microbatches", "1", "--transfer", "5"}),
             Contains("a transfer 5") && Contains("makespan 16 ") && Contains("add 10 to a step of 6"));
  CHECK_THAT(output_of({"schedule", "--pp", "2"}), !Contains("transfer"));
  // All microbatches in flight: the latency is paid once each way.
  const std::string latency = output_of({"schedule", "--pp", "2", "--microbatches", "8", "--transfer", "20"});
  CHECK_THAT(latency, Contains("makespan 187 ") && Contains("--extra_in_flight 6 shortens the step from 187 to 67"));
  CHECK_THAT(output_of({"schedule", "--pp", "2", "--microbatches", "8", "--transfer", "20", "--extra_in_flight", "6"}),
             Contains("makespan 67 ") && Contains("r0 8, r1 1") && !Contains("shortens"));

  const std::string idle = output_of({"schedule", "--pp", "4", "--microbatches", "2"});
  CHECK_THAT(idle, Contains("warning") && Contains("60.0 %") && Contains("bubble above 30 %"));
  CHECK_THAT(s, !Contains("warning") && !Contains("until W"));
  CHECK_THAT(output_of({"schedule", "--schedule", "zb-h1"}), Contains("kept until W"));

  refused({"schedule", "--schedule", "1f2b"}, Exit::kUsage, {"1f2b", "did you mean 1f1b", "zb-h1", "file:PATH"});
  refused({"schedule", "--schedule", "gpipe", "--vpp", "2"}, Exit::kUsage, {"vpp is 2", "interleaved"});
  refused({"schedule", "--cost", "1"}, Exit::kUsage, {"expected 2 numbers"});
  refused({"schedule", "--cost", "1,-2"}, Exit::kUsage, {"--cost"});
  refused({"schedule", "--transfer", "-1"}, Exit::kUsage, {"--transfer"});
  refused({"schedule", "--schedule", "gpipe", "--extra_in_flight", "1"}, Exit::kUsage, {"gpipe", "extra_in_flight"});
}

TEST_CASE("schedule takes the times of transfers from a result of bench comm") {
  const TempDir dir;
  const std::string file = dir / "line.json";
  // 20 ms of latency, 12.5 MB/s: 4 KiB 20 ms, 1.25 MB 120 ms more.
  write_file(file, R"({"calls": [
    {"group": "dp", "call": "all_reduce", "bytes": 4096, "seconds": {"median": 9}},
    {"group": "pp", "call": "send+recv", "bytes": 4096, "seconds": {"median": 0.02}},
    {"group": "pp", "call": "send+recv", "bytes": 1254096, "seconds": {"median": 0.12}}]})");
  const std::string out = output_of({"schedule", "--pp", "2", "--microbatches", "1", "--cost", "1,2", "--comm", file,
                                     "--boundary_bytes", "629096", "--tied", "--tied_bytes", "1254096"});
  // Halfway between both sizes: 50 ms on the line, 20 to arrive. Forward, transfer, last stage, the tied gradient
  // behind the gradient on the line.
  CHECK_THAT(out, Contains("a transfer 70 (50 of it on the line), the tied gradient 100 on the line") &&
                      Contains("makespan 244 "));
  refused({"schedule", "--pp", "2", "--comm", file}, Exit::kUsage, {"--boundary_bytes"});
  write_file(file, R"({"calls": []})");
  refused({"schedule", "--pp", "2", "--comm", file, "--boundary_bytes", "1"}, Exit::kUsage, {"--pp 2"});
  write_file(file, R"({"shouts": []})");
  refused({"schedule", "--pp", "2", "--comm", file, "--boundary_bytes", "1"}, Exit::kDamaged, {"bench comm --out"});
}

TEST_CASE("schedule writes the simulated step as a trace") {
  const TempDir dir;
  const std::string output = output_of({"schedule", "--pp", "2", "--microbatches", "3", "--trace", dir / "step.json"});
  CHECK_THAT(output, Contains("ui.perfetto.dev") && Contains("step.json"));
  CHECK_THAT(read_file(dir / "step.json"),
             Contains("\"traceEvents\"") && Contains("\"F m2 s1\"") && Contains("\"ph\":\"s\""));
  output_of({"schedule", "--trace", dir / "step.json.gz"});
  CHECK(read_file(dir / "step.json.gz").substr(0, 2) == "\x1f\x8b");
  refused({"schedule", "--trace", dir / "no/step.json.gz"}, Exit::kIo, {"no/step.json.gz"});
  refused({"schedule", "--trace", dir / "no/step.json"}, Exit::kIo, {"no/step.json"});
}

TEST_CASE("schedule --check reports whether a file is a valid schedule") {
  const TempDir dir;
  write_file(dir / "good.schedule", "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n");
  CHECK_THAT(output_of({"schedule", "--check", dir / "good.schedule"}),
             Contains("accepted") && Contains("parallel.pp 2") && Contains("train.grad_accum 2") && !Contains("0F0"));
  CHECK_THAT(output_of({"schedule", "--check", "file:" + (dir / "good.schedule"), "--pp", "2"}), Contains("accepted"));
  refused({"schedule", "--check", dir / "good.schedule", "--pp", "4"}, Exit::kUsage, {"parallel.pp is 4"});
  write_file(dir / "leak.schedule", "0F0 0F1 0B0\n1F0 1B0 1F1 1B1\n");
  refused({"schedule", "--check", dir / "leak.schedule"}, Exit::kUsage, {"leak.schedule"});
  write_file(dir / "eval.schedule", "0F0\n1F0\n");
  refused({"schedule", "--check", dir / "eval.schedule"}, Exit::kUsage, {"no backward actions"});
}

TEST_CASE("schedule reads files, complete ones and ones of compute actions only") {
  const TempDir dir;
  const std::string file = source_dir() + "/configs/schedules/1f1b-p2-m4.schedule";
  const std::string given = output_of({"schedule", "--schedule", "file:" + file});
  const std::string made = output_of({"schedule", "--pp", "2", "--microbatches", "4"});
  CHECK(given.substr(given.find('\n')) == made.substr(made.find('\n')));

  write_file(dir / "compute.schedule", "# three microbatches\n0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2\n");
  const std::string finished = output_of({"schedule", "--schedule", "file:" + (dir / "compute.schedule"), "--tied"});
  CHECK_THAT(finished, Contains("0F0 0F>0") && Contains("1B>0") && Contains("0G 0T") && Contains("01..aa2bb.cc"));

  write_file(dir / "messages.schedule", "0F0 0F>0 0B<0 0B0 0G\n1F<0 1F0 1B0 1B>0 1G\n");
  const std::string tied = output_of({"schedule", "--schedule", "file:" + (dir / "messages.schedule"), "--tied"});
  CHECK_THAT(tied, Contains("0G 0T") && Contains("1G 1T"));
  write_file(dir / "tied.schedule", "0F0 0B0 0G 0T\n1F0 1B0 1G 1T\n");
  CHECK_THAT(output_of({"schedule", "--schedule", "file:" + (dir / "tied.schedule")}), Contains("0G 0T"));

  const auto bad = [&](const std::string& text, const Words& parts, const Words& more = {}) {
    write_file(dir / "bad.schedule", text);
    Words words{"schedule", "--schedule", "file:" + (dir / "bad.schedule")};
    words.insert(words.end(), more.begin(), more.end());
    refused(words, Exit::kUsage, parts);
  };
  bad("0F0 0X0 0B0\n", {"bad.schedule", "line 1, token 2 '0X0'", "unknown act"});
  bad("0F0 0B0\n1B0 1F0\n", {"bad.schedule", "1B0"});   // backward before forward
  bad("0F0 0F1 0B0 0B1\n1F0 1B0\n", {"bad.schedule"});  // a microbatch that stage 1 never processes
  bad("", {"bad.schedule", "no actions"});
  bad("0F0 0B0\n1F0 1B0\n", {"--pp 4", "bad.schedule has 2", "leave the flag out"}, {"--pp", "4"});
  bad("0F0 0B0 0T\n1F0 1B0 1T\n", {"bad.schedule", "T without G"});
  refused({"schedule", "--schedule", "file:" + (dir / "none")}, Exit::kUsage, {"none", "cannot be read"});
}

TEST_CASE("the work line is redrawn on terminals and written out elsewhere") {
  std::string written;
  const auto write = [&](std::string_view s) { written += s; };
  {
    WorkLine line(20, write);
    line.show("a text that is much longer than the terminal");
    CHECK(written == "\ra text that is much");
    line.show("short");
    CHECK(written.substr(20) == "\rshort" + std::string(14, ' ') + std::string(14, '\b'));
    written.clear();
  }
  CHECK(written == "\r     \r");  // erased at the end
  written.clear();
  {
    WorkLine line(0, write);
    line.show("one");
    line.show("two");
  }
  CHECK(written == "one\ntwo\n");
}

TEST_CASE("the version names libraries, compiler and instruction set") {
  const std::string v = version_text();
  CHECK_THAT(v, Catch::StartsWith("gpttrain ") && Contains("compiler") && Contains("oneDNN") &&
                    Contains("SentencePiece  0.") && Contains("CUDA"));
  CHECK(parse_command(Words{"--version"}, RankEnv{}).text == v);
  std::string binary(4096, '\0');  // linked against everything
  FILE* pipe = ::popen((binary_dir() + "/gpttrain --version").c_str(), "r");
  REQUIRE(pipe != nullptr);
  binary.resize(std::fread(binary.data(), 1, binary.size(), pipe));
  CHECK(::pclose(pipe) == 0);
  CHECK_THAT(binary, Contains("Open MPI") && !Contains("not in this program"));
  const std::string hash = git_hash();
  CHECK((hash == "unknown" || hash.find_first_not_of("0123456789abcdef") >= 7));
}
