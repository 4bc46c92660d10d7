#include "launch/tools/weights/peft_config.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  PeftConfig c;
  if (refused([&] { c = parse_peft_config(std::string(input), "adapter_config.json"); })) return;
  GT_CHECK(c.lora.rank >= 1 && c.lora.alpha > 0 && c.lora.dropout >= 0 && c.lora.dropout < 1 && !c.base.empty(),
           "an adapter that was accepted has a rank, a scale and a base");
  GT_CHECK(!c.targets.empty() || c.adapts("model.layers.0.self_attn.q_proj"));
}

std::vector<std::string> seeds() {
  return {R"({"peft_type": "LORA", "base_model_name_or_path": "base", "r": 8, "lora_alpha": 16, "lora_dropout": 0.1,)"
          R"( "bias": "none", "use_rslora": true, "target_modules": ["q_proj", "v_proj"], "inference_mode": true})",
          R"({"peft_type": "LORA", "base_model_name_or_path": "base", "r": 2, "lora_alpha": 2, "rank_pattern": {},)"
          R"( "target_modules": "all-linear", "init_lora_weights": "gaussian", "layers_to_transform": null})"};
}

}  // namespace

Target adapter_config() {
  return {"adapter_config",
          run,
          seeds,
          {"\"init_lora_weights\"", "\"pissa\"", "\"use_dora\"", "\"modules_to_save\"", "null", "true", "1e3", "-1",
           "[]", "{}", "{", "["},
          30000};
}

}  // namespace gt::fuzz
