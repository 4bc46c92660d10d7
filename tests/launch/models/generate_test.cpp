// Generation: cached decoding against the full forward, layouts, batches, prompts; evaluation against the trainer's.
#include <signal.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "launch/tools/generate/decoder.h"
#include "launch/tools/generate/generation_config.h"
#include "launch/tools/generate/stop_strings.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const std::string kTiny =
    "--model.vocab 400 --train.micro_batch 2 --train.global_batch 4 --optim.lr 5e-3 --device.kind cpu "
    "--device.threads 1 --schedule.type constant --log.name run ";

// A run on the text of a licence, with a tokenizer; each case selects the model.
struct GenerateFixture : TempDir {
  explicit GenerateFixture(const std::string& model, const std::string& more = "--train.steps 3") {
    write_file(*this / "text.txt", read_file("/usr/share/common-licenses/GPL-3"));
    must("tokenizer train --input text.txt --vocab 400 --output tok.model", *this);
    must("data prepare --input text.txt --split-docs blank-line --tokenizer tok.model --output tokens", *this);
    must(kTiny + "--data.split 90,10 --data.train tokens --data.tokenizer tok.model " + model + " " + more, *this);
  }
  std::string run() const { return *this / "runs/run"; }
  std::string out(const std::string& args) const { return must(args, *this).out; }
};

int32_t best(std::span<const float> z) {
  return static_cast<int32_t>(std::max_element(z.begin(), z.end()) - z.begin());
}

std::vector<int32_t> some_ids(int64_t n, int64_t vocab, uint32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((seed = seed * 1664525u + 1013904223u) % vocab));
  return ids;
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Greedy decoding of several sequences at once, with prompts of different lengths and past the end of the context.
// Every logit is bitwise identical to that of a forward pass over the whole window alone.
void expect_same_bits(const std::string& checkpoint, int64_t steps, int64_t shift) {
  const auto m = load_model(checkpoint, {"--device.kind", "cpu", "--device.threads", "2"}, InferencePrecision::k16Bit);
  Decoder together(*m, 3, true, shift), whole(*m, 1, false, shift);
  std::vector<Sequence> live(3);
  std::vector<Sequence*> all;
  const int64_t seq = m->config.model.seq, lengths[] = {1, seq / 2 + 1, seq - 2};
  for (size_t i = 0; i < 3; ++i) {
    live[i].slot = static_cast<int64_t>(2 - i);
    live[i].ids = some_ids(lengths[i], m->config.model.vocab, static_cast<uint32_t>(i + 1));
    all.push_back(&live[i]);
  }
  for (int64_t k = 0; k < steps; ++k) {
    together.run(all);
    for (size_t i = 0; i < 3; ++i) {
      Sequence alone{.slot = 0, .ids = live[i].ids};
      Sequence* one = &alone;
      whole.run({&one, 1});
      INFO("step " << k << ", sequence " << i << " of " << alone.ids.size());
      REQUIRE(same(together.logits(i), whole.logits(0)));
      // The window holds as much as fits, moved by whole shifts and never more than needed.
      const auto length = static_cast<int64_t>(live[i].ids.size());
      REQUIRE(length - live[i].begin <= seq);
      REQUIRE((live[i].begin == 0 || length - live[i].begin + shift > seq));
      live[i].ids.push_back(best(together.logits(i)));
    }
  }
  CHECK(static_cast<int64_t>(live[2].ids.size()) > seq + 4);
  CHECK(live[2].begin >= 4);  // beyond the context
  CHECK(live[2].begin % shift == 0);
  CHECK(live[0].cached == steps);  // the cache was used to the end
}

}  // namespace

