// --deepspeed_config: translation of realistic files, precedence, and hostile files.
#include "kernels/core/hash/base64.h"
#include "launch/tools/translate/deepspeed.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::vector<std::string> kBatch{"--train.global_batch", "8"};

// A pipeline user's file: LAMB, OneCycle, ZeRO 1, curves.
const char* const kPipelineFile = R"({
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 10,
  "optimizer": {
    "type": "Lamb",
    "params": { "lr": 3e-3, "weight_decay": 0.01, "max_coeff": 5, "min_coeff": 0.05 }
  },
  "scheduler": {
    "type": "OneCycle",
    "params": {
      "cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3,
      "cycle_first_step_size": 4, "cycle_second_step_size": 6,
      "decay_lr_rate": 0.1, "decay_step_size": 2,
      "cycle_min_mom": 0.85, "cycle_max_mom": 0.99, "decay_mom_rate": 0.0
    }
  },
  "gradient_clipping": 0.5,
  "zero_optimization": { "stage": 1, "reduce_bucket_size": 5e8, "overlap_comm": false },
  "pipeline": { "stages": 2, "partition": "uniform", "activation_checkpoint_interval": 1, "seed_layers": true },
  "tensorboard": { "enabled": true, "output_path": "curves/", "job_name": "pipe" },
})";

}  // namespace

TEST_CASE("a pipeline user's file with LAMB and OneCycle is translated to our keys") {
  const Config c = load_deepspeed({.json = kPipelineFile, .flags = {"--dp", "2"}}).config;
  CHECK(c.train.global_batch == 64);
  CHECK(c.train.micro_batch == 4);
  CHECK(c.train.grad_accum == 8);
  CHECK(c.log.every == 10);
  CHECK(c.optim.type == "lamb");
  CHECK(c.optim.lamb_variant == LambVariant::kDeepSpeed);
  CHECK(c.optim.lr == 1e-3);  // from the schedule
  CHECK(c.optim.eps == 1e-8f);
  CHECK(c.optim.weight_decay == 0.01f);
  CHECK(c.optim.lamb_max_coeff == 5);
  CHECK(c.optim.grad_clip == 0.5);
  CHECK(c.schedule.type == "one_cycle");
  CHECK(c.schedule.ds_exact);
  CHECK(c.schedule.min_lr == 1e-4);
  CHECK(c.schedule.first_steps == 4);
  CHECK(c.schedule.second_steps == 6);
  CHECK(c.schedule.max_momentum == 0.99);
  CHECK(c.zero.stage == 1);
  CHECK(c.zero.bucket_bytes == 2'000'000'000);
  CHECK_FALSE(c.zero.overlap);
  CHECK(c.parallel.pp == 2);
  CHECK(c.parallel.partition == "uniform");
  CHECK(c.parallel.recompute == Recompute::kFull);
  CHECK(c.log.samples_tensorboard == "curves/pipe");
  CHECK(c.log.samples_csv.empty());
}

TEST_CASE("the file overrides --config, flags override the file, and both are reported") {
  TempDir dir;
  write_file(dir / "c.json", R"({"train": {"micro_batch": 2, "grad_accum": 7}, "zero": {"stage": 3},
      "optim": {"type": "sgd", "momentum": 0.9, "lr": 0.5}, "schedule": {"type": "wsd", "decay_steps": 7}})");
  const LoadedConfig l = load_deepspeed(
      {.json = "{\"train_batch_size\": 8,\n\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.01}},\n"
               "\"scheduler\": {\"type\": \"WarmupLR\"}, \"zero_optimization\": {\"stage\": 2}}",
       .flags = {"--zero", "1"},
       .file = dir / "c.json"});
  CHECK(l.config.zero.stage == 1);
  CHECK(l.config.optim.type == "adamw");
  CHECK(l.config.optim.momentum == 0);
  CHECK(l.config.optim.weight_decay == 0);
  CHECK(l.config.train.micro_batch == 8);
  CHECK(l.config.schedule.warmup_steps == 1000);
  CHECK(l.config.schedule.decay_steps == 0);
  CHECK(l.origin.at("optim.lr") == "<base64>:2:48: optimizer.params.lr ->");
  CHECK_THAT(
      joined_notes(l),
      Contains("deepspeed: <base64>:3:67: zero_optimization.stage -> zero.stage 2 overrides 3 of " + dir / "c.json") &&
          Contains("deepspeed: --zero 1 overrides <base64>:3:67: zero_optimization.stage -> zero.stage 2") &&
          Contains("replaces optim.type, optim.momentum, optim.lr, schedule.type, "
                   "schedule.decay_steps, train.micro_batch, train.grad_accum of --config") &&
          Contains("optimizer.type Adam -> optim.type adamw (adam_w_mode defaults to true)") &&
          Contains("gradient_clipping is absent: 1, as in DeepSpeed 0.19.6; 0.16.5 does not clip") &&
          Contains("steps 1 and 2 run at schedule.start_lr 0; schedule.ds_exact false removes this"));
  CHECK_FALSE(load_deepspeed({.json = R"({"scheduler": {"type": "WarmupLR"}})",
                              .flags = {"--train.global_batch", "8", "--schedule.ds_exact", "false"}})
                  .config.schedule.ds_exact);
}

