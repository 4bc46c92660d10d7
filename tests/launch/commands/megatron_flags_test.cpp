// Every row of Megatron's flag table, and command lines like those of its examples.
#include "launch/tools/translate/megatron_flags.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/ops.h"
#include "launch/commands/cli.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config_alias.h"
#include "launch/config/config_optim.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

// Parses as `gpttrain bench`, which takes the flags of a run and needs no data.
Command parse(std::vector<std::string> words) {
  words.insert(words.begin(), "bench");
  return parse_command(words, RankEnv{});
}

std::string problems(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const Error& e) { return e.code() == Exit::kUsage ? e.what() : cat("wrong exit code: ", e.what()); }
  return "accepted";
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

// Values that a row accepts.
std::vector<std::string> sample(const MegatronFlag& f) {
  static const std::map<std::string_view, std::string> kWords{{"optimizer", "adam"},
                                                              {"lr-decay-style", "inverse-square-root"},
                                                              {"data-parallel-sharding-strategy", "optim_grads"},
                                                              {"fp8-format", "hybrid"},
                                                              {"adam-beta1", "0.8"},
                                                              {"adam-beta2", "0.99"},
                                                              {"lr-warmup-fraction", "0.01"},
                                                              {"recompute-method", "uniform"},
                                                              {"max-position-embeddings", "64"},
                                                              {"train-samples", "800"},
                                                              {"lr-decay-samples", "800"},
                                                              {"lr-warmup-samples", "80"},
                                                              {"position-embedding-type", "rope"},
                                                              {"normalization", "RMSNorm"},
                                                              {"norm-epsilon", "1e-6"},
                                                              {"layernorm-epsilon", "1e-6"},
                                                              {"rotary-base", "500000"},
                                                              {"rotary-seq-len-interpolation-factor", "2"},
                                                              {"rope-scaling-factor", "32"},
                                                              {"kv-channels", "32"},
                                                              {"window-size", "31,0"},
                                                              {"num-virtual-stages-per-pipeline-rank", "2"},
                                                              {"lr-wsd-decay-style", "linear"},
                                                              {"sgd-momentum", "0.5"},
                                                              {"muon-momentum", "0.5"},
                                                              {"muon-coefficient-type", "simple"},
                                                              {"muon-fp32-matmul-prec", "high"},
                                                              {"muon-scale-mode", "spectral"},
                                                              {"muon-extra-scale-factor", "1"},
                                                              {"lr-warmup-init", "1e-5"},
                                                              {"lr-wsd-decay-samples", "80"},
                                                              {"fp8-recipe", "tensorwise"},
                                                              {"main-grads-dtype", "fp32"},
                                                              {"decoupled-lr", "1e-3"},
                                                              {"decoupled-min-lr", "0"},
                                                              {"rampup-batch-size", "8"},
                                                              {"exit-interval", "100"},
                                                              {"vocab-size", "300"},
                                                              {"encoder-seq-length", "64"},
                                                              {"padded-vocab-size", "384"},
                                                              {"make-vocab-size-divisible-by", "128"},
                                                              {"tokenizer-type", "NullTokenizer"},
                                                              {"vocab-file", ""},
                                                              {"tokenizer-model", ""}};
  if (f.status == MegatronStatus::kAlways && !f.accepts.empty())
    return {std::string(f.accepts.substr(0, f.accepts.find('|')))};
  const auto it = kWords.find(f.name);
  const size_t values = f.values < 0 ? 2 : static_cast<size_t>(f.values);
  return std::vector<std::string>(values, it != kWords.end() ? it->second : "1");
}