TEST_CASE("cached decoding is bitwise identical to the full forward") {
  const std::string f32 = "--model.layers 2 --model.hidden 48 --model.heads 3 --model.seq 20";
  const std::string grouped = "--model.layers 3 --model.hidden 64 --model.heads 8 --model.kv_heads 2 --model.seq 70";
  const std::string llama = f32 + " --model.arch llama --model.ffn 64 --model.kv_heads 1 --model.head_dim 10";
  const std::string windows = grouped + " --model.arch mistral --model.window 9 --model.global_every 2";
  const std::string caps = " --model.attn_softcap 1.5 --model.logit_softcap 3 --model.attn_scalar 20";
  const std::string scaled = llama + " --model.rope_scaling llama3 --model.rope_factor 8 --model.rope_original_seq 16";
  const std::string qwen3 = f32 + " --model.arch qwen3 --model.ffn 64 --model.kv_heads 1 --model.head_dim 10";
  const std::string qwen2 = f32 + " --model.arch qwen2 --model.ffn 64 --model.kv_heads 1";
  const std::string olmo2 = f32 + " --model.arch olmo2 --model.ffn 64 --model.kv_heads 1";
  const std::string gemma = f32 + " --model.ffn 64 --model.kv_heads 1 --model.head_dim 10 --model.window 5 ";
  const std::string gemma2 = gemma + "--model.arch gemma2",
                    gemma3 = gemma + "--model.arch gemma3 --model.global_every 2";
  const std::string mixtral = f32 + " --model.arch mixtral --model.ffn 40 --model.head_dim 10 --model.moe_experts 5";
  const std::string olmoe = f32 + " --model.arch olmoe --model.ffn 24 --model.moe_experts 6 --model.moe_top_k 3";
  for (const std::string& model : {f32,
                                   mixtral,
                                   mixtral + " --amp O2",
                                   olmoe,
                                   grouped + " --amp O2",
                                   f32 + " --amp O1 --precision.dtype fp16",
                                   llama,
                                   llama + " --amp O2",
                                   scaled,
                                   windows,
                                   qwen2,
                                   windows + caps + " --amp O2",
                                   f32 + caps,
                                   qwen3,
                                   qwen3 + " --amp O2",
                                   olmo2,
                                   olmo2 + " --amp O2",
                                   gemma2,
                                   gemma2 + " --amp O2",
                                   gemma3,
                                   gemma3 + " --amp O2",
                                   gemma3 + " --amp O3 --precision.dtype fp16"}) {
    INFO(model);
    const GenerateFixture rig(model, "--train.steps 1");
    expect_same_bits(rig.run(), 12, 1);
    expect_same_bits(rig.run(), 12, 4);
  }
}

TEST_CASE("generate writes the same text with and without a cache, on every layout and in batches") {
  const GenerateFixture rig("--model.layers 2 --model.hidden 32 --model.heads 4 --model.seq 24", "--train.steps 30");
  const std::string generate = "generate --load runs/run --max-tokens 30 --temperature 0 ";
  const std::string text = rig.out(generate + "--prompt \"The GNU\"");
  CHECK(text.find("The GNU") == 0);
  CHECK(text.size() > 20);
  for (const char* how : {"--no-cache", "--pp 2 --launch.ranks threads", "--tp 2 --launch.ranks threads",
                          "--pp 2 --tp 2 --launch.ranks threads", "--pp 2", "--tokenizer tok.model"}) {
    INFO(how);
    CHECK(rig.out(generate + "--prompt \"The GNU\" " + how) == text);
  }
  // Standard input, a stop string, and a file of prompts.
  CHECK(shell("printf 'The GNU' | " + binary_dir() + "/gpttrain " + generate + "--prompt -", rig.path()).out == text);
  CHECK(shell("printf 'The GNU' | " + binary_dir() + "/gpttrain " + generate + "--prompt - --pp 2", rig.path()).out ==
        text);
  const std::string written = text.substr(7, text.size() - 8), stop = written.substr(written.size() / 2, 3);
  CHECK(rig.out(generate + "--prompt \"The GNU\" --stop xyzzy \"" + stop + "\"") ==
        "The GNU" + written.substr(0, written.find(stop)) + "\n");
  write_file(rig / "p.txt", "The GNU\nYou may convey\n\nThis License\n");
  write_file(rig / "p.jsonl", "{\"prompt\": \"The GNU\"}\n{\"text\": \"You may convey\"}\n");
  std::string expected;
  for (const char* p : {"The GNU", "You may convey", "", "This License"})
    expected += "== " + std::to_string(1 + std::count(expected.begin(), expected.end(), '=') / 2) + " of 4\n" +
                rig.out(generate + "--prompt \"" + p + "\"");
  for (const char* how :
       {"", "--batch 1", "--dp 2 --launch.ranks threads", "--dp 3 --launch.ranks threads --batch 1"}) {
    INFO(how);
    CHECK(rig.out(generate + "--prompt-file p.txt " + how) == expected);
  }
  const std::string samples =
      "generate --load runs/run --max-tokens 30 --prompt-file p.jsonl --num-samples 2 --json --temperature 1 --top-p "
      "0.9 ";
  const std::string lines = rig.out(samples);
  CHECK(lines == rig.out(samples + "--batch 3"));
  std::istringstream in(lines);
  std::set<std::string> texts;
  int64_t count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    CHECK(json["prompt_index"] == count / 2);
    CHECK(json["sample"] == count % 2);
    texts.insert(json["text"].get<std::string>());
  }
  CHECK(count == 4);
  CHECK(texts.size() == 4);
  const Outcome wrong = gpttrain("generate --load runs/rnu", rig.path());
  CHECK(wrong.code == 2);
  CHECK(wrong.prints("did you mean runs/run?"));
  write_file(rig / "bad.jsonl", "{\"prompt\": 3}\n");
  CHECK(gpttrain(generate + "--prompt-file bad.jsonl", rig.path()).prints("bad.jsonl:1: expected a JSON object"));
  write_file(rig / "packed.txt", "PK\3\4\1\2\3 and more");
  CHECK(gpttrain(generate + "--prompt-file packed.txt", rig.path())
            .prints("packed.txt: expected text, found a zip archive"));
}

