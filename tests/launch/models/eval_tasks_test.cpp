// gpttrain eval: multiple-choice tasks against single forward passes and transformers, on every layout; hostile files;
// bits per byte and standard errors.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/tools/eval/choice_tasks.h"
#include "launch/tools/eval/standard_error.h"
#include "launch/tools/generate/decoder.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Json = nlohmann::json;

namespace {

// A run on the text of a licence, with a tokenizer, and questions about that text.
struct EvalFixture : TempDir {
  explicit EvalFixture(const std::string& model, const std::string& more = "") {
    const std::string text = read_file("/usr/share/common-licenses/GPL-3");
    write_file(*this / "text.txt", text);
    must("tokenizer train --input text.txt --vocab 400 --output tok.model", *this);
    must("data prepare --input text.txt --split-docs blank-line --tokenizer tok.model --output tokens", *this);
    must(
        "--model.vocab 400 --model.layers 2 --model.hidden 32 --model.heads 4 --model.seq 48 --train.micro_batch 2 "
        "--train.global_batch 4 --train.steps 12 --optim.lr 5e-3 --device.kind cpu --device.threads 1 --log.name run "
        "--data.split 90,10 --data.train tokens --data.tokenizer tok.model " +
            model + " " + more,
        *this);
    std::string lines;
    for (size_t k = 0; k < 12; ++k) {  // contexts from nothing to longer than the model's, with and without a blank
      const size_t at = 700 + 331 * k, size = k < 2 ? k : 5 + 37 * k;
      const std::string context = text.substr(at, size) + (k % 3 == 1 ? " " : "");
      lines += Json{{"context", context},
                    {"choices", {text.substr(at + size, 9), " licence of Größe " + std::to_string(k), "the", "zq\n"}},
                    {"answer", k % 4},
                    {"id", "q" + std::to_string(k)}}
                   .dump() +
               (k == 5 ? "\r\n\n" : "\n");
    }
    write_file(*this / "licence.jsonl", lines);
  }
  Json eval(const std::string& how) const {
    must("eval --load runs/run --tasks licence.jsonl --out out.json " + how, *this);
    return Json::parse(read_file(*this / "out.json"));
  }
};

// Log-likelihood of the scored tokens by one forward pass over each prefix.
double by_prefixes(LoadedModel& m, const ChoiceTokens& c) {
  Decoder decoder(m, 1, false);
  double sum = 0;
  for (auto n = static_cast<ptrdiff_t>(c.ids.size()) - c.scored; n < static_cast<ptrdiff_t>(c.ids.size()); ++n) {
    Sequence s;
    s.ids.assign(c.ids.begin(), c.ids.begin() + n);
    Sequence* one = &s;
    decoder.run({&one, 1});
    double total = 0;
    for (const float z : decoder.logits(0)) total += std::exp(static_cast<double>(z));
    sum += decoder.logits(0)[static_cast<size_t>(c.ids[static_cast<size_t>(n)])] - std::log(total);
  }
  return sum;
}

std::string error_of(const std::string& text) {
  try {
    parse_questions(text, "tasks.jsonl");
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("log-likelihoods of choices are those of forward passes over prefixes and the same on every layout") {
  const EvalFixture rig("--model.tied true");
  const Json one = rig.eval("");
  const auto questions = read_questions({rig / "licence.jsonl"});
  REQUIRE(one["questions"].size() == 12);
  CHECK(one["questions"][11]["line"] == "licence.jsonl:13");
  CHECK(one["questions"][3]["id"] == "q3");
  CHECK(one["tasks"][0]["task"] == "licence");
  {
    const auto m =
        load_model(rig / "runs/run", {"--device.kind", "cpu", "--device.threads", "1"}, InferencePrecision::k16Bit);
    const Tokenizer t = Tokenizer::load(rig / "tok.model");
    for (size_t q = 0; q < questions.size(); ++q) {
      const auto sequences = encode_choices(questions[q], t, 48);
      for (size_t k = 0; k < 4; ++k) {
        INFO(questions[q].where << " choice " << k);
        CHECK(one["questions"][q]["tokens"][k] == sequences[k].scored);
        CHECK(one["questions"][q]["loglikelihood"][k].get<double>() ==
              Approx(by_prefixes(*m, sequences[k])).epsilon(1e-5));
      }
    }
  }
  for (const char* how : {"--pp 2 --launch.ranks threads", "--dp 3 --launch.ranks threads",
                          "--tp 2 --parallel.sequence_parallel true --launch.ranks threads",
                          "--tp 2 --pp 2 --dp 2 --launch.ranks threads", "--tp 2"}) {
    INFO(how);
    const Json other = rig.eval(how);
    for (size_t q = 0; q < questions.size(); ++q) {
      CHECK(other["questions"][q]["chosen"] == one["questions"][q]["chosen"]);
      for (size_t k = 0; k < 4; ++k)
        CHECK(other["questions"][q]["loglikelihood"][k].get<double>() ==
              Approx(one["questions"][q]["loglikelihood"][k].get<double>()).epsilon(1e-5));
    }
  }
}

TEST_CASE("choices are scored as transformers scores them on the exported model") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  const EvalFixture rig("--model.arch llama --model.kv_heads 2 --model.ffn 64");
  rig.eval("--tp 2 --dp 2 --launch.ranks threads");
  must("export --load runs/run --output hf", rig);
  const Outcome r =
      shell(python + " " + source_dir() + "/tests/readers/hf_choices.py hf out.json licence.jsonl", rig.path(), 300);
  INFO(r.out);
  CHECK(r.code == 0);
}

TEST_CASE("eval names what is wrong with a file of questions and in which line") {
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 1})";
  CHECK(error_of(good + "\n") == "");
  CHECK(parse_questions(good + "\n\n" + good, "x/tasks.v1.jsonl")[1].where == "x/tasks.v1.jsonl:3");
  CHECK(parse_questions(good, "x/tasks.v1.jsonl")[0].task == "tasks.v1");
  const auto expect = [&](const std::string& line, const std::string& text) {
    INFO(line.substr(0, 200));
    CHECK_THAT(error_of(good + "\n" + line), Catch::Contains("tasks.jsonl:2: " + text));
  };
  CHECK_THAT(error_of(good + "\n{"), Catch::Contains("tasks.jsonl:2:2: expected a key") && Catch::Contains("context"));
  CHECK_THAT(error_of(good + "\n{\"context\": \"\xff\"}"), Catch::Contains("tasks.jsonl:2:14: not UTF-8"));
  CHECK_THAT(error_of(good + "\n" + std::string(100000, '[')),
             Catch::Contains("tasks.jsonl:2:9: nested deeper than 8"));
  expect("[1]", "found array");
  expect(R"({"context": 3, "choices": ["b", "c"], "answer": 1})", "context: expected a text, found number");
  expect(R"({"choices": ["b", "c"], "answer": 1})", "context: missing");
  expect(R"({"context": "a", "answer": 1})", "choices: missing");
  expect(R"({"context": "a", "choices": "b", "answer": 1})", "choices: not a list");
  expect(R"({"context": "a", "choices": ["b"], "answer": 0})", "choices: 1, expected 2 to 1024");
  expect(R"({"context": "a", "choices": ["b", ""], "answer": 0})", "choices[1]: expected a text that is not empty");
  expect(R"({"context": "a", "choices": ["b", null], "answer": 0})", "choices[1]: expected a text");
  expect(R"({"context": "a", "choices": ["b", "c"]})", "answer: missing");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": 0.5})", "answer: not a whole number");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": 2})", "answer: 2, expected 0 to 1");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": -1})", "answer: -1, expected 0 to 1");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": 18446744073709551615})",
         "answer: 18446744073709551615, expected 0 to 1");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": 0, "label": 1})", "unknown key \"label\"");
  expect(R"({"context": "a", "choices": ["b", "c"], "answer": 0, "task": []})", "task: expected a text, found array");
  CHECK_THAT(error_of("\n \n"), Catch::Contains("tasks.jsonl: holds no question"));

  const EvalFixture rig("");
  const auto refused = [&](const std::string& args, const std::string& text) {
    const Outcome r = gpttrain("eval --load runs/run " + args, rig.path());
    INFO(r.out);
    CHECK(r.code == 2);
    CHECK(r.prints(text));
  };
  write_file(rig / "long.jsonl",
             Json{{"context", "a"}, {"choices", {"b", std::string(500, 'z')}}, {"answer", 0}}.dump());
  refused("--tasks long.jsonl", "long.jsonl:1: choices[1]: ");
  refused("--tasks long.jsonl", "tokens, but the model's context is 48");
  refused("--tasks missing.jsonl", "--tasks: missing.jsonl");
  refused("--tasks .", "is a folder, expected a file");
  refused("--tasks licence.jsonl --split test", "omit --split and --steps");
  refused("--tasks licence.jsonl --data.train tokens", "--data.train: has no effect on --tasks");
  refused("--tasks licence.jsonl --train.micro_batch 4", "--train.micro_batch: has no effect on --tasks");
  refused("--data.train mock", "mock data have no end; give --steps");  // it went on for ever
}

