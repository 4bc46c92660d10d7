// A new user's path: a text file, three commands, generated text.
#include "launch/commands/text_data.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "data/tokens/token_store.h"
#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

const std::string kModel =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.global_batch 4 "
    "--train.micro_batch 2 --device.kind cpu --log.tensorboard false ";

size_t token_files(const std::string& folder) {
  size_t n = 0;
  for (const auto& e : fs::directory_iterator(folder)) n += e.path().extension() == ".idx";
  return n;
}

// A run on that text, with the folder's tokenizer.
Config run_on(const TempDir& dir, const std::string& text) {
  Config c;
  c.log.dir = dir / "runs";
  c.data.train = {{.path = text}};
  c.data.tokenizer = dir / "tok.model";
  c.model.vocab = 400;
  return c;
}

// Returns the tokens of a text, or the error as text.
std::string prepared(const TempDir& dir, const std::string& bytes) {
  write_file(dir / "text", bytes);
  Config c = run_on(dir, dir / "text");
  try {
    tokenize_text_data(c);
    return cat(open_tokens(c.data.train[0].path)->tokens(), " tokens");
  } catch (const Error& e) { return cat(static_cast<int>(e.code()), " ", e.what()); }
}

int64_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string key;
  int64_t n = 0;
  in >> key >> n;  // rchar
  return n;
}

}  // namespace

TEST_CASE("text in every supported form becomes tokens, or is refused with the reason") {
  TempDir dir;
  write_file(dir / "mine.txt", read_file("/usr/share/common-licenses/GPL-3"));
  must("tokenizer train --input mine.txt --vocab 400 --output tok.model", dir);
  const std::string line = "You may convey covered works.";
  const std::string one = prepared(dir, line);
  CHECK(one.ends_with(" tokens"));
  const std::vector<std::string> texts{
      line + "\n",       line + "\r\n" + line + "\r\n",
      line + "\xFF\xC3",  // invalid UTF-8
      "   \n \n",        std::string(5000, 'x') + '\0' + "late", std::string(3 << 20, 'y')};
  for (const std::string& text : texts) {
    INFO(text.substr(0, 60));
    CHECK(prepared(dir, text).ends_with(" tokens"));
  }
  CHECK(prepared(dir, "\xEF\xBB\xBF" + line) == one);  // the byte-order mark is not text
  for (const auto& [text, why] :
       {std::pair<std::string, std::string>{"", "no text"}, {std::string("GIF\0\0", 5), "zero bytes"}}) {
    INFO(why);
    CHECK(prepared(dir, text).starts_with("2 "));
    CHECK(prepared(dir, text).find(why) != std::string::npos);
  }
  fs::create_symlink(dir / "mine.txt", dir / "link.txt");
  Config link = run_on(dir, dir / "link.txt");
  tokenize_text_data(link);
  CHECK(fs::exists(link.data.train[0].path + ".idx"));
}

TEST_CASE("a text is tokenized once, for any number of ranks and starts") {
  TempDir dir;
  constexpr int64_t kBytes = 8 << 20;
  std::string text;
  while (static_cast<int64_t>(text.size()) < kBytes) text += "You may convey covered works to others.\n";
  write_file(dir / "mine.txt", text);
  must("tokenizer train --input mine.txt --vocab 300 --output tok.model --sample-mb 0.1", dir);
  Config first = run_on(dir, dir / "mine.txt");
  usleep(200000);  // a file younger than 0.1 s may still change within one clock tick
  tokenize_text_data(first);
  for (int rank = 0; rank < 3; ++rank) {
    Config c = run_on(dir, dir / "mine.txt");
    const int64_t before = bytes_read();
    tokenize_text_data(c);
    CHECK(bytes_read() - before < kBytes / 4);
    CHECK(c.data.train[0].path == first.data.train[0].path);
  }
  text[kBytes / 2] = 'X';  // same length as before
  write_file(dir / "mine.txt", text);
  Config changed = run_on(dir, dir / "mine.txt");
  tokenize_text_data(changed);
  CHECK(changed.data.train[0].path != first.data.train[0].path);
}

