// Advice in messages is valid: every flag and subcommand named in texts exists, and every command printed as a next
// step runs as printed (with placeholders filled in).
#include <fstream>
#include <regex>
#include <set>

#include "kernels/core/check.h"
#include "launch/commands/cli.h"
#include "launch/config/config_alias.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
namespace fs = std::filesystem;

namespace {

struct Literal {
  std::string where, text;
};

// Returns the string literals of the program's sources, without comments.
std::vector<Literal> literals() {
  static const std::regex kString(R"re("((?:[^"\\]|\\.)*)")re");
  std::vector<Literal> out;
  for (const char* folder : {"kernels", "autograd", "parallel", "model", "optim", "data", "checkpoint", "launch"})
    for (const auto& e : fs::recursive_directory_iterator(fs::path(source_dir()) / folder)) {
      const std::string end = e.path().extension().string();
      if (end != ".cpp" && end != ".h") continue;
      std::ifstream in(e.path());
      int n = 0;
      for (std::string line; std::getline(in, line);) {
        ++n;
        const size_t at = line.find_first_not_of(' ');
        if (at == std::string::npos || line.compare(at, 2, "//") == 0) continue;
        for (std::sregex_iterator it(line.begin(), line.end(), kString), last; it != last; ++it)
          out.push_back({cat(fs::relative(e.path(), source_dir()).string(), ":", n), (*it)[1]});
      }
    }
  return out;
}

// Returns the command after `mark` in a program's output, up to the end of the line, without "gpttrain ".
std::string advised(const Outcome& r, const std::string& mark) {
  const size_t at = r.out.find(mark + "gpttrain ");
  INFO(r.out);
  REQUIRE(at != std::string::npos);
  const size_t begin = at + mark.size() + 9;
  return r.out.substr(begin, r.out.find('\n', begin) - begin);
}

std::string filled(std::string command, const std::map<std::string, std::string>& placeholders) {
  for (const auto& [name, value] : placeholders)
    if (const size_t at = command.find(name); at != std::string::npos) command.replace(at, name.size(), value);
  return command;
}

}  // namespace

TEST_CASE("every config flag named in a message exists") {
  static const std::regex kFlag(R"(--([a-z][a-z0-9_]*\.[a-z][a-z0-9_]*))");
  Config config;
  std::set<std::string> keys{"section.key"};  // used in a text about flags
  for (const Option& o : list_options(config)) keys.insert(o.key());
  int named = 0;
  for (const Literal& l : literals())
    for (std::sregex_iterator it(l.text.begin(), l.text.end(), kFlag), last; it != last; ++it) {
      INFO(l.where << ": " << l.text);
      CHECK(keys.count((*it)[1]) == 1);
      ++named;
    }
  CHECK(named > 60);
}

TEST_CASE("every subcommand named in a message exists") {
  static const std::regex kCommand(R"(gpttrain ([a-z]+)( [a-z]+)?)");
  // Words that follow the program's name in prose.
  const std::set<std::string> prose{"itself", "process", "trains", "train", "gemm", "does", "without"};
  int named = 0;
  for (const Literal& l : literals())
    for (std::sregex_iterator it(l.text.begin(), l.text.end(), kCommand), last; it != last; ++it) {
      const std::string first = (*it)[1], second = (*it)[2];
      if (prose.count(first) == 1) continue;
      INFO(l.where << ": " << l.text);
      std::string found = "no";
      for (const auto& words : {std::vector<std::string>{first, "--help"},
                                std::vector<std::string>{first, second.empty() ? "" : second.substr(1), "--help"}})
        try {
          if (words.size() == 2 || !second.empty())
            found = parse_command(words, RankEnv{}).text.empty() ? found : "yes";
        } catch (const Error&) {}
      CHECK(found == "yes");
      ++named;
    }
  CHECK(named > 20);
}

TEST_CASE("every command printed as a next step runs as printed") {
  TempDir dir;
  const std::string text = read_file("/usr/share/common-licenses/GPL-3");
  write_file(dir / "text.txt", text);
  const auto follow = [&](const std::string& command, const std::map<std::string, std::string>& placeholders = {}) {
    const std::string words = filled(command, placeholders);
    const Outcome r = gpttrain(words, dir.path());
    INFO("gpttrain " << words << "\n" << r.out);
    CHECK(r.code == 0);
    return r;
  };
  const Outcome tokenizer = must("tokenizer train --input text.txt --vocab 400 --output tok.model", dir);
  const Outcome prepared =
      follow(advised(tokenizer, "next: ") + " --split-docs blank-line", {{"TEXT", "text.txt"}, {"PREFIX", "tokens"}});
  follow(advised(prepared, "next: "));
  const std::string model =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.global_batch 2 "
      "--train.micro_batch 1 --device.kind cpu --log.tensorboard false ";
  const Outcome trained =
      must(model + "--data.train tokens --data.tokenizer tok.model --train.steps 2 --log.name x", dir);
  follow(advised(trained, "  ") + " --max-tokens 2", {{"…", "The"}});
  const Outcome missing = gpttrain("export --load runs/x --step 7 --output hf", dir.path());
  CHECK(missing.code == 2);
  follow(filled(advised(missing, "; "), {{" lists them", ""}}));
  must("export --load runs/x --output hf", dir);
  const Outcome imported = must("import --from hf --output imported/checkpoints", dir);
  follow(advised(imported, "train on: ") +
             " --device.kind cpu --train.steps 1 --train.global_batch 2 --train.micro_batch 1 "
             "--log.tensorboard false",
         {{"PREFIX", "tokens"}});
  follow(advised(imported, "generate: ") + " --max-tokens 2", {{"…", "The"}});
  for (const char* file : {"hf/tokenizer.model", "hf/tokenizer.json"}) fs::remove(dir / file);
  const Outcome bare = must("import --from hf --output bare", dir);
  CHECK(bare.prints("import it again with --tokenizer FILE"));
  const Outcome again = must("import --from hf --output again --tokenizer tok.model", dir);
  follow(advised(again, "generate: ") + " --max-tokens 2", {{"…", "The"}});
  const auto refused = [&](const std::string& command) {
    const Outcome r = gpttrain(command, dir.path());
    INFO(command << "\n" << r.out);
    CHECK(r.code == 2);
    return r;
  };
  // The complete suggested command, with data.
  const std::string eval = "eval --load runs/x --steps 1";
  follow(advised(refused(eval), "To use them:\n  "));
  // Text without a tokenizer: the command that trains one, and the flag to add.
  const std::string train = model + "--data.train text.txt --train.steps 1 --log.name y ";
  const std::string make = advised(refused(train), "needs a tokenizer; ");
  const size_t then = make.find(", then add ");
  REQUIRE(then != std::string::npos);
  follow(make.substr(0, then));
  follow(train + make.substr(then + 11));
  // The same for a name with a blank and a model with more pieces than the text can give.
  write_file(dir / "my text.txt", text);
  std::string large = train;
  const auto swap = [&](const std::string& from, const std::string& to) {
    large.replace(large.find(from), from.size(), to);
  };
  swap("--model.vocab 400", "--model.vocab 50257");
  swap("text.txt", "'my text.txt'");
  swap("--log.name y", "--log.name z");
  const std::string quoted = advised(refused(large), "needs a tokenizer; ");
  const size_t add = quoted.find(", then add ");
  REQUIRE(add != std::string::npos);
  follow(quoted.substr(0, add));
  swap("--model.vocab 50257", "");
  follow(large + quoted.substr(add + 11));
  // A run that continues a checkpoint with a tokenizer, and one whose checkpoints are elsewhere.
  const std::string resumed = model + "--data.train text.txt --train.steps 3 --log.name x";
  const Outcome kept = refused(resumed);
  const size_t flag = kept.out.find("that of the checkpoint, ");
  REQUIRE(flag != std::string::npos);
  CHECK(kept.out.substr(flag + 24).starts_with("--data.tokenizer runs/x/checkpoints/step-000000002/tokenizer.model"));
  const Outcome apart = must(train + "--data.tokenizer tok.model --checkpoint.dir apart", dir);
  follow(advised(apart, "  ") + " --max-tokens 2", {{"…", "The"}});
  // Text where tokens are expected.
  follow(advised(refused("eval --load runs/x --data.train text.txt"), "prepare it with: "),
         {{"TOKENIZER.model", "tok.model"}});
  // An llm.c model where llm.c tokens are expected.
  const std::string small = source_dir() + "/tests/golden/llmc/small.bin";
  follow(advised(refused(model + "--train.steps 1 --data.train " + small), "that of a model: ") +
         " --output llmc/checkpoints");
}

TEST_CASE("the file of peaks that a refused roofline requires is written by the command it prints") {
  TempDir dir;
  const std::string model =
      " --model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 400 --model.seq 16 --train.global_batch 2 "
      "--train.micro_batch 1 --device.kind cpu";
  write_file(dir / "broken.json", "{}");
  const Outcome refused = gpttrain("bench roofline --ceilings broken.json" + model, dir.path());
  CHECK(refused.code == 2);
  const std::string command = filled(advised(refused, "; create one with "), {{"FILE", "ceilings.json"}});
  must(command + model, dir);
  must("bench roofline --ceilings ceilings.json" + model, dir);
}