// A Megatron command line with the other flags that a row requires.
std::vector<std::string> around(const MegatronFlag& f) {
  std::vector<std::string> words = words_of(
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 --seq-length 64 "
      "--vocab-size 300 --train-iters 100 --data-path corpus");
  if (f.name != "global-batch-size") words.insert(words.end(), {"--global-batch-size", "8"});
  if (f.name.find("virtual") != std::string_view::npos)
    words.insert(words.end(), {"--pipeline-model-parallel-size", "2"});
  if (f.name == "fp8-format" || f.name == "first-last-layers-bf16") words.push_back("--bf16");
  if (f.name == "first-last-layers-bf16") words.insert(words.end(), {"--fp8-format", "hybrid"});
  if (f.name.starts_with("decoupled-")) words.insert(words.end(), {"--lr", "1e-4"});
  if (f.name.substr(0, 7) == "lr-wsd-") words.insert(words.end(), {"--lr-decay-style", "WSD"});
  if (f.name == "no-load-optim") words.insert(words.end(), {"--load", source_dir() + "/tests/golden/ckpt-v1.0"});
  if (f.name.starts_with("muon-")) words.insert(words.end(), {"--optimizer", "muon"});
  if (f.name == "muon-extra-scale-factor")
    words.insert(words.end(), {"--muon-scale-mode", "shape_scaling"});
  else if (f.name.starts_with("muon-"))
    words.insert(words.end(), {"--muon-extra-scale-factor", "0.2"});
  if (f.name == "sgd-momentum") words.insert(words.end(), {"--optimizer", "sgd"});
  if (f.name == "no-position-embedding" || f.name.find("rotary-") == 0 || f.name.find("rope") != std::string_view::npos)
    words.insert(words.end(), {"--position-embedding-type", "rope"});
  if (f.name == "rope-scaling-factor") words.push_back("--use-rope-scaling");
  if (f.name == "qk-layernorm") words.insert(words.end(), {"--normalization", "RMSNorm"});
  if (f.name == "eod-mask-loss") words.insert(words.end(), {"--data.tokenizer", "tok.model"});
  return words;
}

}  // namespace

TEST_CASE("every row of Megatron's table has the stated effect, and its report names the flag") {
  std::set<std::string_view> names;
  for (const MegatronFlag& f : megatron_flags()) {
    INFO("--" << f.name);
    CHECK(names.insert(f.name).second);
    CHECK(find_alias(std::string(f.name)) == nullptr);  // a flag is in one table only
    std::vector<std::string> words = around(f);
    if (f.name == "vocab-file" || f.name == "tokenizer-model") continue;  // files: see below
    const Config before = parse(words).loaded.config;
    words.push_back(cat("--", f.name));
    for (const std::string& value : sample(f)) words.push_back(value);
    const std::string message = problems(words);
    if (f.status == MegatronStatus::kRefused) {
      CHECK_THAT(message, Contains(cat("--", f.name, ": is refused: ", f.why)));
      continue;
    }
    REQUIRE(message == "accepted");
    const LoadedConfig after = parse(words).loaded;
    CHECK_THAT(joined_notes(after), Contains(cat("megatron: --", f.name)));
    if (f.status != MegatronStatus::kTranslated) {
      CHECK(!f.why.empty());
      CHECK(config_json(after.config) == config_json(before));
      CHECK_THAT(joined_notes(after),
                 Contains(std::string(f.status == MegatronStatus::kAlways ? ": always the case: " : ": no effect: ") +
                          std::string(f.why)));
    }
    if (f.status == MegatronStatus::kAlways && !f.accepts.empty()) {
      words.back() = "another";
      CHECK_THAT(problems(words), Contains(cat("--", f.name, ": another is refused")));
    }
    if (f.values != 0) {  // without its values
      words.resize(words.size() - sample(f).size());
      CHECK_THAT(problems(words), Contains(cat("--", f.name, ": expected ", f.values < 0 ? 1 : f.values, " value")));
    }
  }
  CHECK(names.size() > 180);
}