TEST_CASE("missing keys take DeepSpeed's default where their block is given, and our own config elsewhere") {
  const LoadedConfig plain = load_deepspeed({.json = R"({"train_batch_size": 8})"});
  CHECK(plain.config.schedule.type == "constant");
  CHECK(plain.config.optim.weight_decay == 0.1f);  // no optimizer block: our default
  CHECK_THAT(joined_notes(plain), Contains("no scheduler: the learning rate is constant"));
  CHECK(load_deepspeed({.json = R"({"train_batch_size": 8})", .flags = {"--schedule.type", "cosine"}})
            .config.schedule.type == "cosine");
  const auto stage = [](const char* zero) {
    return load_deepspeed({.json = cat("{\"zero_optimization\": ", zero, "}"), .flags = kBatch}).config.zero.stage;
  };
  CHECK(stage("true") == 1);
  CHECK(stage("false") == 0);
  CHECK(stage("{}") == 0);
  CHECK(stage("{\"stage\": 3}") == 3);
}

TEST_CASE("the optimizers of DeepSpeed by name, in any case") {
  const struct {
    const char *optimizer, *type;
  } cases[] = {{R"({"type": "adam"})", "adamw"},
               {R"({"type": "ADAMW"})", "adamw"},
               {R"({"type": "Adam", "params": {"adam_w_mode": false}})", "adam"},
               {R"({"type": "AdamW", "params": {"adam_w_mode": false}})", "adamw"},
               {R"({"type": "Lamb"})", "lamb"},
               {R"({"type": "SGD", "params": {"momentum": 0.9, "nesterov": true}})", "sgd"},
               {R"({"type": "Lion"})", "lion"},
               {R"({"type": "adagrad", "params": {"lr": 1e-3}})", "adagrad"},
               {R"({"type": "Muon", "params": {"lr": 1e-3}})", "muon"}};
  for (const auto& c : cases) {
    INFO(c.optimizer);
    const Config out =
        load_deepspeed({.json = cat("{\"gradient_clipping\": 0, \"optimizer\": ", c.optimizer, "}"), .flags = kBatch})
            .config;
    CHECK(out.optim.type == c.type);
    CHECK(out.optim.lr == 1e-3);
    CHECK(out.optim.weight_decay == 0);
  }
  for (const char* missing : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb", "MuAdam", "MuAdamW", "MuSGD"})
    CHECK_THAT(deepspeed_problems({.json = cat("{\"optimizer\": {\"type\": \"", missing, "\"}}"), .flags = kBatch}),
               Contains(cat("optimizer.type: ", missing, " is not built yet")) && Contains("the nearest that is: "));
}

TEST_CASE("DeepSpeed's Muon has its scale and defaults and two learning rates without clipping") {
  const auto file = [](const char* params, const char* rest = "") {
    return DsInput{
        .json = cat(R"({"gradient_clipping": 0, "optimizer": {"type": "Muon", "params": )", params, "}", rest, "}"),
        .flags = kBatch};
  };
  const auto rates = [&](const char* params, const char* rest = "") {
    const OptimConfig o = load_deepspeed(file(params, rest)).config.optim;
    return std::pair{o.lr, o.lr * o.muon_lr_scale};  // AdamW's, Muon's
  };
  const OptimConfig o = load_deepspeed(file(R"({"lr": 0.01, "ns_method": "standard"})")).config.optim;
  CHECK((o.muon_scale == MuonScale::kOriginal && o.momentum == 0.95f && o.nesterov && o.muon_iterations == 5));
  CHECK((o.betas == std::vector{0.9, 0.95} && o.eps == 1e-10f && o.weight_decay == 0 && o.grad_clip == 0));
  CHECK(rates(R"({"lr": 0.01})") == std::pair{0.01, 0.01});
  CHECK(rates(R"({"muon_lr": 0.02, "adam_lr": 0.0005})") == std::pair{0.0005, 0.02});
  CHECK(rates(R"({"lr": 0.001, "muon_lr": 0.02})") == std::pair{0.001, 0.02});
  CHECK(rates(R"({"lr": 0.02, "adam_lr": 0.0005})") == std::pair{0.0005, 0.02});
  CHECK(rates("{}").first == 3e-4);
  CHECK(rates("{}").second == Approx(0.02));
  const char* warmup = R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.004}})";
  CHECK(rates(R"({"muon_lr": 0.02, "adam_lr": 0.0005})", warmup) == std::pair{0.004, 0.004});
  CHECK_THAT(joined_notes(load_deepspeed(file(R"({"muon_lr": 0.02})", warmup))), Contains("muon_lr 0.02: no effect"));
  CHECK_THAT(joined_notes(load_deepspeed(file(R"({"lr": 0.01, "ns_method": "gram"})"))),
             Contains("ns_method") && Contains("the same polynomial") && Contains("AdamW the rest"));
  CHECK_THAT(deepspeed_problems(file(R"({"lr": "auto", "muon_lr": 0.02})")), Contains("give lr a number"));
  for (const char* clipping : {R"("gradient_clipping": 1.0, )", R"("gradient_clipping": "auto", )", ""})
    CHECK_THAT(deepspeed_problems({.json = cat("{", clipping, R"("optimizer": {"type": "Muon"}})"), .flags = kBatch}),
               Contains("DeepSpeed clips Muon's orthogonalized updates") && Contains("set gradient_clipping 0"));
}

