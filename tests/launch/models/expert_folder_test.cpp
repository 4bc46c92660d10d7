// Hugging Face folders of routed experts: settings that are read or refused, biases of routers, missing tensors.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/tools/weights/model_weights.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string folder_of(const std::string& golden) { return source_dir() + "/tests/golden/hf_" + golden; }

// Sets every value of the tensors of a safetensors file whose names end so to that of its index.
void set_tensors(const std::string& file, const std::string& ending, const std::vector<float>& values) {
  std::string bytes = read_file(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [name, tensor] : header.items()) {
    if (!name.ends_with(ending)) continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    REQUIRE(end - begin == values.size() * sizeof(float));
    std::memcpy(bytes.data() + 8 + length + begin, values.data(), end - begin);
  }
  write_file(file, bytes);
}

}  // namespace

TEST_CASE("biases of routers are exported in FP32 whatever the dtype") {
  TempDir dir;
  must("import --from " + folder_of("dots1") + " --output in", dir);
  must("export --load in --output hf --dtype bf16", dir);
  must("export --load in --output native --naming native --dtype bf16", dir);
  const std::string bias = "e_score_correction_bias", hf = read_file(dir / "hf/model.safetensors");
  for (const auto& [file, name] : {std::pair{std::string("hf"), "model.layers.1.mlp.gate.e_score_correction_bias"},
                                   {"native", "layers.1.mlp.router.bias"}}) {
    const std::string text = read_file(dir / file + "/model.safetensors");
    const size_t at = text.find(name);
    REQUIRE(at != std::string::npos);
    CHECK(text.substr(at, 120).find("F32") != std::string::npos);
  }
  CHECK(tensors_of(dir / "hf").at("model.layers.2.mlp.gate." + bias) ==
        tensors_of(folder_of("dots1")).at("model.layers.2.mlp.gate." + bias));
}

TEST_CASE("an import names the tensors of experts that it read, and is refused if one is missing or unknown") {
  TempDir dir;
  const std::string folder = folder_of("olmoe");
  CHECK(must("import --from " + folder + " --output in", dir).prints("read 63 of 63 tensors"));
  std::filesystem::create_directory(dir / "bad");
  std::string config = read_file(folder + "/config.json");
  std::string weights = read_file(folder + "/model.safetensors");
  write_file(dir / "bad/config.json", config);
  const std::string name = "layers.1.mlp.experts.6.up_proj", other = "layers.1.mlp.experts.7.up_proj";
  const size_t at = weights.find(name);
  REQUIRE(at != std::string::npos);
  write_file(dir / "bad/model.safetensors", weights.replace(at, name.size(), other));
  const Outcome renamed = gpttrain("import --from bad --output out", dir.path());
  INFO(renamed.out);
  CHECK(renamed.code == 65);
  CHECK(renamed.prints("model.layers.1.mlp.experts.6.up_proj.weight: missing"));
  CHECK(renamed.prints("model.layers.1.mlp.experts.7.up_proj.weight"));
}

TEST_CASE("settings of routed experts that are not built are refused by name") {
  const auto refusal = [&](const std::string& name, const std::string& from, const std::string& to) -> std::string {
    std::string text = read_file(folder_of(name) + "/config.json");
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    try {
      parse_hf_config(text.replace(at, from.size(), to), "config.json");
    } catch (const Error& e) { return e.what(); }
    return "";
  };
  CHECK_THAT(refusal("mixtral", "\"router_jitter_noise\": 0.0", "\"router_jitter_noise\": 0.1"),
             Catch::Contains("router_jitter_noise: 0.1"));
  CHECK_THAT(refusal("mixtral", "\"output_router_logits\": false", "\"output_router_logits\": true"),
             Catch::Contains("output_router_logits"));
  CHECK_THAT(refusal("qwen3_moe", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 3"),
             Catch::Contains("no layer has experts"));
  CHECK_THAT(refusal("qwen3_moe", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [2]"),
             Catch::Contains("mlp_only_layers: expected numbers 0 to 1"));
  CHECK_THAT(refusal("qwen3_moe", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0.5]"),
             Catch::Contains("mlp_only_layers: expected a list of whole numbers"));
  CHECK(refusal("qwen3_moe", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [1]") == "");
  nlohmann::json sparse = nlohmann::json::parse(read_file(folder_of("qwen3_moe") + "/config.json"));
  sparse["decoder_sparse_step"] = 2, sparse["num_hidden_layers"] = 6, sparse["mlp_only_layers"] = {3};
  const ModelConfig every_second = parse_hf_config(sparse.dump(), "config.json").model;
  CHECK((every_second.moe.dense_blocks == std::vector<int64_t>{0, 2, 3, 4} && every_second.dense_ffn() == 36));
  CHECK_THAT(refusal("dots1", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3"),
             Catch::Contains("first_k_dense_replace: 3"));
  CHECK_THAT(refusal("qwen2_moe", "\"shared_expert_intermediate_size\": 24", "\"shared_expert_intermediate_size\": 25"),
             Catch::Contains("shared_expert_intermediate_size: 25, expected a multiple"));
  CHECK_THAT(refusal("olmoe", "\"clip_qkv\": null", "\"clip_qkv\": 8.0"), Catch::Contains("clip_qkv"));
  CHECK_THAT(refusal("olmoe", "\"num_experts\": 7", "\"num_experts\": 7, \"num_local_experts\": 8"),
             Catch::Contains("num_local_experts: 8, but num_experts is 7"));
  CHECK(refusal("olmoe", "\"num_experts\": 7", "\"num_local_experts\": 7") == "");
}

TEST_CASE("experts are chosen as transformers 5 does where all scores with their biases are below 0") {
  const std::string python = source_dir() + "/build/hf5/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  std::filesystem::copy(folder_of("dots1"), dir / "low");
  const std::vector<float> low{-1.9f, -2.1f, -2, -2.05f, -1.95f, -2.15f, -2, -2};
  set_tensors(dir / "low/model.safetensors", "e_score_correction_bias", low);
  must("import --from low --output in", dir);
  const auto model = load_model(dir / "in", {"--device.kind", "cpu"});
  const std::vector<Prompt> prompts = prompts_of(folder_of("dots1"));
  std::string text;
  for (const Prompt& p : prompts) {
    for (const int32_t token : p.tokens) text += std::to_string(token) + " ";
    text += "\n";
  }
  write_file(dir / "p.txt", text);
  const Outcome r =
      shell(python + " " + source_dir() + "/tests/readers/hf_logits.py low p.txt out.f32", dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  const std::string bytes = read_file(dir / "out.f32");
  const size_t vocab = prompts[0].logits.size();
  REQUIRE(bytes.size() == prompts.size() * vocab * sizeof(float));
  double moved = 0;
  for (size_t k = 0; k < prompts.size(); ++k) {
    std::vector<float> theirs(vocab);
    std::memcpy(theirs.data(), bytes.data() + k * vocab * sizeof(float), vocab * sizeof(float));
    CHECK(largest_difference(logits_of(*model, prompts[k].tokens), theirs) < 1e-5);
    moved = std::max(moved, largest_difference(theirs, prompts[k].logits));
  }
  CHECK(moved > 1e-3);  // the biases choose other experts than the folder's own
}
