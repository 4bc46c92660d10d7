// Byte-level BPE of Hugging Face's tokenizers in every subcommand, and its ids against transformers: on 10,000 texts
// for every change, on 100,000 at night.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/data/byte_level_json.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;

const std::string kText = "/usr/share/common-licenses/GPL-3";
const std::string kScript = source_dir() + "/tests/readers/tokenizer_json.py";

std::string python() { return source_dir() + "/build/hf/bin/python"; }

// Writes a folder with a tokenizer.json of some merges and the names of its special tokens.
void write_folder(const std::string& folder, const std::string& config = R"({"eos_token": "<|endoftext|>"})") {
  fs::create_directories(folder);
  test::Pairs merges{{"t", "h"}, {"i", "n"}, {"th", "e"}, {"e", "r"}, {"\xC4\xA0", "the"}, {"o", "n"}, {"in", "g"}};
  write_file(folder + "/tokenizer.json", test::byte_level_json(merges).dump());
  if (!config.empty()) write_file(folder + "/tokenizer_config.json", config);
}

// Writes the same tokenizer as vocab.json and merges.txt; returns its tokenizer.json.
nlohmann::ordered_json write_vocab_and_merges(const std::string& folder) {
  fs::create_directories(folder);
  test::Json j = test::byte_level_json({{"t", "h"}, {"i", "n"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"in", "g"}});
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : j["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  write_file(folder + "/vocab.json", j["model"]["vocab"].dump());
  write_file(folder + "/merges.txt", merges);
  return j;
}

// Creates a tokenizer of each kind, and compares the ids of data prepare and AutoTokenizer, or tiktoken for a file of
// ranks.
void compare_ids(const std::vector<std::string>& kinds) {
  TempDir dir;
  const std::string ending = ".tiktoken";
  const std::string count = full_size() ? "100000" : "10000";
  const auto run = [&](const std::string& args) {
    const Outcome r = shell(python() + " " + kScript + " " + args, dir.path(), 500);
    INFO(r.out);
    REQUIRE(r.code == 0);
    return r;
  };
  run("documents " + count + " 3 " + kText + " >texts.jsonl");
  for (const std::string& kind : kinds) {
    INFO(kind);
    if (kind.ends_with(ending))
      run("ranks " + kind + " " + kind.substr(0, kind.size() - ending.size()) + " " + kText);
    else
      run("make " + kind + " " + kind + " " + kText);
    must("data prepare --input texts.jsonl --tokenizer " + kind + " --no-eod --no-bos --check-cache --output out-" +
             kind,
         dir);
    CHECK(run("compare " + kind + " texts.jsonl out-" + kind).prints(count + " documents"));
    std::printf("tokenizers: %s: the ids of %s texts are those of %s\n", kind.c_str(), count.c_str(),
                kind.ends_with(ending) ? "tiktoken" : "transformers");
  }
}

const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 272 --model.seq 32 --train.micro_batch 4 "
    "--train.global_batch 8 --train.steps 6 --optim.lr 1e-2 --device.kind cpu --log.tensorboard false ";

}  // namespace

TEST_CASE("ids of vocab.json and merges.txt equal those of transformers") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  compare_ids({"gpt2_files"});
}

TEST_CASE(
    "a run on text with vocab.json and merges.txt keeps them as a tokenizer.json, which generate and export use") {
  TempDir dir;
  const auto j = write_vocab_and_merges(dir / "old");
  fs::copy_file(kText, dir / "text.txt");
  write_file(dir / "new.json", j.dump());
  const std::string how = " --prompt \"the thing\" --max-tokens 20 --temperature 0 --device.kind cpu";
  must("data prepare --input text.txt --tokenizer old --output a", dir);
  must("data prepare --input text.txt --tokenizer new.json --output b", dir);
  CHECK(read_file(dir / "a.bin") == read_file(dir / "b.bin"));
  must(kTiny + "--data.train a --data.tokenizer old/vocab.json --log.name run", dir);
  const std::string text = must("generate --load runs/run" + how, dir).out;
  CHECK(must("generate --load runs/run --tokenizer old" + how, dir).out == text);
  must("export --load runs/run --output hf", dir);
  fs::remove(dir / "hf/tokenizer.json");  // an older folder: the two files beside the weights
  for (const char* name : {"vocab.json", "merges.txt"}) fs::copy_file(dir / "old/" + name, dir / "hf/" + name);
  CHECK(must("import --from hf --output in", dir).prints("--data.tokenizer in/step-000000000/tokenizer.json"));
  CHECK(must("generate --load in" + how, dir).out == text);
  CHECK(must(kTiny + "--from hf --data.train text.txt --log.name from", dir).prints("from"));
}