TEST_CASE("precision blocks select a level, a type and a scaler, and two of them exclude each other") {
  struct Case {
    const char *json, *key, *value;
  };
  // Uses the translation below the checker, which rejects unimplemented levels by the key that requested them.
  const auto settings = [](const char* json) {
    Problems problems;
    DsConfig out = translate_deepspeed(read_deepspeed({"ds.json", json}, false, problems), problems);
    CHECK(problems.list().empty());
    return out.settings;
  };
  const Case cases[] = {
      {R"({"fp16": {"enabled": true}})", "precision.amp", "O2"},
      {R"({"fp16": {"enabled": true}})", "precision.dtype", "fp16"},
      {R"({"fp16": {"enabled": true}})", "precision.loss_scale_max", "1e38"},
      {R"({"fp16": {"enabled": true, "initial_scale_power": 15}})", "precision.loss_scale_init", "32768"},
      {R"({"fp16": {"enabled": true, "loss_scale_window": 500}})", "precision.loss_scale_window", "500"},
      {R"({"fp16": {"enabled": true, "loss_scale": 128}})", "precision.loss_scale", "128"},
      {R"({"bf16": {"enabled": true}})", "precision.dtype", "bf16"},
      {R"({"bfloat16": {"enabled": true}})", "precision.amp", "O2"},
      {R"({"amp": {"enabled": true}})", "precision.amp", "O1"},
      {R"({"amp": {"enabled": true}})", "precision.loss_scale_profile", "apex"},
      {R"({"amp": {"enabled": true, "opt_level": "O2", "loss_scale": "128.0"}})", "precision.loss_scale", "128"},
      {R"({"amp": {"enabled": true, "opt_level": "O2", "master_weights": "True"}})", "precision.master_weights",
       "true"},
      {R"({"amp": {"enabled": true, "opt_level": "O3", "keep_batchnorm_fp32": true}})", "precision.keep_norm_fp32",
       "true"},
      {R"({"torch_autocast": {"enabled": true, "dtype": "float16"}})", "precision.dtype", "fp16"},
      {R"({"communication_data_type": "bfp16"})", "precision.reduce_dtype", "bf16"},
  };
  for (const Case& c : cases) {
    INFO(c.json << " " << c.key);
    std::string found;
    for (const ForeignSetting& s : settings(c.json))
      if (s.key == c.key) found = s.words.at(0);
    CHECK(found == c.value);
  }
  CHECK_THAT(deepspeed_problems({.json = R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})", .flags = kBatch}),
             Contains("bf16.enabled: fp16 and bf16 are both enabled\n  choose one of them"));
  CHECK_THAT(deepspeed_problems({.json = R"({"amp": {"enabled": true, "master_weights": true}})", .flags = kBatch}),
             Contains("amp.master_weights: not allowed with opt_level O1\n"
                      "  O1 keeps FP32 parameters, which are the master weights"));
  CHECK_THAT(deepspeed_problems({.json = R"({"amp": {"enabled": true, "num_losses": 2}})", .flags = kBatch}),
             Contains("amp.num_losses: 2: there is one loss"));
  CHECK_THAT(deepspeed_problems({.json = R"({"bf16": {"enabled": true}, "bfloat16": {}})", .flags = kBatch}),
             Contains("given twice, under two spellings"));
  CHECK_THAT(
      deepspeed_problems({.json = R"({"fp16": {"enabled": false}, "amp": {"enabled": false}})", .flags = kBatch}),
      Contains("accepted"));
}

