// Fine-tuning as a user does it: conversations to tokens and masks, a trained model, other answers.
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kModel =
    "--model.layers 2 --model.hidden 48 --model.heads 4 --model.vocab 400 --model.seq 48 --device.kind cpu "
    "--device.threads 1 --schedule.type constant --data.tokenizer tok.model ";

// Colours of things, as questions and answers; some have no answer, one is too long.
std::string questions() {
  const char* things[] = {"grass", "snow", "coal", "blood", "the sky"};
  const char* colours[] = {"green", "white", "black", "red", "blue"};
  std::string out;
  for (int round = 0; round < 12; ++round)
    for (int k = 0; k < 5; ++k)
      out += cat(R"({"instruction": "What is the colour of )", things[k], R"(?", "output": ")", colours[k], "\"}\n");
  return out + R"({"instruction": "What is this?", "output": ""})" + "\n";
}

// The same words as plain text, for a tokenizer.
std::string words() {
  std::string out = questions();
  for (const char* syntax : {R"({"instruction": ")", R"(", "output": ")", R"("})"})
    for (size_t at; (at = out.find(syntax)) != std::string::npos;) out.replace(at, std::strlen(syntax), " ");
  return out;
}

// A folder with a tokenizer, a model that has read a licence, and the questions.
struct Rig : TempDir {
  Rig() {
    write_file(*this / "text.txt", read_file("/usr/share/common-licenses/GPL-3"));
    write_file(*this / "chat.jsonl", questions());
    write_file(*this / "words.txt", words());
    must("tokenizer train --input text.txt words.txt --vocab 400 --output tok.model", *this);
    must(kModel +
             "--data.train text.txt --train.micro_batch 4 --train.global_batch 8 --train.steps 10 --optim.lr 3e-3 "
             "--log.name base",
         *this);
  }
  std::string answer(const std::string& run, const std::string& thing) const {
    write_file(*this / "prompt.jsonl",
               R"({"prompt": "user:\nWhat is the colour of )" + thing + R"(?\n\nassistant:\n"})" + "\n");
    return must("generate --load runs/" + run + " --prompt-file prompt.jsonl --max-tokens 8 --temperature 0", *this)
        .out;
  }
};

}  // namespace

TEST_CASE("a model that is fine-tuned on questions answers them, and did not before") {
  const Rig rig;
  const Outcome prepared = must(
      "data prepare --input chat.jsonl --format instruct --template plain --tokenizer tok.model "
      "--output chat",
      rig);
  CHECK(prepared.prints("chat.mask"));
  CHECK(prepared.prints("documents         60"));
  CHECK(prepared.prints("without answer    1"));
  const std::string before = rig.answer("base", "snow");
  CHECK(before.find("white") == std::string::npos);
  const std::string tune = kModel +
                           "--data.train chat --data.pack documents --checkpoint.load_from runs/base --checkpoint.load "
                           "weights --train.micro_batch 2 --train.global_batch 4 --optim.lr 3e-3 ";
  must(tune + "--train.steps 240 --log.name tuned", rig);
  for (const auto& [thing, colour] : {std::pair("snow", "white"), {"grass", "green"}, {"the sky", "blue"}}) {
    const std::string text = rig.answer("tuned", thing);
    INFO(text);
    CHECK(text.find(colour) != std::string::npos);
  }
  // Counts of targets differ between microbatches and ranks: the loss is the mean over all of a step's.
  const std::string five = tune + "--train.steps 5 --log.name ";
  must(five + "one", rig);
  const std::vector<double> one = logged(rig / "runs/one", "loss");
  REQUIRE(one.size() == 5);
  int n = 0;
  for (const std::string layout :
       {"--tp 2 --launch.ranks threads --train.micro_batch 1", "--pp 2 --dp 2 --launch.ranks threads",
        "--dp 4 --zero.stage 3 --launch.ranks threads --train.micro_batch 1",
        "--tp 2 --pp 2 --parallel.recompute full --launch.ranks threads"}) {
    const std::string name = "layout" + std::to_string(n++);
    INFO(layout);
    must(five + name + " " + layout, rig);
    const std::vector<double> losses = logged(rig / "runs/" + name, "loss");
    REQUIRE(losses.size() == 5);
    for (size_t k = 0; k < 5; ++k) CHECK(losses[k] == Approx(one[k]).epsilon(2e-5));
  }
  const Outcome evaluated = must("eval --load runs/tuned --split train --data.train chat", rig);
  CHECK(evaluated.prints("perplexity"));
}