TEST_CASE("ids of a tokenizer.json equal those of transformers: GPT-2, Llama 3, Qwen 2") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  compare_ids({"gpt2", "llama3", "qwen2"});
}

TEST_CASE(
    "ids of a tokenizer.json with inverted and possessive patterns, digits, or several steps, equal those of "
    "transformers") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  compare_ids({"gpt4", "deepseek", "smollm"});
}

TEST_CASE("ids of tiktoken's files of ranks equal those of tiktoken") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  compare_ids({"gpt2.tiktoken", "cl100k.tiktoken", "llama3.tiktoken", "qwen.tiktoken", "o200k.tiktoken"});
}

TEST_CASE("a run on text with a tokenizer.json stores it, and generate, eval, export and import use the stored one") {
  TempDir dir;
  write_folder(dir / "hf");
  fs::copy_file(kText, dir / "text.txt");
  const std::string how = " --prompt \"the thing\" --max-tokens 40 --temperature 0 --device.kind cpu";
  must(kTiny + "--data.train text.txt --data.tokenizer hf --train.eval_every 3 --log.name run", dir);
  must(kTiny + "--data.train text.txt --data.tokenizer hf --train.eval_every 3 --log.name run --train.steps 8", dir);
  const std::string text = must("generate --load runs/run" + how, dir).out;
  CHECK(text.find("the thing") != std::string::npos);
  must("data prepare --input text.txt --tokenizer hf/tokenizer.json --output tokens", dir);
  CHECK(must("eval --load runs/run --data.train tokens --device.kind cpu", dir).prints("loss"));
  must("export --load runs/run --output out", dir);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(read_file(dir / (std::string("out/") + name)) == read_file(dir / (std::string("hf/") + name)));
  CHECK(nlohmann::json::parse(read_file(dir / "out/generation_config.json"))["eos_token_id"] == 263);
  const Outcome in = must("import --from out --output in", dir);
  CHECK(in.prints("--data.tokenizer in/step-000000000/tokenizer.json"));
  CHECK(must("generate --load in" + how, dir).out == text);

  // A run does not resume these weights with another tokenizer.
  write_file(dir / "other.json", test::byte_level_json({{"a", "b"}}).dump());
  const Outcome other =
      gpttrain(kTiny + "--data.train text.txt --data.tokenizer other.json --log.name run --train.steps 9", dir.path());
  CHECK(other.code == 2);
  CHECK(other.prints("one tokenizer"));

  // A folder with an unsupported tokenizer: the weights are imported without it.
  write_file(dir / "out/tokenizer.json", R"({"model": {"type": "WordLevel", "vocab": {"a": 0}}})");
  const Outcome foreign = must("import --from out --output foreign", dir);
  CHECK((foreign.prints("WordLevel") && foreign.prints("imported without a tokenizer")));
  CHECK(gpttrain("generate --load foreign" + how, dir.path()).prints("--tokenizer"));
  CHECK(must("generate --load foreign --tokenizer hf/tokenizer.json" + how, dir).out == text);
}

TEST_CASE("tokenizer encode and decode read a tokenizer.json, and a missing end token is reported") {
  TempDir dir;
  write_folder(dir / "hf");
  const std::string lines = "the other thing\ncaf\xC3\xA9 \xF0\x9F\x98\x80<|endoftext|>\n\n  two  blanks\t\n";
  write_file(dir / "lines.txt", lines);
  for (const std::string form : {"", " --pieces", " --ids-binary u16", " --ids-binary i32"}) {
    INFO(form);
    REQUIRE(
        shell(binary_dir() + "/gpttrain tokenizer encode --tokenizer hf --input lines.txt" + form + " >ids", dir.path())
            .code == 0);
    REQUIRE(shell(binary_dir() + "/gpttrain tokenizer decode --tokenizer hf --input ids" + form + " >back", dir.path())
                .code == 0);
    CHECK(read_file(dir / "back") == lines);
  }
  must("data prepare --input lines.txt --split-docs line --tokenizer hf/tokenizer.json --output d", dir);
  CHECK(must("data inspect d --tokenizer hf --doc 0", dir).prints("the other thing"));
  auto j = test::byte_level_json();
  j["added_tokens"] = test::Json::array();
  write_file(dir / "plain.json", j.dump());
  const Outcome none = gpttrain("data prepare --input lines.txt --tokenizer plain.json --output e", dir.path());
  CHECK(none.code == 2);
  CHECK(none.prints("--no-eod"));
}