TEST_CASE("each family writes the same greedy texts in one batch and one by one and without a cache and on layouts") {
  const std::string shape = "--model.layers 2 --model.hidden 32 --model.heads 4 --model.seq 24 ";
  const std::string gated = shape + "--model.ffn 64 --model.kv_heads 2 ";
  for (const std::string& model :
       {shape, gated + "--model.arch llama", gated + "--model.arch mistral --model.window 7",
        gated + "--model.arch qwen2", gated + "--model.arch qwen3 --model.head_dim 10", gated + "--model.arch olmo2",
        gated + "--model.arch mixtral --model.moe_experts 4 --model.head_dim 10",
        gated + "--model.arch dots1 --model.moe_experts 8 --model.moe_groups 4 --model.moe_top_groups 3 "
                "--model.moe_dense_blocks 0 --model.moe_bias_rate 0.01",
        gated + "--model.arch qwen2_moe --model.moe_experts 4",
        gated + "--model.arch gemma2 --model.window 7 --model.head_dim 10",
        gated + "--model.arch gemma3 --model.window 7 --model.global_every 2 --model.head_dim 10"}) {
    INFO(model);
    const GenerateFixture rig(model, "--train.steps 20");
    const std::string generate = "generate --load runs/run --max-tokens 30 --temperature 0 ";
    const std::vector<std::string> prompts{"The GNU", "You may convey verbatim copies of the Program's source code", "",
                                           "This License"};
    std::string file, expected;
    for (size_t k = 0; k < prompts.size(); ++k) {
      file += prompts[k] + "\n";
      const std::string text = rig.out(generate + "--prompt \"" + prompts[k] + "\"");
      CHECK(text.size() > prompts[k].size() + 20);
      expected += "== " + std::to_string(k + 1) + " of 4\n" + text;
    }
    write_file(rig / "p.txt", file);
    for (const char* how : {"--batch 4", "--batch 3", "--batch 4 --no-cache", "--batch 4 --tp 2 --launch.ranks threads",
                            "--batch 4 --pp 2 --launch.ranks threads", "--batch 2 --dp 2 --launch.ranks threads"}) {
      INFO(how);
      CHECK(rig.out(generate + "--prompt-file p.txt " + how) == expected);
    }
  }
}

