// Hugging Face folders whose files add to a tokenizer: tokens beside a SentencePiece model, BOS and EOS around a text.
// Ids are compared with those of transformers' AutoTokenizer.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/prepare/chat.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens/token_file.h"
#include "launch/tools/eval/choice_tasks.h"
#include "tests/data/byte_level_json.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

namespace fs = std::filesystem;
using test::Json;
using Ids = std::vector<int32_t>;

const std::string kText = "/usr/share/common-licenses/GPL-3";

std::string python() { return source_dir() + "/build/hf/bin/python"; }

// A folder of tests in which scripts of tests/readers run.
struct Oracle : TempDir {
  void run(const std::string& script, const std::string& args) const {
    const Outcome r = shell(python() + " " + source_dir() + "/tests/readers/" + script + " " + args, path(), 300);
    INFO(r.out);
    REQUIRE(r.code == 0);
  }
  // Compares the ids of `texts.jsonl` by `ours`, a tokenizer's path, with those of AutoTokenizer in `theirs`.
  void compare(const std::string& ours, const std::string& theirs) const {
    INFO(ours);
    must("data prepare --input texts.jsonl --tokenizer " + ours + " --no-eod --force --output out", *this);
    run("tokenizer_json.py", "compare " + theirs + " texts.jsonl out whole");
  }
};