TEST_CASE("Megatron's flags are translated to our keys") {
  const std::string base =
      "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 300 --micro-batch-size 2 "
      "--global-batch-size 16 --train-iters 200 --mock-data ";
  const auto value = [&](const std::string& flags, const char* key) {
    return value_of(parse(words_of(base + flags)).loaded.config, key);
  };
  CHECK(value("--bf16", "precision.amp") == "O2");
  CHECK(value("--bf16", "precision.dtype") == "bf16");
  CHECK(value("--fp16", "precision.dtype") == "fp16");
  CHECK(value("--fp16", "precision.loss_scale_profile") == "megatron");
  CHECK(value("--adam-beta1 0.8 --adam-beta2 0.95", "optim.betas") == "0.8,0.95");
  CHECK(value("--adam-beta2 0.95", "optim.betas") == "0.9,0.95");
  CHECK(value("--adam-beta1 0.8", "optim.betas") == "0.8,0.999");  // with Megatron's default for the other beta
  CHECK(value("--optimizer adam", "optim.type") == "adamw");
  CHECK(value("--lr-decay-style WSD --lr-wsd-decay-iters 20", "schedule.type") == "wsd");
  CHECK(value("--lr-decay-iters 150 --lr-warmup-fraction .1", "schedule.warmup_steps") == "15");
  CHECK(value("--lr-warmup-fraction .1", "schedule.warmup_steps") == "20");
  CHECK(value("--lr-decay-iters 150", "schedule.total_steps") == "150");
  CHECK(value("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", "parallel.vpp") == "2");
  CHECK(value("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", "parallel.schedule") ==
        "interleaved");
  CHECK(value("--save a/b --load a/b", "checkpoint.dir") == "a/b");
  CHECK(value("--save a/b --load a/b", "checkpoint.load_from").empty());
  const std::string other = source_dir() + "/tests/golden/ckpt-v1.0";
  CHECK(value("--save a/b --load " + other, "checkpoint.load_from") == other);
  CHECK(value("--distributed-timeout-minutes 5", "comm.stall_abort_s") == "300");
  CHECK(value("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
              "parallel.recompute_layers") == "0");
  CHECK(value("--recompute-granularity full --recompute-method block --recompute-num-layers 4",
              "parallel.recompute_layers") == "4");
  CHECK_THAT(problems(words_of(base + "--lr-warmup-init x")), Contains("--lr-warmup-init: expected a number"));
  CHECK_THROWS_WITH(parse_command(words_of("train " + base + "--load nowhere/run"), RankEnv{}),
                    Contains("--load: nowhere/run: does not exist") && !Contains("--checkpoint.load_from: "));
  CHECK_THAT(problems(words_of(base + "--num-layers-per-virtual-pipeline-stage 2")),
             Contains("--num-layers-per-virtual-pipeline-stage"));
  CHECK_THAT(problems(words_of(base + "--max-position-embeddings 32")), Contains("32 is less than --seq-length 64"));
  CHECK_THAT(problems(words_of(base + "--optimizer adafactor")),
             Contains("adafactor is refused: expected one of adam"));
  CHECK_THAT(problems(words_of(base + "--adam-beta3 1")),
             Contains("--adam-beta3: unknown flag; did you mean --adam-beta"));
}

