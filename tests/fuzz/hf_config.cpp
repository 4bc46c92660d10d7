#include "launch/tools/weights/exported_config.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  HfConfig c;
  if (refused([&] { c = parse_hf_config(std::string(input), "config.json"); })) return;
  const HfConfig again = parse_hf_config(hf_config_json(c.model, c.end_of_text, "float32"), "written");
  GT_CHECK(again.model.layers == c.model.layers && again.model.hidden == c.model.hidden &&
               again.model.vocab == c.model.vocab && again.model.tied == c.model.tied &&
               again.end_of_text == c.end_of_text,
           "a config that was accepted is written and read again");
  const std::string exported = exported_config(c.model, std::string(input), c.end_of_text, DType::kF32);
  GT_CHECK(parse_hf_config(exported, "exported", true).model.hidden == c.model.hidden,
           "a folder's config is exported for the model that it describes");
}

std::vector<std::string> seeds() {
  ModelConfig m;
  m.ffn = 4 * m.hidden;
  const std::string ours = hf_config_json(m, 50256, "float32");
  m.tied = false;
  m.ffn = 100;
  return {ours, hf_config_json(m, -1, "bfloat16")};
}

}  // namespace

Target hf_config() {
  return {
      "hf_config", run, seeds, {"\"n_head\"", "\"n_embd\"", "null", "1e3", "-1", "gelu_new", "false", "{", "["}, 30000};
}

}  // namespace gt::fuzz