TEST_CASE("the Hugging Face style file with auto everywhere uses the native values") {
  const char* json = R"({
    "bf16": { "enabled": "auto" }, "fp16": { "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
              "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1 },
    "optimizer": { "type": "AdamW", "params": { "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto" } },
    "scheduler": { "type": "WarmupLR", "params": { "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto" } },
    "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "cpu", "pin_memory": true },
      "offload_param": { "device": "cpu", "pin_memory": true }, "overlap_comm": true, "contiguous_gradients": true,
      "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
      "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
      "stage3_gather_16bit_weights_on_model_save": true },
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false })";
  TempDir dir;
  write_file(dir / "c.json", R"({"optim": {"lr": 3e-5, "betas": [0.9, 0.98]}, "schedule": {"warmup_steps": 17},
                                 "train": {"micro_batch": 2, "grad_accum": 4}})");
  const Config c = load_deepspeed({.json = json, .file = dir / "c.json"}).config;
  CHECK(c.optim.lr == 3e-5);
  CHECK(c.optim.betas[1] == 0.98);
  CHECK(c.schedule.type == "warmup");
  CHECK(c.train.global_batch == 8);
  CHECK(c.zero.stage == 3);
  CHECK(c.zero.offload == Offload::kParameters);
  CHECK(c.log.every == 2000);
  CHECK(c.schedule.warmup_steps == 17);
}

TEST_CASE("every shipped DeepSpeed file loads") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs/deepspeed")) {
    INFO(entry.path());
    CHECK_NOTHROW(load_config({.file = source_dir() + "/configs/tiny.json",
                               .flags = {"--tp", "2", "--dp", "2"},
                               .foreign = deepspeed_reader(entry.path().string())}));
    ++count;
  }
  CHECK(count >= 1);
}

TEST_CASE("sizes in elements are converted to bytes and whole blocks") {
  const LoadedConfig c =
      load_deepspeed({.json = R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 2.5e7,
                   "stage3_param_persistence_threshold": 12345, "allgather_bucket_size": 1000}})",
                      .flags = {"--train.global_batch", "8"}});
  CHECK(c.config.zero.bucket_bytes == 4000);
  CHECK(c.config.zero.persist_numel == 12345);
  CHECK(c.config.zero.prefetch == 4);  // 25,000,000 / 7,087,872 per block of width 768
  CHECK_THAT(joined_notes(c),
             Contains("stage3_prefetch_bucket_size 25000000 -> zero.prefetch 4 (blocks of 7087872 elements)"));
}

