#include "kernels/core/hash/base64.h"
#include "launch/config/config.h"
#include "launch/tools/translate/deepspeed.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  for (const char* way : {"base64:", "stdin:"})
    refused([&] { load_config({.foreign = deepspeed_reader(way + std::string(input))}); });
  LoadedConfig loaded;
  const std::string source = "base64:" + encode_base64(input);
  if (refused([&] { loaded = load_config({.foreign = deepspeed_reader(source)}); })) return;
  GT_CHECK(!gt::config_json(loaded.config).empty());
}

std::vector<std::string> seeds() {
  return {
      R"({"train_batch_size": 16, "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.9]}}})",
      R"({"train_batch_size": 8, // c
"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3,}}, # d
"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e7}})",
      R"({"train_micro_batch_size_per_gpu": 2, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}},
"tensorboard": {"enabled": true, "job_name": "x"}, "amp": {"enabled": false, "loss_scale": "128.0"}})",
      R"({"train_batch_size": 4, "fp16": {"enabled": "auto"}, "zero_optimization": true, "flops_profiler": {}})",
      R"({"train_batch_size": 4, "optimiser": {}, "zero_optimization": {"stages": 1}, "steps_per_print": null, "Lr": [1]})",
      R"({"train_batch_size": 4, "train_batch_size": 5, "pipeline": {"stages": "auto", "partition": "best"}})",
      R"({"train_batch_size": 4, "log_level": "Warning", "data_types": {"grad_accum_dtype": "BF16"}, "timers": {}})",
      R"({"train_batch_size": "auto", "bf16": {"enabled": true}, "bfloat16": {"enabled": true}, "fp16": 1})",
      R"({"train_batch_size": 4, "log_level": 7, "amp": {"opt_level": "O2"}, "zero_allow_untested_optimizer": "auto"})",
      R"({"train_batch_size": 4, "curriculum_learning": {"enabled": true, "schedule_type": "fixed_discrete",
"schedule_config": {"difficulty": [8, 16], "max_step": [1e1]}}})",
      R"({"train_batch_size": 4, "curriculum_learning": {"schedule_config": {"difficulty": 8, "max_step": [true]}}})",
      R"([1])",
      "eyJ0cmFpbl9iYXRjaF9zaXplIjogNH0=",
      "eyJ0cmF",
      "e",
      "e*"};
}

}  // namespace

Target deepspeed_json() {
  return {"deepspeed_json",
          run,
          seeds,
          {"\"auto\"", "null", "true", "{}", "[]", "5e8", "-1", "1e999", "99999999999999999999", "\"fp16\"",
           "\"enabled\"", "\"zero_optimization\"", "\"params\"", "\"type\"", "//", "#", "/*", ",", "NaN"},
          1000};
}

}  // namespace gt::fuzz