TEST_CASE("Ctrl-C ends generate with the partial text and 130") {
  const GenerateFixture rig("--model.layers 2 --model.hidden 32 --model.heads 4 --model.seq 24", "--train.steps 1");
  const std::string out = rig / "out", generate = "generate --load runs/run --temperature 1 ";
  const auto interrupted = [&](const std::string& args, uintmax_t bytes) {
    std::filesystem::remove(out);
    const Outcome r = gpttrain(generate + args + " >out", rig.path(), 120, [&](int pid) {
      std::error_code ec;
      wait_until("text",
                 [&] { return std::filesystem::exists(out, ec) && std::filesystem::file_size(out, ec) > bytes; });
      kill(pid, SIGINT);
    });
    INFO(args << "\n" << r.out);
    CHECK(r.code == 128 + SIGINT);
    CHECK(r.prints("interrupted by SIG"));
    CHECK(left_behind(rig.path(), {}) == "");
    return read_file(out);
  };
  for (const char* layout : {"", " --pp 2 --launch.ranks threads", " --pp 2"}) {
    // Endless texts, because one of them may end at a document boundary by chance.
    const std::string text =
        interrupted("--prompt \"The GNU\" --num-samples 1000000 --max-tokens 1048576" + std::string(layout), 100);
    CHECK(text.find("The GNU") != std::string::npos);
    CHECK(text.size() > 100);
    CHECK(text.back() == '\n');
  }
  std::istringstream in(interrupted("--json --num-samples 1000000 --batch 2 --max-tokens 400", 1));
  std::vector<std::string> ended;
  for (std::string line; std::getline(in, line);)
    ended.push_back(nlohmann::json::parse(line)["ended"].get<std::string>());
  REQUIRE(ended.size() >= 2);
  CHECK(ended.front() != "interrupted");
  CHECK(std::count(ended.begin(), ended.end(), "interrupted") <= 2);
  CHECK(ended.back() == "interrupted");
}

TEST_CASE("generate and eval hold weights only: no gradients, FP32 master weights or optimizer state") {
  const GenerateFixture rig("--model.layers 2 --model.hidden 48 --model.heads 3 --model.seq 20 --amp O2",
                            "--train.steps 1");
  for (const InferencePrecision p : {InferencePrecision::kAsTrained, InferencePrecision::k16Bit}) {
    const auto m = load_model(rig.run(), {"--device.kind", "cpu"}, p);
    const MemoryReport r = m->engine->measured_plan().memory;
    CHECK(r.weights > 0);
    CHECK(r.gradients == 0);
    CHECK(r.optimizer == 0);
  }
}

TEST_CASE("eval equals training's own evaluation, on every layout") {
  const GenerateFixture rig("--model.layers 2 --model.hidden 32 --model.heads 4 --model.seq 24 --data.eod_mask_loss",
                            "--train.steps 8 --train.eval_every 8 --train.eval_steps 3");
  const std::string log = read_file(rig / "runs/run/log.jsonl");
  const size_t at = log.rfind("\"type\": \"eval\"");
  REQUIRE(at != std::string::npos);
  const auto record = nlohmann::json::parse(log.substr(log.rfind('{', at), log.find('\n', at) - log.rfind('{', at)));
  char loss[32];
  std::snprintf(loss, sizeof loss, "loss %.6f", record["loss"].get<double>());
  const std::string eval = "eval --load runs/run --data.train tokens --data.split 90,10 --data.eod_mask_loss ";
  for (const char* how : {"", "--pp 2 --launch.ranks threads", "--dp 2 --launch.ranks threads",
                          "--dp 3 --launch.ranks threads", "--pp 2"}) {
    const std::string out = rig.out(eval + "--steps 3 " + how);
    INFO(how << "\n" << out);
    CHECK(out.find(loss) != std::string::npos);
  }
  const GenerateFixture bf16(
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.seq 24 --amp O2",
      "--train.steps 4 --train.eval_every 4 --train.eval_steps 3");  // its evaluation allocates no masters
  std::snprintf(loss, sizeof loss, "loss %.6f", logged(bf16 / "runs/run", "loss", "eval").back());
  CHECK(bf16.out("eval --load runs/run --data.train tokens --data.split 90,10 --steps 3").find(loss) !=
        std::string::npos);
  const std::string whole = rig.out(eval), tp = rig.out(eval + "--tp 2 --launch.ranks threads");
  CHECK(whole.find("the whole split") != std::string::npos);
  CHECK(whole.find("perplexity") != std::string::npos);
  const auto number = [](const std::string& s) { return std::stod(s.substr(s.find("\nloss ") + 6)); };
  CHECK(number(tp) == Approx(number(whole)).epsilon(1e-5));
}