TEST_CASE("JSON lines are read alike by tokenizer train, tokenizer encode and data prepare, from files and pipes") {
  TempDir dir;
  std::string json, text;
  for (int k = 0; k < 400; ++k) {
    const std::string line = "Line " + std::to_string(k * k) + " of a work that you may convey to others.";
    json += "{\"id\": NaN, \"body\": \"" + line + "\", \"text\": \"" + line + "\"}\n";
    text += line + "\n";
  }
  write_file(dir / "a.jsonl", json);
  fs::create_directories(dir / "in/.git");
  write_file(dir / "in/a.txt", text);
  write_file(dir / "in/.git/config", "x");
  must("tokenizer train --input in --vocab 340 --output text.model", dir);
  for (const char* input : {"--input a.jsonl", "--input a.jsonl --json-key body", "--input - < a.jsonl"}) {
    must(std::string("tokenizer train --vocab 340 --output json.model ") + input, dir);
    CHECK(read_file(dir / "json.vocab") == read_file(dir / "text.vocab"));
    must(std::string("data prepare --force --tokenizer text.model --output out ") + input, dir);
    CHECK(open_tokens(dir / "out")->documents() == 400);
  }
  must("data prepare --input in --split-docs line --tokenizer text.model --output lines", dir);
  CHECK(read_file(dir / "out.bin") == read_file(dir / "lines.bin"));
  const Outcome encoded = must("tokenizer encode --tokenizer text.model --input a.jsonl", dir);
  CHECK(encoded.out == must("tokenizer encode --tokenizer text.model --input in/a.txt", dir).out);
  CHECK(must("tokenizer encode --tokenizer text.model < a.jsonl", dir).out != encoded.out);  // lines as they are
  CHECK(must("data prepare --force --input in --tokenizer text.model --output out", dir)
            .prints("1 file or folder left out"));
  const Outcome packed = gpttrain("tokenizer train --input - --vocab 340 --output x.model < text.model", dir.path());
  CHECK(packed.code == 2);
  CHECK(packed.prints("standard input: expected text, found"));

  write_file(dir / "chat.jsonl", R"({"messages": [{"role": "user", "content": "q"}, )"
                                 R"({"role": "assistant", "content": "a", "tool_calls": [1]}]})"
                                 "\n");
  const std::string chat =
      "data prepare --format chat --template plain --input chat.jsonl --tokenizer text.model --output chat";
  const Outcome refused = gpttrain(chat, dir.path());
  CHECK(refused.code == 2);
  CHECK(refused.prints("message 2: \"tool_calls\": a key that may change what the message means"));
  must(chat + " --force --ignore-unknown", dir);
}

TEST_CASE("a preparation that others can have written is not believed") {
  TempDir dir;
  std::string text;
  for (int k = 0; k < 300; ++k) text += "You may convey covered works to others.\n";
  write_file(dir / "mine.txt", text);
  must("tokenizer train --input mine.txt --vocab 300 --output tok.model", dir);
  Config c = run_on(dir, dir / "mine.txt");
  tokenize_text_data(c);
  const std::string prefix = c.data.train[0].path, right = read_file(prefix + ".bin");
  for (const char* suffix : {".bin", ".idx", ".meta.json"})
    CHECK((fs::status(prefix + suffix).permissions() & (fs::perms::group_write | fs::perms::others_write)) ==
          fs::perms::none);
  const auto again = [&] {
    Config next = run_on(dir, dir / "mine.txt");
    tokenize_text_data(next);
    CHECK(next.data.train[0].path == prefix);
    return read_file(prefix + ".bin");
  };
  const std::string wrong(right.size(), '\1');
  write_file(prefix + ".bin", wrong);
  CHECK(again() == wrong);  // our own file
  fs::permissions(prefix + ".bin", fs::perms::group_write, fs::perm_options::add);
  CHECK(again() == right);
  write_file(dir / "foreign", wrong);
  fs::remove(prefix + ".bin");
  fs::create_symlink(dir / "foreign", prefix + ".bin");
  CHECK(again() == right);
  CHECK(read_file(dir / "foreign") == wrong);
  fs::remove(prefix + ".idx");  // what an interruption leaves, but of others
  write_file(prefix + ".progress.json", "{}");
  fs::permissions(prefix + ".progress.json", fs::perms::others_write, fs::perm_options::add);
  CHECK(again() == right);
  write_file(prefix + ".mask", "GPTMASK1" + std::string(right.size() / 2, '\0'));  // text has none
  CHECK(again() == right);
  CHECK_FALSE(fs::exists(prefix + ".mask"));
}

TEST_CASE("without a home of one's own nothing is stored or read where others may write") {
  TempDir dir;
  write_file(dir / "mine.txt", read_file("/usr/share/common-licenses/GPL-3"));
  must("tokenizer train --input mine.txt --vocab 400 --output tok.model", dir);
  const std::string run = binary_dir() + "/gpttrain " + kModel +
                          "--data.train mine.txt --data.tokenizer tok.model --train.steps 2 --log.name ";
  const Outcome stored =
      shell("mkdir tmp home && HOME=$PWD/home XDG_CACHE_HOME= TMPDIR=$PWD/tmp " + run + "a", dir.path());
  INFO(stored.out);
  CHECK(stored.code == 0);
  CHECK(fs::exists(dir / "home/.cache/gpttrain/index"));
  const Outcome homeless = shell("env -u HOME -u XDG_CACHE_HOME TMPDIR=$PWD/tmp " + run + "b", dir.path());
  INFO(homeless.out);
  CHECK(homeless.code == 0);
  CHECK(homeless.count("no HOME and no XDG_CACHE_HOME: the order of samples is kept in memory") == 1);
  CHECK(fs::is_empty(dir / "tmp"));
  CHECK(logged(dir / "runs/a", "loss") == logged(dir / "runs/b", "loss"));
  const Outcome shared =
      shell("mkdir -p all/gpttrain/index && chmod 777 all/gpttrain/index && XDG_CACHE_HOME=$PWD/all " + run +
                "c --dp 2 --train.global_batch 4",
            dir.path());
  INFO(shared.out);
  CHECK(shared.code == 0);
  CHECK(shared.count("others may write it") == 1);
  CHECK(fs::is_empty(dir / "all/gpttrain/index"));
}

