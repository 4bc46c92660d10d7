// Every row of Megatron's flag table, and command lines like those of its examples.
#include "launch/config/translate/megatron_flags.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/commands/cli.h"
#include "launch/commands/subcommands.h"
#include "launch/config/config_alias.h"
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
                                                              {"lr-warmup-init", "1e-5"}};
  if (f.status == MegatronStatus::kAlways && !f.accepts.empty())
    return {std::string(f.accepts.substr(0, f.accepts.find('|')))};
  const auto it = kWords.find(f.name);
  return std::vector<std::string>(static_cast<size_t>(f.values), it != kWords.end() ? it->second : "1");
}

// A Megatron command line with the other flags that a row requires.
std::vector<std::string> around(const MegatronFlag& f) {
  std::vector<std::string> words = words_of(
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 --seq-length 64 "
      "--vocab-size 300 --train-iters 100 --data-path corpus");
  if (f.name != "global-batch-size") words.insert(words.end(), {"--global-batch-size", "8"});
  if (f.name.find("virtual") != std::string_view::npos)
    words.insert(words.end(), {"--pipeline-model-parallel-size", "2"});
  if (f.name == "fp8-format") words.push_back("--bf16");
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
    if (f.values > 0) {  // without its value
      words.resize(words.size() - static_cast<size_t>(f.values));
      CHECK_THAT(problems(words), Contains(cat("--", f.name, ": expected ", f.values, " value")));
    }
  }
  CHECK(names.size() > 90);
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
  for (std::string& word : words)
    if (word == "gpt2_text_document") word = dir / word;
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
  CHECK_THAT(notes, Contains("unset flags whose default differs: --hidden-dropout 0.1 (here 0), "
                             "--attention-dropout 0.1 (here 0); set them"));
  CHECK_THAT(problems(words_of(example + " --rampup-batch-size 16 16 5859375")),
             Contains("--rampup-batch-size: is refused: the batch does not grow within a run"));
  // All rejected flags are reported at once.
  CHECK_THAT(problems(words_of(example + " --qk-layernorm --num-experts 8")),
             Contains("--qk-layernorm") && Contains("--num-experts"));
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
            "--model.arch llama --model.ffn 96 --model.norm_eps 1e-5 --model.rope_theta 500000 --model.rope_scaling "
            "llama3 "
            "--model.rope_factor 32 --model.rope_low_freq_factor 1 --model.rope_high_freq_factor 4 "
            "--model.rope_original_seq 8192 --model.tied false"},
           {gated + untied + "--window-size (7,0)",
            "--model.arch mistral --model.ffn 96 --model.norm_eps 1e-5 --model.window 8 --model.tied false"},
           {gated + "--add-qkv-bias --rotary-base 1000000 --norm-epsilon 1e-6",
            "--model.arch qwen2 --model.ffn 128 --model.rope_theta 1000000 --model.norm_eps 1e-6 --model.tied true"},
           {gated + "--qk-layernorm --kv-channels 32 --rotary-base 1000000 --norm-epsilon 1e-6",
            "--model.arch qwen3 --model.ffn 128 --model.head_dim 32 --model.rope_theta 1000000 --model.norm_eps 1e-6 "
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