TEST_CASE("Megatron's Muon is translated with its defaults where it means the same") {
  const std::string base =
      "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 300 --micro-batch-size 2 "
      "--global-batch-size 16 --train-iters 200 --mock-data ";
  const auto optim = [&](const std::string& flags) { return parse(words_of(base + flags)).loaded.config.optim; };
  for (const char* name : {"muon", "dist_muon"}) {
    const OptimConfig o = optim(cat("--muon-extra-scale-factor 0.2 --optimizer ", name));
    CHECK((o.type == "muon" && o.muon_scale == MuonScale::kAdamW && o.muon_coefficients == MuonCoefficients::kQuintic &&
           o.muon_iterations == 5));
    CHECK((o.momentum == 0.9f && !o.nesterov));
  }
  const OptimConfig o = optim(
      "--optimizer muon --muon-scale-mode shape_scaling --muon-momentum 0.95 --muon-nesterov --muon-num-ns-steps 7 "
      "--muon-coefficient-type polar_express --muon-fp32-matmul-prec high --muon-tp-mode distributed "
      "--muon-scalar-optimizer adam --muon-use-syrk");
  CHECK((o.muon_scale == MuonScale::kOriginal && o.muon_coefficients == MuonCoefficients::kPolarExpress &&
         o.muon_iterations == 7));
  CHECK((o.momentum == 0.95f && o.nesterov && o.muon_dtype == MuonDType::kFp32));
  CHECK(optim("--optimizer adam --muon-momentum 0.5").type == "adamw");
  for (const char* scale : {"", "--muon-scale-mode unit_rms_norm", "--muon-extra-scale-factor x",
                            "--muon-scale-mode shape_scaling --muon-extra-scale-factor 0.2"})
    CHECK_THAT(problems(words_of(base + "--optimizer muon " + scale)),
               Contains("--optimizer: --muon-scale-mode ") && Contains("expected spectral with 0.2"));
  const std::string muon = base + "--optimizer muon --muon-extra-scale-factor 0.2 ";
  CHECK_THAT(problems(words_of(muon + "--muon-tp-mode blockwise")), Contains("blockwise is refused"));
  CHECK_THAT(problems(words_of(muon + "--muon-scalar-optimizer lion")), Contains("lion is refused"));
  CHECK_THAT(problems(words_of(muon + "--muon-coefficient-type cans")),
             Contains("cans is refused: expected one of simple, quintic, polar_express"));
}

// Like Megatron-LM's example for GPT 345M, fp16, one node.
TEST_CASE("an example command line of Megatron starts unchanged, with one line on the translation of each flag") {
  const std::string example =
      "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
      "--attention-backend auto --micro-batch-size 4 --global-batch-size 64 --train-iters 500000 --lr 1.5e-4 "
      "--lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 "
      "--clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --fp16 "
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel "
      "--num-layers-per-virtual-pipeline-stage 3 --use-distributed-optimizer --overlap-grad-reduce "
      "--overlap-param-gather --use-flash-attn --recompute-granularity selective --distributed-backend nccl "
      "--transformer-impl transformer_engine --use-mcore-models "
      "--data-path gpt2_text_document --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-impl mmap "
      "--split 949,50,1 --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 "
      "--save checkpoints --load checkpoints --tensorboard-dir tb --tensorboard-queue-size 5 --log-throughput";
  const TempDir dir;
  write_file(dir / "gpt2_text_document.bin", "");
  write_file(dir / "gpt2_text_document.idx", "");
  std::vector<std::string> words = words_of(example);
  write_file(dir / "gpt2-vocab.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2})");
  for (std::string& word : words)
    if (word == "gpt2_text_document" || word == "gpt2-vocab.json") word = dir / word;
  const Command command = parse_command(words, RankEnv{});
  CHECK(command.run == run_train);
  const LoadedConfig& c = command.loaded;
  CHECK(c.config.model.layers == 24);
  CHECK(c.config.parallel.vpp == 2);
  CHECK(c.config.optim.lr == 1.5e-4);
  CHECK(c.config.optim.weight_decay == 0.01f);
  CHECK(c.config.schedule.warmup_steps == 3200);
  CHECK(c.config.schedule.total_steps == 320000);
  CHECK(c.config.zero.stage == 1);
  CHECK(c.config.precision.dtype == DType::kF16);
  CHECK(c.config.checkpoint.dir == "checkpoints");
  const std::string notes = joined_notes(c);
  for (const std::string& word : words_of(example)) {
    if (word.rfind("--", 0) != 0) continue;
    INFO(notes);
    CHECK_THAT(notes, Contains(word));
  }
  CHECK_THAT(notes, Contains("absent flags have Megatron's values: model.dropout 0.1, model.attn_dropout 0.1"));
  CHECK((c.config.model.dropout == 0.1 && c.config.model.attn_dropout == 0.1));
  CHECK(c.config.model.vocab == 256);  // 3 pieces, padded to 128 x tp
  CHECK_THAT(problems(words_of(example + " --rampup-batch-size 16 16 5859375")),
             Contains("--rampup-batch-size: is refused: the batch does not grow within a run"));
  // All rejected flags are reported at once.
  CHECK_THAT(problems(words_of(example + " --qk-layernorm --num-experts 8")),
             Contains("--qk-layernorm") && Contains("--num-experts"));
}

