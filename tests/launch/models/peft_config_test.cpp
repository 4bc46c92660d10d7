// adapter_config.json of PEFT: what it may hold, and what it changes of the merged weights.
#include "launch/tools/weights/peft_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/hf_" + name; }

constexpr const char* kTrain =
    "--data.train mock --train.global_batch 8 --train.micro_batch 2 --schedule.type constant --optim.lr 3e-2 "
    "--device.kind cpu --log.tensorboard false --launch.ranks threads ";

}  // namespace

TEST_CASE("settings of a PEFT folder that change what the adapter does are refused, known or not") {
  const auto parsed = [](const std::string& more) {
    return parse_peft_config(
        R"({"peft_type": "LORA", "base_model_name_or_path": "b", "r": 4, "lora_alpha": 8)" + more + "}", "a.json");
  };
  CHECK(parsed("").lora.alpha == 8);
  // What PEFT 0.17 writes for an ordinary adapter, and keys of other versions that are null, false or empty.
  const PeftConfig usual = parsed(
      R"(, "alpha_pattern": {}, "auto_mapping": null, "bias": "none", "corda_config": null, "eva_config": null,
      "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
      "layer_replication": null, "layers_pattern": null, "layers_to_transform": null, "loftq_config": {},
      "lora_bias": false, "lora_dropout": 0.0, "megatron_config": null, "megatron_core": "megatron.core",
      "modules_to_save": null, "qalora_group_size": 16, "rank_pattern": {}, "revision": "main",
      "target_modules": ["q_proj", "v_proj"], "target_parameters": null, "task_type": "CAUSAL_LM",
      "trainable_token_indices": null, "use_dora": false, "use_qalora": false, "use_rslora": false,
      "peft_version": "0.18.0", "ensure_weight_tying": false, "some_future_setting": null, "another": [])");
  CHECK(usual.adapts("model.layers.0.self_attn.q_proj"));
  CHECK_FALSE(usual.adapts("model.layers.0.self_attn.k_proj"));
  for (const char* init : {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\""})
    CHECK_NOTHROW(parsed(std::string(", \"init_lora_weights\": ") + init));
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "of_next_year"})
    CHECK_THROWS_WITH(parsed(std::string(", \"init_lora_weights\": \"") + init + "\""),
                      Catch::Contains(std::string("init_lora_weights: ") + init + ", expected true") &&
                          Catch::Contains("path_initial_model_for_weight_conversion"));
  for (const std::string more :
       {R"("use_dora": true)", R"("rank_pattern": {"q_proj": 8})", R"("alpha_pattern": {"q_proj": 8})",
        R"("layers_to_transform": [0])", R"("modules_to_save": ["lm_head"])", R"("bias": "all")", R"("bias": 3)",
        R"("lora_bias": true)", R"("trainable_token_indices": [1])", R"("target_parameters": ["x"])",
        R"("megatron_config": {"a": 1})", R"("megatron_core": "other")", R"("use_qalora": true)",
        R"("layer_replication": [[0, 1]])", R"("loftq_config": {"loftq_bits": 4})", R"("use_rslora": "yes")",
        R"("some_future_setting": true)", R"("some_future_setting": 0.5)", R"("some_future_setting": "x")"}) {
    INFO(more);
    CHECK_THROWS_WITH(parsed(", " + more), Catch::Contains(more.substr(1, more.find('"', 1) - 1) + ": "));
  }
}

TEST_CASE("an adapter with use_rslora is scaled by the root of its rank, as PEFT scales it") {
  TempDir dir;
  must("--from " + golden("llama") + " --model.lora_rank 4 --model.lora_alpha 8 --train.steps 2 --log.name a " + kTrain,
       dir);
  must("export --load runs/a --format peft --output one", dir);
  std::filesystem::copy(dir / "one", dir / "two");
  std::string text = read_file(dir / "one/adapter_config.json");
  const std::string alpha = "\"lora_alpha\": 8.0";
  REQUIRE(text.find(alpha) != std::string::npos);
  // alpha / r = 16 / 4 = alpha' / sqrt(r) with alpha' = 8
  std::string plain = text, root = text;
  plain.replace(plain.find(alpha), alpha.size(), "\"lora_alpha\": 16.0");
  root.replace(root.find(alpha), alpha.size(), "\"use_rslora\": true, \"lora_alpha\": 8.0");
  write_file(dir / "one/adapter_config.json", plain);
  write_file(dir / "two/adapter_config.json", root);
  for (const char* name : {"one", "two"}) {
    must(std::string("import --from ") + name + " --output in-" + name, dir);
    must(std::string("export --load in-") + name + " --output hf-" + name, dir);
  }
  CHECK(tensors_of(dir / "hf-one") == tensors_of(dir / "hf-two"));
  must("export --load runs/a --output merged", dir);
  CHECK(tensors_of(dir / "merged") != tensors_of(dir / "hf-two"));
}

TEST_CASE("a tensor that PEFT would leave out is refused") {
  TempDir dir;
  must("--from " + golden("llama") + " --model.lora_rank 2 --train.steps 1 --log.name a " + kTrain, dir);
  must("export --load runs/a --format peft --output good", dir);
  nlohmann::json config = nlohmann::json::parse(read_file(dir / "good/adapter_config.json"));
  config["target_modules"] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"};
  write_file(dir / "good/adapter_config.json", config.dump());
  const Outcome o = gpttrain("import --from good --output in", dir.path());
  INFO(o.out);
  CHECK(o.code == 65);
  CHECK(o.prints("down_proj.lora_A.weight: target_modules does not name it"));
}