// A byte-level BPE whose texts begin with <|begin|> (260) and whose documents end with <|end|> (261).
void write_bos_folder(const std::string& folder, bool in_template, const std::string& config = "") {
  fs::create_directories(folder);
  Json j = test::byte_level_json();
  j["added_tokens"][0]["content"] = "<|begin|>";
  Json end = j["added_tokens"][0];
  end["id"] = 261, end["content"] = "<|end|>";
  j["added_tokens"].push_back(end);
  if (in_template)
    j["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", Json::array({Json{{"SpecialToken", {{"id", "<|begin|>"}, {"type_id", 0}}}},
                                Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
        {"pair", Json::array()},
        {"special_tokens", {{"<|begin|>", {{"id", "<|begin|>"}, {"ids", {260}}, {"tokens", {"<|begin|>"}}}}}}};
  write_file(folder + "/tokenizer.json", j.dump());
  write_file(folder + "/tokenizer_config.json",
             config.empty() ? R"({"bos_token": "<|begin|>", "eos_token": "<|end|>"})" : config);
}

Ids tokens_of(const std::string& prefix) {
  const auto file = open_tokens(prefix);
  Ids all;
  for (int64_t s = 0; s < file->sequences(); ++s) {
    Ids ids(static_cast<size_t>(file->length(s)));
    file->read(s, 0, ids);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

const std::string kTiny =
    "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 262 --model.seq 8 --train.micro_batch 2 "
    "--train.global_batch 2 --train.steps 2 --device.kind cpu --device.threads 1 --log.tensorboard false ";

}  // namespace

TEST_CASE("ids of tokens that a folder adds to a SentencePiece model equal those of transformers") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  const Oracle o;
  o.run("tokenizer_json.py", "documents 1500 5 " + kText + " >texts.jsonl");
  for (const std::string kind : {"llama", "mistral", "gemma", "always"}) {
    o.run("tokenizer_folder.py", "make " + kind + " " + kind + " " + kText);
    o.compare(kind, kind);
    o.compare(kind + "/tokenizer.model", kind);
    fs::copy(o / kind, o / (kind + "_json"));
    fs::remove(o / (kind + "_json/tokenizer.model"));
    o.compare(kind + "_json", kind);
    if (kind == "always") continue;  // its class has no rule for a folder without tokenizer.json
    fs::copy(o / kind, o / (kind + "_config"));
    fs::remove(o / (kind + "_config/tokenizer.json"));
    o.compare(kind + "_config", kind);
    fs::copy(o / kind, o / (kind + "_names"));
    o.run("tokenizer_folder.py", "names " + kind + "_names");
    o.compare(kind + "_names", kind + "_names");
    fs::copy(o / (kind + "_names"), o / (kind + "_alone"));
    fs::remove(o / (kind + "_alone/tokenizer.json"));
    o.compare(kind + "_alone", kind + "_names");
  }
}

TEST_CASE("tokens before and after a text equal those of transformers: templates, classes and flags") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  const Oracle o;
  o.run("tokenizer_json.py", "documents 300 6 " + kText + " >texts.jsonl");
  for (const std::string kind : {"template", "roberta", "flags", "no_flags", "neox", "gpt2"}) {
    o.run("tokenizer_folder.py", "bos " + kind + " " + kind);
    o.compare(kind, kind);
  }
}

TEST_CASE("documents, prompts, contexts and text as data.train begin with the tokenizer's BOS unless --no-bos") {
  TempDir dir;
  write_bos_folder(dir / "tok", true);
  write_file(dir / "text.txt", "ab\nba\n");
  must("data prepare --input text.txt --split-docs line --tokenizer tok --output a", dir);
  CHECK(tokens_of(dir / "a") == Ids{260, 'a', 'b', 261, 260, 'b', 'a', 261});
  CHECK(nlohmann::json::parse(read_file(dir / "a.meta.json"))["bos"] == nlohmann::json{260});
  must("data prepare --input text.txt --split-docs line --tokenizer tok --no-bos --output b", dir);
  CHECK(tokens_of(dir / "b") == Ids{'a', 'b', 261, 'b', 'a', 261});
  CHECK(nlohmann::json::parse(read_file(dir / "b.meta.json"))["bos"].empty());

  fs::copy_file(kText, dir / "long.txt");
  const std::string run = kTiny + "--data.train long.txt --data.tokenizer tok ";
  CHECK(must(run + "--log.name run", dir).prints("texts begin with <|begin|> (260)"));
  CHECK(must(run + "--log.name none --no-bos", dir).prints("texts without <|begin|> (260) (data.no_bos)"));
  std::vector<Ids> data;
  for (const char* name : {"run", "none"})
    for (const auto& e : fs::directory_iterator(dir / (std::string("runs/") + name + "/data")))
      if (e.path().extension() == ".bin") data.push_back(tokens_of(e.path().string()));
  REQUIRE(data.size() == 2);
  CHECK(data[0].front() == 260);
  CHECK(data[0].size() == data[1].size() + 1);

  const Tokenizer t = Tokenizer::load(dir / "tok");
  const ChoiceQuestion q{.where = "q", .task = "t", .id = "", .context = "", .choices = {"ab", "b"}, .answer = 0};
  CHECK(encode_choices(q, t, 8)[0].ids == Ids{260, 'a', 'b'});
  CHECK(encode_choices(q, t, 8, false)[0].ids == Ids{261, 'a', 'b'});
  write_file(dir / "q.jsonl", R"({"context": "ab", "choices": ["a", "b"], "answer": 0})");
  const std::string eval = "eval --load runs/run --tasks q.jsonl --out o.json --device.kind cpu ";
  CHECK(must(eval, dir).prints("contexts begin with <|begin|> (260)"));
  const auto first = nlohmann::json::parse(read_file(dir / "o.json"))["questions"][0]["loglikelihood"];
  CHECK_FALSE(must(eval + "--no-bos", dir).prints("begin with"));
  CHECK(nlohmann::json::parse(read_file(dir / "o.json"))["questions"][0]["loglikelihood"] != first);
  // A prompt that writes BOS itself, with --no-bos, is the same prompt.
  const std::string how = " --temperature 0 --max-tokens 6 --device.kind cpu --json";
  const auto text_of = [&](const std::string& args) {
    return nlohmann::json::parse(must("generate --load runs/run " + args + how, dir).out)["text"];
  };
  CHECK(text_of("--prompt ab") == text_of("--no-bos --prompt '<|begin|>ab'"));
  const Outcome twice = must("generate --load runs/run --prompt '<|begin|>ab'" + how, dir);
  CHECK(twice.prints("note: a prompt begins with <|begin|> (260), which is written before every prompt"));
}

TEST_CASE("a conversation begins with BOS once, whether or not its template writes it") {
  TempDir dir;
  write_bos_folder(dir / "tok", true);
  write_file(dir / "chat.jsonl",
             R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  write_file(dir / "own.json", R"({"begin": "{bos}", "system": {"before": "s"}, "user": {"before": "u"},
    "assistant": {"before": "v", "end": "{eos}"}})");
  write_file(dir / "bare.json", R"({"system": {"before": "s"}, "user": {"before": "u"},
    "assistant": {"before": "v", "end": "{eos}"}})");
  for (const char* name : {"own", "bare"}) {
    INFO(name);
    const Outcome o = must(std::string("data prepare --input chat.jsonl --format chat --tokenizer tok --output c-") +
                               name + " --template " + name + ".json",
                           dir);
    CHECK_FALSE(o.prints("--split-docs"));  // a note for one document of text
    CHECK(tokens_of(dir / (std::string("c-") + name)) == Ids{260, 'u', 'a', 'v', 'b', 261});
  }
  must("data prepare --input chat.jsonl --format chat --tokenizer tok --output c --template bare.json --no-bos", dir);
  CHECK(tokens_of(dir / "c") == Ids{'u', 'a', 'v', 'b', 261});
}