namespace {

const std::string kLine =
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 "
    "--global-batch-size 8 --train-iters 100 --mock-data ";

Config config_of(const std::string& flags) { return parse(words_of(kLine + flags)).loaded.config; }
int64_t vocab_of(const std::string& flags) { return config_of(flags).model.vocab; }

}  // namespace

TEST_CASE("a Megatron line has the vocabulary of its tokenizer, padded to a multiple of 128 x tp") {
  const TempDir dir;
  write_file(dir / "vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  write_file(dir / "merges.txt", "#version: 0.2\na b\n");
  write_file(dir / "text.txt", read_file(source_dir() + "/README.md"));
  REQUIRE(gpttrain("tokenizer train --input text.txt --vocab 400 --output tok.model", dir.path()).code == 0);
  const std::string model = " --tokenizer-model " + (dir / "tok.model"), type = " --tokenizer-type ",
                    pair = " --vocab-file " + (dir / "vocab.json") + " --merge-file " + (dir / "merges.txt");
  for (const char* name : {"SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"}) {
    INFO(name);
    CHECK(vocab_of(type + name + model) == 512);
    CHECK(vocab_of(type + name + model + " --tensor-model-parallel-size 4") == 512);
    CHECK(vocab_of(type + name + model + " --tp 4 --make-vocab-size-divisible-by 192") == 768);
    CHECK(vocab_of(type + name + model + " --make-vocab-size-divisible-by 1") == 400);
    CHECK(vocab_of(type + name + model + " --vocab-size 50257") == 512);  // the tokenizer decides
    CHECK(config_of(type + name + model).data.tokenizer == dir / "tok.model");
  }
  CHECK(vocab_of(model) == 512);
  CHECK(vocab_of(type + "SentencePieceTokenizer --legacy-tokenizer --make-vocab-size-divisible-by 1" + model) > 400);
  std::filesystem::create_directories(dir / "hf");
  std::filesystem::copy_file(dir / "tok.model", dir / "hf/tokenizer.model");
  CHECK(vocab_of(type + "HuggingFaceTokenizer --make-vocab-size-divisible-by 1 --tokenizer-model " + (dir / "hf")) ==
        400);
  CHECK(vocab_of(type + "GPT2BPETokenizer" + pair) == 128);
  CHECK(vocab_of(pair + " --make-vocab-size-divisible-by 1") == 4);
  CHECK(config_of(pair).data.tokenizer == dir / "vocab.json");
  CHECK(vocab_of(type + "NullTokenizer --vocab-size 256") == 384);  // with an end of document
  CHECK(vocab_of(type + "NullTokenizer --vocab-size 255") == 256);
  CHECK(vocab_of(type + "TikTokenizer --tokenizer-model t.json --vocab-size 1000") == 1024);
  CHECK(vocab_of(type + "TikTokenizer --tokenizer-model t.json") == 131072);
  CHECK(config_of(type + "TikTokenizer --tokenizer-model t.json").data.tokenizer.empty());
  CHECK(vocab_of("--vocab-size 300") == 384);
  CHECK(vocab_of("--vocab-size 300 --padded-vocab-size 300") == 300);
  CHECK(vocab_of("") == 50304);  // GPT-2's, of Megatron's default type
  CHECK(vocab_of(type + "BertWordPieceCase --model.vocab 999") == 999);
  CHECK(vocab_of(model + " --model.vocab 999") == 999);
  CHECK_THAT(
      joined_notes(parse(words_of(kLine + model)).loaded),
      Contains("--model.vocab 512: " + (dir / "tok.model") + " has 400 pieces, padded to a multiple of 128 x tp 1"));
  const auto refused = [&](const std::string& flags) { return problems(words_of(kLine + flags)); };
  CHECK_THAT(refused("--vocab-file none.json"), Contains("--vocab-file: none.json: no such file"));
  CHECK_THAT(refused(type + "Llama2Tokenizer --tokenizer-model none.model"),
             Contains("--tokenizer-model: none.model: no such file"));
  CHECK_THAT(refused(type + "HuggingFaceTokenizer --tokenizer-model org/name"), Contains("hf download"));
  CHECK_THAT(refused(type + "NullTokenizer"), Contains("--tokenizer-type: NullTokenizer needs --vocab-size"));
  CHECK_THAT(refused(type + "GPT2BPETokenizer"), Contains("needs --vocab-file and --merge-file"));
  CHECK_THAT(refused(type + "BertWordPieceCase"), Contains("give that of the model as --model.vocab N"));
  CHECK_THAT(refused("--vocab-size 300 --make-vocab-size-divisible-by 9223372036854775807"), Contains("more than"));
  // A few flags of Megatron do not make a line: each is one of our keys.
  const auto few = [&](const std::string& flags) {
    return parse(words_of("--data.train mock " + flags)).loaded.config;
  };
  CHECK(few("--vocab-size 300").model.vocab == 300);
  CHECK(few("--tokenizer-model" + model.substr(18)).model.vocab == 50257);
}

TEST_CASE("flags that a Megatron line leaves out have Megatron's values") {
  const Config c = config_of("--vocab-size 300");
  CHECK((c.model.dropout == 0.1 && c.model.attn_dropout == 0.1 && c.model.init_std == 0.02));
  CHECK((c.optim.type == "adamw" && c.optim.betas == std::vector<double>{0.9, 0.999} && c.optim.eps == 1e-8f));
  CHECK((c.optim.weight_decay == 0.01f && c.optim.grad_clip == 1 && c.train.seed == 1234));
  CHECK((c.schedule.type == "linear" && c.schedule.min_lr == 0));
  for (const int64_t t : {1, 2, 50, 100})  // Megatron's rate at its iteration t - 1 of 100
    CHECK(make_lr_schedule(lr_options(c))->at(t).lr == Approx(c.optim.lr * (1 - static_cast<double>(t - 1) / 100)));
  CHECK((c.model.arch == "gpt2" && c.model.activation == Activation::kGelu && c.model.norm_eps == 1e-5));
  CHECK(c.data.split == "969,30,1");
  CHECK(config_of("--optimizer sgd").optim.momentum == 0.9f);
  CHECK(config_of("--eval-interval 10").train.eval_steps == 100);
  CHECK(config_of("--lr-decay-style WSD --lr-wsd-decay-iters 5").schedule.decay_shape == DecayShape::kExponential);
  CHECK(config_of("--disable-bias-linear").model.activation == Activation::kGeluErf);
  CHECK(config_of("--no-bias-gelu-fusion").model.activation == Activation::kGeluErf);
  CHECK(config_of("--disable-bias-linear --openai-gelu").model.activation == Activation::kGelu);
  CHECK(config_of("--disable-bias-linear --squared-relu").model.activation == Activation::kRelu2);
  CHECK(config_of("--eod-mask-loss --data.tokenizer tok.model --model.vocab 9").train.loss_mean ==
        LossMean::kMicrobatch);
  // What the user sets stays, under either name.
  const Config set = config_of("--hidden-dropout 0 --optim.betas 0.9,0.95 --schedule.type cosine --weight-decay 0.1");
  CHECK((set.model.dropout == 0 && set.model.attn_dropout == 0.1 && set.optim.betas[1] == 0.95));
  CHECK((set.schedule.type == "cosine" && set.optim.weight_decay == 0.1f));
  // No whole line: our defaults.
  const Config few = parse(words_of("--data.train mock --num-layers 4 --hidden-size 48")).loaded.config;
  CHECK((few.model.dropout == 0 && few.optim.weight_decay == 0.1f && few.schedule.type == "cosine"));
}

TEST_CASE("the run of a Megatron line is named after the family that its flags describe") {
  const std::string llama =
      "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --vocab-size 300 ";
  const auto family = [&](const std::string& flags) {
    const Config c = config_of(flags);
    CHECK(c.log.name == c.model.arch + "-4x64");
    return c.model.arch;
  };
  CHECK(family("") == "gpt2");
  CHECK(family(llama) == "llama");
  CHECK(family(llama + "--window-size 7,0") == "mistral");
  CHECK(family(llama + "--add-qkv-bias") == "qwen2");
  CHECK(family(llama + "--qk-layernorm") == "qwen3");
  CHECK(family(llama + "--model.arch mistral") == "mistral");
  const Config c = config_of(llama);
  CHECK((c.model.norm_eps == 1e-5 && c.model.rope_theta == 10000 && c.model.tied && c.model.window == 0));
}

TEST_CASE("flags of real Megatron lines are translated, without effect by name, or refused with what to do") {
  const auto notes = [&](const std::string& flags) { return joined_notes(parse(words_of(kLine + flags)).loaded); };
  const auto refused = [&](const std::string& flags) { return problems(words_of(kLine + flags)); };
  CHECK(config_of("--eval-interval 10 --eval-iters 0").train.eval_every == 0);
  CHECK(config_of("--eval-interval 10 --eval-iters 7").train.eval_steps == 7);
  CHECK(config_of("--bf16 --main-grads-dtype bf16 --use-precision-aware-optimizer").precision.grad_dtype ==
        DType::kBF16);
  CHECK(config_of("--bf16 --fp8-format hybrid --fp8-recipe tensorwise").precision.fp8 == Fp8Recipe::kCurrent);
  CHECK_THAT(notes("--rampup-batch-size 8 8 100"), Contains("it starts at --global-batch-size"));
  CHECK_THAT(refused("--rampup-batch-size 4 4 100"), Contains("the batch does not grow within a run"));
  CHECK_THAT(notes("--test-data-path a b c"), Contains("--test-data-path a b c: no effect"));
  CHECK_THAT(refused("--exit-duration-in-mins 230"), Contains("timeout -s TERM"));
  CHECK_THAT(notes("--exit-interval 100"), Contains("--train-iters ends the run first"));
  CHECK_THAT(refused("--exit-interval 40"), Contains("--train-iters 40 with --lr-decay-iters 100"));
  // Embedding and head have the schedule times a factor.
  CHECK(config_of("--lr 1e-3 --decoupled-lr 5e-3").optim.group_texts ==
        std::vector<std::string>{"^(embed|head)\\.weight$ lr_scale=5"});
  CHECK(config_of("--lr 1e-3 --min-lr 1e-4 --decoupled-lr 5e-3 --decoupled-min-lr 5e-4").optim.group_texts.size() == 1);
  CHECK_THAT(refused("--lr 1e-3 --min-lr 1e-4 --decoupled-lr 5e-3"), Contains("--decoupled-min-lr 0.0005"));
  CHECK_THAT(refused("--decoupled-lr 5e-3"), Contains("expected both as numbers above 0"));
  // Weights alone of a folder that a run resumes from.
  const TempDir dir;
  const std::string both = " --save " + dir.path() + " --load " + dir.path();
  CHECK_THAT(notes("--no-load-optim" + both), Contains("--no-load-optim: no effect"));
  CHECK_THAT(notes("--finetune" + both), Contains("--finetune: no effect"));
  CHECK_THAT(notes("--no-load-optim"), Contains("--no-load-optim: no effect"));
  write_file(dir / "step", "");
  CHECK_THAT(refused("--no-load-optim" + both), Contains("resumes with its optimizer's state"));
  CHECK_THAT(refused("--finetune" + both), Contains("another --save"));
  const std::string native = "--finetune --checkpoint.load_from " + dir.path() + " --checkpoint.dir other";
  CHECK(config_of(native).checkpoint.load == std::vector<std::string>{"weights"});
  CHECK_THAT(notes("--use-checkpoint-args" + both), Contains("a checkpoint of another model is refused"));
  CHECK_THAT(problems(words_of("--data.train mock --use-checkpoint-args --load " + dir.path())),
             Contains("the model comes from the command line, which lacks --num-layers"));
}

// The model flags of Megatron-LM's scripts; the same architecture by our own keys.
TEST_CASE("a Megatron command line of each family that its flags can express is that family's model") {
  const std::string common =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
      "--vocab-size 300 --micro-batch-size 2 --global-batch-size 8 --train-iters 4 --mock-data ";
  const std::string gated =
      "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --no-position-embedding "
      "--attention-dropout 0.0 --hidden-dropout 0.0 --group-query-attention --num-query-groups 2 ";
  const std::string untied = "--untie-embeddings-and-output-weights --ffn-hidden-size 96 --norm-epsilon 1e-5 ";
  struct Line {
    std::string megatron, ours;
  };
  for (const Line& l : {
           Line{"--position-embedding-type learned_absolute --normalization LayerNorm", "--model.arch gpt2"},
           {gated + untied + "--rotary-base 500000 --rotary-percent 1.0 --use-rope-scaling --rope-scaling-factor 32",
            "--model.arch llama --model.dropout 0 --model.attn_dropout 0 --model.ffn 96 --model.norm_eps 1e-5 "
            "--model.rope_theta 500000 --model.rope_scaling "
            "llama3 "
            "--model.rope_factor 32 --model.rope_low_freq_factor 1 --model.rope_high_freq_factor 4 "
            "--model.rope_original_seq 8192 --model.tied false"},
           {gated + untied + "--window-size (7,0)",
            "--model.arch mistral --model.dropout 0 --model.attn_dropout 0 --model.ffn 96 --model.norm_eps 1e-5 "
            "--model.window 8 --model.tied false"},
           {gated + "--add-qkv-bias --rotary-base 1000000 --norm-epsilon 1e-6",
            "--model.arch qwen2 --model.dropout 0 --model.attn_dropout 0 --model.ffn 128 --model.rope_theta 1000000 "
            "--model.norm_eps 1e-6 --model.tied true"},
           {gated + "--qk-layernorm --kv-channels 32 --rotary-base 1000000 --norm-epsilon 1e-6",
            "--model.arch qwen3 --model.dropout 0 --model.attn_dropout 0 --model.ffn 128 --model.head_dim 32 "
            "--model.rope_theta 1000000 --model.norm_eps 1e-6 "
            "--model.tied true"},
       }) {
    INFO(l.megatron);
    const auto model = [](const std::string& text) {
      Config c = parse(words_of(text)).loaded.config;
      c.model.arch.clear();  // the family that gave the defaults, and how its Hugging Face folders part an adapter
      c.model.lora.separate_qkv = false;
      const std::string json = config_json(c);
      return json.substr(0, json.find("\"parallel\": {"));
    };
    const std::string grouped = l.ours == "--model.arch gpt2" ? "" : " --model.kv_heads 2";
    CHECK(model(common + l.megatron) == model(common + l.ours + grouped));
  }
  const auto refused = [&](const std::string& flags) { return problems(words_of(common + flags)); };
  CHECK_THAT(refused("--position-embedding-type relative"), Contains("expected one of learned_absolute, rope"));
  CHECK_THAT(refused("--no-position-embedding"), Contains("add --position-embedding-type rope"));
  CHECK_THAT(refused("--qk-layernorm"), Contains("add --normalization RMSNorm"));
  CHECK_THAT(refused("--window-size 7,7"), Contains("--window-size: expected W,0"));
  CHECK_THAT(refused("--rotary-percent 0.5"), Contains("0.5 is refused: all channels of a head are rotated"));
  CHECK_THAT(joined_notes(parse(words_of(common + "--lr-decay-samples 100")).loaded),
             Contains("--schedule.total_steps 12, rounded down"));
}