TEST_CASE("schedulers: required parameters, unknown types, parameters of another type") {
  const struct {
    const char *scheduler, *error;
  } cases[] = {
      {R"({"type": "WarmupDecayLR"})", "scheduler.params.total_num_steps: missing: WarmupDecayLR requires it"},
      {R"({"type": "OneCycle", "params": {"cycle_max_lr": 1}})", "scheduler.params.cycle_min_lr: missing"},
      {R"({"type": "WarmupLR", "params": {"warmup_type": "cosine"}})",
       "warmup_type: expected log or linear, found \"cosine\""},
      {R"({"type": "WarmupLr2"})", "scheduler.type: unknown scheduler \"WarmupLr2\"\n  did you mean WarmupLR?"},
      {R"({"type": "WarmupLR", "params": {"cycle_min_lr": 1}})",
       "cycle_min_lr: is not a parameter of WarmupLR\n  it belongs to onecycle"},
      {R"({"params": {}})", "scheduler: has no type"},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 5,
           "decay_step_size": 1, "decay_mom_rate": 0.1}})",
       "ds_exact false"},
  };
  for (const auto& c : cases) {
    INFO(c.scheduler);
    CHECK_THAT(deepspeed_problems({.json = cat("{\"scheduler\": ", c.scheduler, "}"), .flags = kBatch}),
               Contains(c.error));
  }
  CHECK(load_deepspeed(
            {.json = R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 50}}})", .flags = kBatch})
            .config.optim.lr == 1e-3);
  const Config sgd = load_deepspeed({.json = R"({"optimizer": {"type": "SGD"}, "scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}}})",
                                     .flags = kBatch})
                         .config;
  CHECK_FALSE(sgd.schedule.cycle_momentum);
  CHECK(load_deepspeed({.json = R"({"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 5}}})",
                        .flags = kBatch})
            .config.schedule.range_steps == 5);
}

TEST_CASE("all problems of a file are listed at once with line, column and key") {
  const std::string found = deepspeed_problems(
      {.json = "{\n  \"train_batch_sise\": 8,\n  \"gradient_clipping\": \"1\", # text\n"
               "  \"zero_optimization\": { \"stage\": 4, \"stage3_prefetch_bucketsize\": 1, \"reduce_bucket_size\": "
               "5.5 },\n"
               "  \"fp16\": { \"enabled\": \"yes\" }, \"stage\": 2, \"autotuning\": {\"enabled\": true}\n}",
       .flags = {"--train.global_batch", "8", "--nonsense"}});
  for (const char* part :
       {"<base64>:3:24: gradient_clipping: expected a number, found a string",
        "<base64>:4:35: zero_optimization.stage: 4 is outside 0..3",
        "zero_optimization.stage3_prefetch_bucketsize: unknown key\n  did you mean stage3_prefetch_bucket_size? (in "
        "elements, default 5e7)",
        "zero_optimization.reduce_bucket_size: expected a whole number 0.. elements, found \"5.5\"",
        "<base64>:5:24: fp16.enabled: expected true or false, found a string",
        "autotuning: {...} is refused: ", "--nonsense: unknown flag", "7 problems, nothing was started"})
    CHECK_THAT(found, Contains(part));
}

TEST_CASE("unknown keys of the file itself are ignored with a note, those of a block only on request") {
  const std::string json = R"({"train_batch_sise": 8, "stage": 2, "my_framework": {"a": 1},
                              "zero_optimization": {"stage": 1}})";
  const std::string notes = joined_notes(load_deepspeed({.json = json, .flags = kBatch}));
  CHECK_THAT(notes,
             Contains("train_batch_sise: unknown key, ignored, as by DeepSpeed; did you mean train_batch_size?"));
  CHECK_THAT(notes, Contains(" stage: unknown key, ignored, as by DeepSpeed; did you mean zero_optimization.stage?"));
  CHECK_THAT(notes, Contains("my_framework: unknown key, ignored, as by DeepSpeed"));
  const std::string inside = R"({"zero_optimization": {"stages": 1}})";
  CHECK_THAT(deepspeed_problems({.json = inside, .flags = kBatch}), Contains("zero_optimization.stages: unknown key"));
  CHECK_THAT(joined_notes(load_deepspeed({.json = inside, .flags = kBatch, .allow_unknown = true})),
             Contains("zero_optimization.stages: unknown key, ignored (--allow_unknown_keys)"));
}

TEST_CASE("a field's own name means the same as its alias stage3_, and not both at once") {
  const std::string own = R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 1000,
    "param_persistence_threshold": 7, "model_persistence_threshold": 5, "max_live_parameters": 10,
    "max_reuse_distance": 11, "gather_16bit_weights_on_model_save": true, "module_granularity_threshold": 0,
    "use_all_reduce_for_fetch_params": false, "allgather_sequential": false}})";
  const LoadedConfig c = load_deepspeed({.json = own, .flags = kBatch});
  CHECK((c.config.zero.stage == 3 && c.config.zero.persist_numel == 7));
  CHECK_THAT(joined_notes(c), Contains("zero_optimization.stage3_gather_16bit_weights_on_model_save true: no effect"));
  CHECK_THAT(deepspeed_problems({.json = R"({"zero_optimization": {"max_live_parameters": 1,
    "stage3_max_live_parameters": 1}})",
                                 .flags = kBatch}),
             Contains("zero_optimization.stage3_max_live_parameters: given twice, under two spellings"));
}