TEST_CASE("an exported model that is fine-tuned from its folder answers otherwise, and transformers with its words") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  const Rig rig;
  must("export --load runs/base --output hf", rig);
  must("data prepare --input chat.jsonl --format instruct --template plain --tokenizer hf --output chat", rig);
  const std::string before = rig.answer("base", "coal");
  must(
      "--from hf --model.seq 48 --data.train chat --data.pack documents --train.micro_batch 2 --train.global_batch 4 "
      "--train.steps 240 --optim.lr 3e-3 --schedule.type constant --device.kind cpu --device.threads 1 "
      "--log.name tuned",
      rig);
  const std::string after = rig.answer("tuned", "coal");
  INFO(before << "\n" << after);
  CHECK(before.find("black") == std::string::npos);
  CHECK(after.find("black") != std::string::npos);
  must("export --load runs/tuned --output tuned", rig);
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  write_file(rig / "lines.txt", "What is the colour of coal?\n");
  REQUIRE(
      shell(binary_dir() + "/gpttrain tokenizer encode --tokenizer tok.model --input lines.txt >ids.txt", rig.path())
          .code == 0);
  const Outcome r = shell(python + " " + source_dir() + "/tests/readers/hf_tokens.py tuned lines.txt ids.txt " +
                              "'user:\nWhat is the colour of coal?\n\nassistant:\n' 8 out.txt",
                          rig.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  CHECK(read_file(rig / "out.txt") == after);
}

TEST_CASE("adapters alone answer them too, and the model that they stand on stays as it is") {
  const Rig rig;
  must("data prepare --input chat.jsonl --format instruct --template plain --tokenizer tok.model --output chat", rig);
  must(kModel +
           "--data.train text.txt --train.micro_batch 4 --train.global_batch 8 --train.steps 200 --optim.lr 3e-3 "
           "--log.name longer",
       rig);
  CHECK(rig.answer("longer", "snow").find("white") == std::string::npos);
  must(kModel +
           "--data.train chat --data.pack documents --checkpoint.load_from runs/longer --checkpoint.load weights "
           "--model.lora_rank 16 --model.lora_alpha 32 --train.micro_batch 4 --train.global_batch 4 --optim.lr 3e-3 "
           "--train.steps 1600 --log.name adapted",
       rig);
  for (const auto& [thing, colour] : {std::pair("snow", "white"), {"grass", "green"}, {"the sky", "blue"}}) {
    const std::string text = rig.answer("adapted", thing);
    INFO(text);
    CHECK(text.find(colour) != std::string::npos);
  }
  const Outcome differ = gpttrain("ckpt diff runs/longer runs/adapted --show 1000", rig.path());
  INFO(differ.out);
  CHECK(differ.prints("28 tensors compared, 28 of them bitwise equal"));
  CHECK(differ.prints("master/layers.0.attn.qkv.lora_b"));
}

TEST_CASE("numpy reads the loss mask beside the tokens") {
  const std::string python = source_dir() + "/build/readers/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it and needs PyPI");
  TempDir dir;
  write_file(dir / "chat.jsonl", questions());
  write_file(dir / "words.txt", words());
  must("tokenizer train --input words.txt --vocab 320 --output tok.model", dir);
  must("data prepare --input chat.jsonl --format instruct --template plain --tokenizer tok.model --output chat", dir);
  const Outcome r =
      shell(python + " " + source_dir() + "/tests/readers/read_mask.py chat tok.model chat.jsonl", dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("60 conversations"));
}