TEST_CASE("a folder's generation_config.json sets the options of generate that are not given, and the rest is named") {
  const auto taken = [](const std::string& text, const std::vector<std::string>& words = {}) {
    GenerateArgs args;
    const FolderGeneration f = take_generation_config(text, words, &args);
    return std::pair(args, f);
  };
  const std::string all = R"({"do_sample": true, "temperature": 0.25, "top_k": 20, "top_p": 0.5, "max_new_tokens": 9,
    "stop_strings": "x", "eos_token_id": [3, 4], "repetition_penalty": 1.1, "min_p": 0.05, "num_beams": 1,
    "length_penalty": 1.0, "min_length": 1, "bad_words_ids": null, "pad_token_id": 5, "max_length": 4096,
    "use_cache": true, "transformers_version": "4.53.3", "_from_model_config": true})";
  const auto [args, f] = taken(all);
  CHECK((args.temperature == 0.25 && args.top_k == 20 && args.top_p == 0.5 && args.max_tokens == 9));
  CHECK(args.stop == std::vector<std::string>{"x"});
  CHECK(f.ends == std::vector<int64_t>{3, 4});
  CHECK(f.note ==
        "by generation_config.json of the model's folder: temperature 0.25, top-k 20, top-p 0.5, max-tokens 9, stop "
        "[\"x\"]; not applied: min_length 1, min_p 0.05, repetition_penalty 1.1");
  const auto [own, note] = taken(all, {"generate", "--temperature=0", "--top-k", "7", "--stop", "y"});
  CHECK((own.temperature == GenerateArgs().temperature && own.top_k == 0 && own.top_p == 0.5 && own.stop.empty()));
  CHECK(note.note.find("temperature") == std::string::npos);

  CHECK(taken(R"({"do_sample": false, "temperature": 0.6})").first.temperature == 0);
  // transformers ignores it.
  CHECK(taken(R"({"temperature": 0.6, "top_p": 0.9})").first.temperature == GenerateArgs().temperature);
  CHECK(taken(R"({"temperature": 0.6, "top_p": 0.9})").second.note.empty());
  for (const char* broken : {"", "{", "[1]", "{}"}) CHECK(taken(broken).second.note.empty());
  const auto [same, refused] = taken(R"({"do_sample": true, "temperature": "hot", "top_p": 0, "max_new_tokens": 1e9})");
  CHECK((same.temperature == GenerateArgs().temperature && same.top_p == 1));
  CHECK(refused.note.find("no option; not applied: temperature \"hot\", top_p 0, max_new_tokens 1") !=
        std::string::npos);
}

TEST_CASE("generate decodes as the generation_config.json of an imported folder, and reports it") {
  TempDir dir;
  write_file(dir / "text.txt", read_file("/usr/share/common-licenses/GPL-3"));
  must("tokenizer train --input text.txt --vocab 400 --output tok.model", dir);
  must(kTiny +
           "--model.layers 1 --model.hidden 16 --model.heads 2 --model.seq 16 --train.steps 1 --data.train mock "
           "--data.tokenizer tok.model",
       dir);
  must("export --load runs/run --output hf", dir);
  write_file(dir / "hf/generation_config.json",
             R"({"do_sample": false, "max_new_tokens": 5, "no_repeat_ngram_size": 2})");
  must("import --from hf --output in", dir);
  const std::string generate = "generate --load in --prompt a --device.kind cpu 2>err.txt ";
  const std::string text = must(generate, dir).out;
  CHECK(read_file(dir / "err.txt") ==
        "note: by generation_config.json of the model's folder: temperature 0.0, max-tokens 5; not applied: "
        "no_repeat_ngram_size 2\n");
  CHECK(must(generate + "--temperature 0 --max-tokens 5", dir).out == text);
  CHECK(must(generate + "--max-tokens 9", dir).out.size() > text.size());
}

TEST_CASE("stop strings are found across tokens, and a possible beginning of one is held back") {
  StopStrings s({"END", "\n\n"});
  CHECK(s.push("one E") == "one ");
  CHECK(s.push("N") == "");
  CHECK(s.push("X\n") == "ENX");
  CHECK(s.push("two\nEN") == "\ntwo\n");
  CHECK_FALSE(s.found());
  CHECK(s.push("D more") == "");
  CHECK(s.found());
  CHECK(s.push("later") == "");
  CHECK(s.finish() == "");
  StopStrings open({"END"});
  CHECK(open.push("a EN") == "a ");
  CHECK(open.finish() == "EN");
}