TEST_CASE("token files that begin otherwise than the tokenizer's texts are reported when training starts") {
  TempDir dir;
  write_bos_folder(dir / "tok", true);
  fs::copy_file(kText, dir / "long.txt");
  must("data prepare --input long.txt --tokenizer tok --no-bos --output none", dir);
  must("data prepare --input long.txt --tokenizer tok --output bos", dir);
  const std::string run = kTiny + "--data.tokenizer tok --dry-run --data.train ";
  CHECK(must(run + "none", dir).prints("documents of none do not begin with <|begin|> (260)"));
  CHECK_FALSE(must(run + "none --no-bos", dir).prints("do not begin"));
  CHECK_FALSE(must(run + "bos", dir).prints("begin with the tokens"));
  CHECK(must(run + "0.5 bos 0.5 none", dir)
            .prints("documents of bos begin with the tokens 260, those of none with none"));
}

TEST_CASE("what a bare tokenizer.model leaves open is reported before anything is trained") {
  if (!fs::exists(python())) GT_SKIP("no " + python() + "; tests/readers/setup.sh makes it");
  const Oracle o;
  o.run("tokenizer_folder.py", "make llama llama " + kText);
  fs::create_directory(o / "bare");
  fs::copy(o / "llama/tokenizer.model", o / "bare");
  const std::string open = "whether texts begin with <s> (1)",
                    prepare = "data prepare --input " + kText + " --tokenizer bare --force --output out ",
                    run = kTiny + "--model.vocab 1200 --data.tokenizer bare --data.train mock --dry-run ";
  CHECK(must(prepare, o).prints(open));
  CHECK(must(run, o).prints(open));
  CHECK_FALSE(must(prepare + "--no-bos", o).prints(open));
  CHECK_FALSE(must(run + "--no-bos", o).prints(open));
  write_file(o / "bare/config.json", R"({"model_type": "llama"})");
  CHECK(must(prepare, o).prints("begin with        <s> (1)"));
  CHECK(tokens_of(o / "out").front() == 1);
  const Outcome known = must(run, o);
  CHECK((known.prints("texts begin with <s> (1)") && !known.prints(open)));
}

TEST_CASE("the start block notes a tokenizer with far fewer pieces than model.vocab") {
  TempDir dir;
  write_bos_folder(dir / "tok", false);
  const std::string run = kTiny + "--data.tokenizer tok --data.train mock --dry-run --model.vocab ";
  CHECK(must(run + "50257", dir).prints("model.vocab is 50257, the tokenizer has 262 pieces: 49995 rows"));
  CHECK(must(run + "300", dir).prints("tok: 262 pieces, 38 fewer than model.vocab"));
  CHECK_FALSE(must(run + "262", dir).prints("fewer than"));
}