TEST_CASE("standard errors of ratios are those of the sample") {
  const double x[] = {1, 0, 1, 1}, n[] = {1, 1, 1, 1};
  CHECK(ratio_standard_error(x, n) == Approx(0.25));  // sqrt(0.75 / 3) / 2
  const double y[] = {4, 9, 0}, m[] = {2, 3, 0};      // ratio 2.6: residuals -1.2 and 1.2; the third group is empty
  CHECK(ratio_standard_error(y, m) == Approx(std::sqrt(2 * 2.88) / 5));
  CHECK(std::isnan(ratio_standard_error(std::span(x).first(1), std::span(n).first(1))));
}

TEST_CASE("eval reports bits per byte of the targets' text with standard errors") {
  const EvalFixture rig("");
  const auto eval = [&](const std::string& how) {
    must("eval --load runs/run --data.train tokens --data.split 90,10 --out out.json " + how, rig);
    return Json::parse(read_file(rig / "out.json"));
  };
  const Json j = eval("");
  const double nats = j["loss"].get<double>() * j["tokens"].get<double>();
  CHECK(j["bits_per_byte"].get<double>() == Approx(nats / std::log(2.) / j["bytes"].get<double>()));
  CHECK(j["perplexity"].get<double>() == Approx(std::exp(j["loss"].get<double>())));
  CHECK(j["perplexity_stderr"].get<double>() == Approx(j["perplexity"].get<double>() * j["loss_stderr"].get<double>()));
  CHECK(j["bytes"].get<double>() / j["tokens"].get<double>() > 1);
  CHECK(j["bytes"].get<double>() / j["tokens"].get<double>() < 5);
  for (const char* key : {"loss_stderr", "accuracy_stderr", "bits_per_byte_stderr"}) CHECK(j[key].get<double>() > 0);
  // The groups of standard errors are microbatches, so that they are the same on every layout with the same ones.
  for (const char* how : {"--dp 2 --launch.ranks threads", "--pp 2 --tp 2 --launch.ranks threads"}) {
    const Json other = eval(how);
    CHECK(other["tokens"] == j["tokens"]);
    CHECK(other["bytes"] == j["bytes"]);
    for (const char* key : {"loss", "loss_stderr", "accuracy_stderr", "bits_per_byte"})
      CHECK(other[key].get<double>() == Approx(j[key].get<double>()).epsilon(1e-5));
  }
  const Json masked = eval("--data.eod_mask_loss true");
  CHECK(masked["tokens"].get<int64_t>() < j["tokens"].get<int64_t>());
  CHECK(masked["bytes"] == j["bytes"]);  // the end of a document is not text
}