TEST_CASE("Ctrl-C in tokenizer train is reported, ends with 130, and leaves nothing") {
  TempDir dir;
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  const auto interrupt = [&](int pid) {
    const int fd = open((dir / "pipe").c_str(), O_WRONLY);
    const std::string text(1 << 18, 'a');  // more than a pipe buffers: the reader is active
    CHECK(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    kill(pid, SIGINT);
    wait_until_taken(pid, SIGINT);
    close(fd);
  };
  const std::string train = "gpttrain tokenizer train --input - --vocab 400 --output tok.model <pipe";
  const Outcome r = shell("exec " + binary_dir() + "/" + train, dir.path(), 60, interrupt);
  INFO(r.out);
  CHECK(r.code == 128 + SIGINT);
  CHECK(r.prints("interrupted; nothing was written"));
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);  // the pipe
}

TEST_CASE("from a text file to text in three commands, and the text is prepared once") {
  TempDir dir;
  write_file(dir / "mine.txt", "\xEF\xBB\xBF" + read_file("/usr/share/common-licenses/GPL-3") + "caf\xE9\r\n");
  const Outcome no_tokenizer = gpttrain(kModel + "--data.train mine.txt --train.steps 2", dir.path());
  INFO(no_tokenizer.out);
  CHECK(no_tokenizer.code == 2);
  CHECK(no_tokenizer.prints("gpttrain tokenizer train --input mine.txt --vocab 400 --output mine.model"));
  must("tokenizer train --input mine.txt --vocab 400 --output mine.model", dir);
  const std::string train = kModel +
                            "--data.train mine.txt --data.tokenizer mine.model --log.name mine --train.eval_every 5 "
                            "--train.eval_steps 1 --dp 2 --launch.ranks threads --train.steps ";
  const Outcome dry = must(train + "1 --dry-run", dir);
  CHECK(dry.prints("text files, prepared when the run starts"));
  CHECK_FALSE(dry.prints("synthetic tokens"));
  CHECK_FALSE(fs::exists(dir / "runs/mine"));
  const Outcome first = must(train + "5", dir);
  CHECK(first.prints("prepare "));
  CHECK(first.prints("1 document is too few"));  // data.split applies, so there is data to evaluate on
  CHECK(logged(dir / "runs/mine", "loss", "eval").size() == 1);
  CHECK(token_files(dir / "runs/mine/data") == 1);
  const Outcome again = must(train + "10 --checkpoint.allow_change train.steps", dir);
  CHECK(again.prints("from step 5"));
  CHECK_FALSE(again.prints("prepare "));
  CHECK(token_files(dir / "runs/mine/data") == 1);
  CHECK(must("generate --load runs/mine --prompt \"The\" --max-tokens 4", dir).prints("The"));
  write_file(dir / "mine.txt", "Other text.\nOf two lines, and so on, and so on, and so on, and so on.\n");
  CHECK(gpttrain(train + "12", dir.path()).code == 2);  // data differs from the checkpoint's
}

TEST_CASE("an input that is not text is reported, and a model too small for the tokenizer with the size it needs") {
  TempDir dir;
  const std::string gpl = read_file("/usr/share/common-licenses/GPL-3");
  write_file(dir / "mine.txt", gpl);
  write_file(dir / "empty.txt", "");
  write_file(dir / "weights.pt", std::string("PK\3\4\0\0 and more", 15));
  fs::create_directories(dir / "folder");
  must("tokenizer train --input mine.txt --vocab 420 --output mine.model", dir);
  const auto refused = [&](const std::string& args, const std::string& why) {
    const Outcome r = gpttrain(kModel + "--data.tokenizer mine.model --train.steps 2 " + args, dir.path());
    INFO(args << "\n" << r.out);
    CHECK(r.code == 2);
    CHECK(r.prints(why));
  };
  refused("--data.train mine.txt", "--model.vocab 420");
  refused("--data.train mine.txt --dry-run", "--model.vocab 420");
  refused("--data.train empty.txt --model.vocab 420", "no text");
  refused("--data.train weights.pt --model.vocab 420",
          "weights.pt: expected text, found a zip archive; unpack it: unzip");
  refused("--data.train weights.pt --model.vocab 420 --dry-run", "a zip archive");
  write_file(dir / "a.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}\n");
  refused("--data.train a.jsonl --model.vocab 420", "ShareGPT");
  refused("--data.train folder --model.vocab 420", "data.train: folder: is a folder");
  refused("--data.train nowhere.txt", "data.train: nowhere.txt: no such file, and no token files nowhere.txt.bin and ");
}