TEST_CASE("buckets of no elements are buckets of one unit each") {
  const std::string json = R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": 0}})";
  CHECK(load_deepspeed({.json = json, .flags = kBatch}).config.zero.bucket_bytes == 1);
  const std::string gather = R"({"zero_optimization": {"stage": 1, "allgather_bucket_size": 0}})";
  CHECK(load_deepspeed({.json = gather, .flags = kBatch}).config.zero.bucket_bytes == 1);
}

TEST_CASE("hostile files are refused with one sentence") {
  const std::string deep = "{\"compile\": " + std::string(40, '[') + std::string(40, ']') + "}";
  const struct {
    std::string json;
    const char* error;
  } cases[] = {
      {"", "expected a value, found the end of the text"},
      {"[]", "expected an object, found a list"},
      {"{\"train_batch_size\": 1,\n\"train_batch_size\": 2}",
       "<base64>:2:1: the key \"train_batch_size\" is given twice, first in line 1"},
      {"{\"gradient_clipping\": NaN}", "found the word NaN"},
      {"{\"gradient_clipping\": 1e999}", "out of range"},
      {"{\"gradient_clipping\": -Infinity}", "expected a digit"},
      {"{\"train_batch_size\": 99999999999999999999999}", "expected a whole number"},
      {"{\"train_micro_batch_size_per_gpu\": 9007199254740992.0}", "is more than"},
      {"{\"train_batch_size\": -1}", "-1 is outside 1.."},
      {"{\"zero_optimization\": {\"reduce_bucket_size\": 9e15}}", "is more than"},
      {"{\"zero_optimization\": 3}", "expected an object, found a number"},
      {"{\"fp16\": {\"initial_scale_power\": 5000}}", "5000 is outside 0..93"},
      {"{\"optimizer\": {\"type\": \"" + std::string(5000, 'x') + "\"}}", "unknown optimizer"},
      {"{\"amp\": {\"" + std::string(5000, 'k') + "\": 1}}", "unknown key"},
      {deep, "nested deeper than 32 levels"},
      {std::string((1 << 20) + 1, ' '), "at most 1048576"},
      {"{train_batch_size: 8}", "expected a key in quotes"},
  };
  for (const auto& c : cases) {
    INFO(c.json.substr(0, 100));
    const std::string found = deepspeed_problems({.json = c.json, .flags = kBatch});
    CHECK_THAT(found, Contains(c.error));
    CHECK(found.size() < 2000);
  }
  CHECK_THROWS_WITH(read_deepspeed_text("base64:!!!!"), Contains("expected base64"));
  CHECK_THROWS_WITH(read_deepspeed_text("base64:A"), Contains("truncated text"));
  CHECK_THROWS_WITH(read_deepspeed_text("/no/such/file"), Contains("cannot be read"));
  for (const std::string text : {"", "a", "ab", "abc", "\xff\xfe{}"})
    CHECK(read_deepspeed_text("base64:" + encode_base64(text)).text == text);
}

TEST_CASE("offload is a no-op on a CPU, nothing at stage 0, and refused where it would mean something else") {
  const auto with = [](const char* zero, const std::string& device) {
    return deepspeed_problems({.json = cat("{\"zero_optimization\": ", zero, "}"),
                               .flags = {"--train.global_batch", "8", "--device.kind", device}});
  };
  const char* cpu = R"({"stage": 2, "offload_optimizer": {"device": "cpu"}})";
  CHECK(with(cpu, "cpu") == "accepted");
  CHECK_THAT(with(cpu, "cuda"), Contains("offload_optimizer.device -> zero.offload: optimizer is not built yet"));
  CHECK(with(R"({"stage": 2, "cpu_offload": true})", "cpu") == "accepted");
  CHECK(with(R"({"stage": 0, "offload_optimizer": {"device": "cpu"}})", "cuda") == "accepted");
  CHECK_THAT(with(R"({"stage": 2, "offload_optimizer": {"device": "nvme"}})", "cpu"),
             Contains("device: nvme is refused"));
  CHECK_THAT(deepspeed_problems(
                 {.json = R"({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}})", .flags = kBatch}),
             Contains("gradient_allreduce_op: sum is not allowed with ZeRO stage 3"));
}
