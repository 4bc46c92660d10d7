// Families other than GPT-2: predictions equal to transformers', gradients equal on every layout
// (tests/golden/make_hf_family.py), and export, import, resume and generation.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "launch/engine/engine_options.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// A folder of tests/golden, its family and its number of tensors.
struct Golden {
  const char *name, *arch;
  int tensors;
  std::string folder() const { return source_dir() + "/tests/golden/hf_" + name; }
};
constexpr Golden kLlama{"llama", "llama", 15}, kQwen2{"qwen2", "qwen2", 16};
constexpr Golden kLlama31{"llama31", "llama", 15}, kLlama32{"llama32", "llama", 14};  // scaled frequencies; and tied
constexpr Golden kYarn{"yarn", "llama", 15}, kLinear{"linear", "llama", 15};
constexpr Golden kMistral{"mistral", "mistral", 15}, kQwen2Windows{"qwen2_windows", "qwen2", 24};
constexpr Golden kQwen3{"qwen3", "qwen3", 17}, kQwen3Tied{"qwen3_tied", "qwen3", 16}, kOlmo2{"olmo2", "olmo2", 17};
constexpr Golden kGemma2{"gemma2", "gemma2", 26}, kGemma2Uncapped{"gemma2_uncapped", "gemma2", 18};
constexpr Golden kGemma3{"gemma3", "gemma3", 38}, kGemma3Linear{"gemma3_linear", "gemma3", 65};
constexpr Golden kMixtral{"mixtral", "mixtral", 17}, kQwen3Moe{"qwen3_moe", "qwen3_moe", 19};
constexpr Golden kQwen3MoePlain{"qwen3_moe_plain", "qwen3_moe", 19}, kOlmoe{"olmoe", "olmoe", 19};
constexpr Golden kQwen2Moe{"qwen2_moe", "qwen2_moe", 32}, kDots1{"dots1", "dots1", 32},
    kDots1Plain{"dots1_plain", "dots1", 25};
constexpr Golden kAll[] = {kLlama,          kQwen2,        kLlama31,      kLlama32,   kYarn,     kLinear,
                           kMistral,        kQwen2Windows, kQwen3,        kQwen3Tied, kOlmo2,    kGemma2,
                           kGemma2Uncapped, kGemma3,       kGemma3Linear, kMixtral,   kQwen3Moe, kQwen3MoePlain,
                           kOlmoe,          kQwen2Moe,     kDots1,        kDots1Plain};

ModelConfig model_of(const std::string& folder) {
  return parse_hf_config(read_file(folder + "/config.json"), "config.json").model;
}

void check_exchange(const Golden& golden) {
  TempDir dir;
  const std::string folder = golden.folder(), count = std::to_string(golden.tensors);
  INFO(folder);
  CHECK(must("import --from " + folder + " --output in", dir).prints("step-000000000: " + count + " tensors"));
  const auto model = load_model(dir / "in", {"--device.kind", "cpu"});
  CHECK(model->config.model.arch == golden.arch);
  const std::vector<Prompt> prompts = prompts_of(folder);
  CHECK(prompts.size() == 6);
  for (const Prompt& p : prompts) {
    INFO("prompt of " << p.tokens.size());
    CHECK(largest_difference(logits_of(*model, p.tokens), p.logits) < 1e-5);
  }
  must("export --load in --output hf", dir);
  CHECK(tensors_of(dir / "hf") == tensors_of(folder));
  const auto config = nlohmann::json::parse(read_file(dir / "hf/config.json"));
  const auto original = nlohmann::json::parse(read_file(folder + "/config.json"));
  for (const auto& [key, value] : config.items()) {
    INFO(key);
    // Gemma's class ties without a key, and Gemma 3's keeps this one under a name of its own.
    const nlohmann::json absent = key == "tie_word_embeddings" ? nlohmann::json(true) : nlohmann::json();
    CHECK(value == original.value(key, original.value("_" + key, absent)));
  }
  must("export --load in --format hdf5 --output w.h5", dir);  // the native format records the family
  must("import --from w.h5 --output b", dir);
  CHECK(must("ckpt diff in b", dir).prints(count + " of them bitwise equal"));
}

}  // namespace

TEST_CASE("a Llama written by transformers predicts the same here, and is exported with its original bytes") {
  for (const Golden& g : {kLlama, kLlama31, kLlama32, kYarn, kLinear}) check_exchange(g);
}

TEST_CASE("as do a Qwen2, with biases of q, k and v and a tied head, a Qwen3 and an OLMo 2") {
  for (const Golden& g : {kQwen2, kQwen3, kQwen3Tied, kOlmo2}) check_exchange(g);
}

TEST_CASE("as do a Mistral and a Qwen2 with windows shorter than the sequence, in all blocks and in the last ones") {
  check_exchange(kMistral);
  check_exchange(kQwen2Windows);
  const ModelConfig mistral = model_of(kMistral.folder()), qwen2 = model_of(kQwen2Windows.folder());
  CHECK((mistral.window == 7 && mistral.global_first == 0 && mistral.window_of(0) == 7));
  CHECK((qwen2.window == 5 && qwen2.global_first == 1 && qwen2.window_of(0) == 0 && qwen2.window_of(2) == 5));
}

TEST_CASE("so do Gemma 2 and Gemma 3, whose blocks with and without a window have positions of their own") {
  for (const Golden& g : {kGemma2, kGemma2Uncapped, kGemma3, kGemma3Linear}) check_exchange(g);
  const ModelConfig two = model_of(kGemma2.folder()), three = model_of(kGemma3.folder());
  CHECK((two.attn_softcap == 1.5 && two.logit_softcap == 2.5 && two.attn_scalar == 11 && two.global_every == 2));
  CHECK((two.window_of(0) == 7 && two.window_of(1) == 0 && two.rope_local_theta == 0));
  CHECK((three.rope_local_theta == 100 && three.rope_theta == 5000 && three.global_every == 3 &&
         three.window_of(2) == 0));
  CHECK(
      (three.qk_norm == QkNormKind::kHead && three.attn_softcap == 0 && three.norm_zero_centered && three.scale_embed));
}

TEST_CASE(
    "so do Mixtral, Qwen3 and OLMoE with routed experts, of square matrices, normalized or not, one of six or four") {
  for (const Golden& g : {kMixtral, kQwen3Moe, kQwen3MoePlain, kOlmoe}) check_exchange(g);
  const ModelConfig mixtral = model_of(kMixtral.folder()), qwen3 = model_of(kQwen3Moe.folder());
  const ModelConfig plain = model_of(kQwen3MoePlain.folder()), olmoe = model_of(kOlmoe.folder());
  CHECK((mixtral.moe.experts == 5 && mixtral.moe.top_k == 2 && mixtral.moe.normalize && mixtral.ffn == mixtral.hidden));
  CHECK((qwen3.moe.experts == 9 && qwen3.moe.top_k == 4 && qwen3.moe.normalize && qwen3.ffn == 12));
  CHECK((plain.moe.top_k == 1 && !plain.moe.normalize && 2 * plain.ffn == plain.hidden));
  CHECK((olmoe.moe.experts == 7 && olmoe.moe.top_k == 3 && !olmoe.moe.normalize));
}

TEST_CASE("so do a Qwen2 with a gated shared expert and dots.llm1, with biases, groups and dense blocks") {
  for (const Golden& g : {kQwen2Moe, kDots1, kDots1Plain}) check_exchange(g);
  const ModelConfig qwen2 = model_of(kQwen2Moe.folder()), dots1 = model_of(kDots1.folder());
  const ModelConfig plain = model_of(kDots1Plain.folder());
  CHECK((qwen2.moe.shared == 2 && qwen2.moe.shared_gate && qwen2.ffn == 12 && qwen2.dense_ffn() == 36));
  CHECK((qwen2.routed(0) && !qwen2.routed(1) && qwen2.routed(2)));
  CHECK((dots1.moe.shared == 2 && dots1.moe.bias && dots1.moe.groups == 4 && dots1.moe.top_groups == 2));
  CHECK((!dots1.routed(0) && dots1.routed(1) && dots1.moe.scale == 2.5 && dots1.moe.normalize));
  CHECK((dots1.window_of(1) == 0 && dots1.window_of(2) == 7));
  CHECK((plain.moe.groups == 1 && plain.moe.top_k == 1 && !plain.moe.normalize && plain.moe.dense_blocks.empty()));
}

namespace {

// transformers 4 and 5, whichever are here.
std::vector<std::string> transformers_pythons() {
  std::vector<std::string> out;
  for (const char* name : {"hf", "hf5"})
    if (const std::string python = source_dir() + "/build/" + name + "/bin/python"; std::filesystem::exists(python))
      out.push_back(python);
  return out;
}

std::string prompt_text(const Golden& g) {
  std::string text;
  for (const Prompt& p : prompts_of(g.folder())) {
    for (const int32_t token : p.tokens) text += std::to_string(token) + " ";
    text += "\n";
  }
  return text;
}

// Logits that tests/readers/hf_logits.py wrote, against those of the folder in tests/golden.
void check_logits(const Golden& g, const std::string& bytes) {
  INFO(g.name);
  const std::vector<Prompt> prompts = prompts_of(g.folder());
  const size_t vocab = prompts[0].logits.size();
  REQUIRE(bytes.size() == prompts.size() * vocab * 4);
  for (size_t k = 0; k < prompts.size(); ++k) {
    std::vector<float> theirs(vocab);
    std::memcpy(theirs.data(), bytes.data() + k * vocab * 4, vocab * 4);
    CHECK(largest_difference(theirs, prompts[k].logits) < 1e-5);
  }
}

}  // namespace

TEST_CASE("transformers loads the exported folder of every family and predicts the same") {
  const std::vector<std::string> pythons = transformers_pythons();
  if (pythons.empty()) GT_SKIP("no build/hf and no build/hf5; tests/readers/setup.sh makes them");
  TempDir dir;
  std::string words;
  for (const Golden& g : kAll) {
    const std::string name = g.name;
    must("import --from " + g.folder() + " --output in-" + name, dir);
    must("export --load in-" + name + " --output " + name, dir);
    write_file(dir / (name + ".txt"), prompt_text(g));
    words += " " + name + " " + name + ".txt " + name + ".f32";
  }
  for (const std::string& python : pythons) {
    const Outcome r = shell(python + " " + source_dir() + "/tests/readers/hf_logits.py" + words, dir.path(), 300);
    INFO(r.out);
    REQUIRE(r.code == 0);
    for (const Golden& g : kAll) check_logits(g, read_file(dir / (std::string(g.name) + ".f32")));
  }
}

TEST_CASE("the folder that transformers 5 saves of every family is imported, and predicts the same") {
  const std::string python = source_dir() + "/build/hf5/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  TempDir dir;
  std::string folders, words;
  for (const Golden& g : kAll) folders += " " + g.folder() + " saved-" + g.name;
  const Outcome saved = shell(python + " " + source_dir() + "/tests/readers/hf_save.py" + folders, dir.path(), 300);
  INFO(saved.out);
  REQUIRE(saved.code == 0);
  for (const Golden& g : kAll) {
    const std::string name = g.name;
    must("import --from saved-" + name + " --output in-" + name, dir);
    must("export --load in-" + name + " --output " + name, dir);
    write_file(dir / (name + ".txt"), prompt_text(g));
    words += " " + name + " " + name + ".txt " + name + ".f32";
  }
  const Outcome r = shell(python + " " + source_dir() + "/tests/readers/hf_logits.py" + words, dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  for (const Golden& g : kAll) check_logits(g, read_file(dir / (std::string(g.name) + ".f32")));
}

TEST_CASE("loss and gradients of every family equal transformers' on every layout") {
  const Golden golden = GENERATE(from_range(std::begin(kAll), std::end(kAll)));
  const std::string folder = golden.folder();
  INFO(folder);
  const Logical theirs = tensors_of(folder + "/grads.safetensors");
  const ModelConfig model = model_of(folder);
  const Logical grads = native_tensors(model, theirs, "grad.");
  const Logical weights = native_tensors(model, tensors_of(folder));
  struct Layout {
    MeshShape mesh;
    bool sequence_parallel;
    Recompute recompute;
  };
  for (const Layout& l :
       {Layout{{}, false, Recompute::kNone}, Layout{{}, false, Recompute::kSelective},
        Layout{{.tp = 2}, true, Recompute::kFull}, Layout{{.pp = 2, .dp = 2}, false, Recompute::kNone},
        Layout{{.tp = 4, .kv_ranks = 2}, false, Recompute::kSelective},
        Layout{{.pp = 2, .tp = 2}, true, Recompute::kSelective},
        Layout{{.tp = 4, .kv_ranks = 2}, true, Recompute::kFull}}) {
    INFO("tp " << l.mesh.tp << " pp " << l.mesh.pp << " dp " << l.mesh.dp);
    MeshRun run;
    run.engine.model = model;
    run.engine.model.seq = 16;
    run.engine.sequence_parallel = l.sequence_parallel;
    run.engine.recompute = l.recompute;
    run.engine.loss_chunk = 7;
    run.engine.zero.stage = l.mesh.dp > 1 ? 3 : 0;
    run.global_batch = 4;
    run.mesh = l.mesh;
    run.samples = samples_of(folder + "/grads.safetensors");
    run.weights = &weights;
    const MeshResult r = run_mesh(run);
    CHECK(r.losses[0] == Approx(theirs.at("loss")[0]).epsilon(1e-6));
    REQUIRE(r.grads.size() == grads.size());
    for (const auto& [name, expected] : grads) {
      INFO(name);
      CHECK(relative_error(r.grads.at(name), expected) <= 1e-5);
    }
  }
}

namespace {

// Largest differences from transformers' FP64 after 50 steps.
struct Drift {
  double loss = 0, weight = 0;
  std::string loss_of, weight_of;
};

// Trains a folder of tests/golden as tests/readers/hf_steps.py did.
void train_as_transformers(const std::string& name, const std::string& results, const MeshShape& mesh, Drift& most) {
  constexpr int64_t kLength = 16;
  const std::string folder = source_dir() + "/tests/golden/hf_" + name, file = results + "/" + name + ".safetensors";
  INFO(name << ", tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
  const Logical theirs = tensors_of(file);
  const ModelConfig model = model_of(folder);
  // Positions behind the samples are not trained here.
  Logical start = native_tensors(model, tensors_of(folder)), right = native_tensors(model, theirs);
  for (Logical* of : {&start, &right})
    if (const auto positions = of->find("pos_embed.weight"); positions != of->end())
      positions->second.resize(static_cast<size_t>(kLength * model.hidden));
  MeshRun run = adamw_run(model, mesh, 1e-3, 4, file);
  run.engine.model.seq = kLength;
  if (model.moe.bias) run.engine.model.moe.bias_rate = 1e-3;
  run.engine.model.dropout = run.engine.model.attn_dropout = 0;
  run.weights = &start;
  const MeshResult ours = run_mesh(run);
  REQUIRE(theirs.at("losses").size() == 50);
  for (size_t k = 0; k < 50; ++k) {
    INFO("step " << k);
    const double error = std::fabs(ours.losses[k] / theirs.at("losses")[k] - 1);
    CHECK(error <= 1e-4);
    if (error > most.loss) most.loss = error, most.loss_of = name;
  }
  REQUIRE(ours.weights.size() == right.size());
  for (const auto& [parameter, expected] : right) {
    // Attention does not depend on biases of keys: their gradient is rounding, which Adam makes as large as any other.
    if (parameter.ends_with(".attn.qkv.bias")) continue;
    INFO(parameter);
    const double error = relative_error(ours.weights.at(parameter), expected);
    CHECK(error <= 1e-4);
    if (error > most.weight) most.weight = error, most.weight_of = name + " " + parameter;
  }
}

}  // namespace

TEST_CASE("50 steps of AdamW of every family equal those of transformers") {
  const std::string python = source_dir() + "/build/hf/bin/python";
  if (!std::filesystem::exists(python)) GT_SKIP("no " + python + "; tests/readers/setup.sh makes it");
  const std::vector<std::string> names{
      "gpt2",      "llama",           "llama31",       "llama32",         "yarn",       "linear",
      "mistral",   "qwen2",           "qwen2_windows", "qwen3",           "qwen3_tied", "olmo2",
      "gemma2",    "gemma2_uncapped", "gemma3",        "gemma3_linear",   "bert",       "bert_untied",
      "bert_deep", "mixtral",         "qwen3_moe",     "qwen3_moe_plain", "olmoe",      "qwen2_moe",
      "dots1",     "dots1_plain"};
  TempDir dir;
  std::string words = python + " " + source_dir() + "/tests/readers/hf_steps.py out";
  for (const std::string& name : names) words += " " + source_dir() + "/tests/golden/hf_" + name;
  const Outcome r = shell(words, dir.path(), 900);
  INFO(r.out);
  REQUIRE(r.code == 0);
  Drift most;
  for (const std::string& name : names)
    for (const MeshShape& mesh : {MeshShape{}, MeshShape{.pp = 2, .tp = 2}})
      train_as_transformers(name, dir / "out", mesh, most);
  WARN("50 steps: largest relative difference of a loss " << most.loss << " (" << most.loss_of << "), of a parameter "
                                                          << most.weight << " (" << most.weight_of << ")");
}

TEST_CASE("unsupported settings of a Llama's config.json are refused by name") {
  const std::string text = read_file(kLlama.folder() + "/config.json");
  const auto refusal = [&](const std::string& from, const std::string& to) -> std::string {
    std::string changed = text;
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    try {
      parse_hf_config(changed, "config.json");
    } catch (const Error& e) { return e.what(); }
    return "";
  };
  const auto scaled = [&](const std::string& value) {
    return refusal("\"rope_scaling\": null", "\"rope_scaling\": " + value);
  };
  CHECK_THAT(scaled("{\"type\": \"yarn\"}"), Catch::Contains("rope_scaling.factor: missing"));
  CHECK_THAT(scaled("{\"rope_type\": \"longrope\", \"factor\": 2.0}"),
             Catch::Contains("rope_scaling.rope_type: \"longrope\", expected default or linear or llama3 or yarn"));
  CHECK_THAT(scaled("{\"type\": 3}"), Catch::Contains("rope_scaling.type: "));
  const std::string dynamic = scaled("{\"type\": \"dynamic\", \"factor\": 2.0}");
  CHECK_THAT(dynamic, Catch::Contains("rope_scaling.type: \"dynamic\"") && !Catch::Contains("factor"));
  CHECK_THAT(scaled("\"yarn\""), Catch::Contains("rope_scaling: expected an object"));
  CHECK_THAT(scaled("{\"type\": \"linear\", \"factor\": 0.5}"),
             Catch::Contains("rope_scaling.factor: expected a number 1"));
  CHECK_THAT(scaled("{\"type\": \"yarn\", \"factor\": 2, \"mscale\": 1}"), Catch::Contains("rope_scaling.mscale: "));
  CHECK_THAT(scaled("{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4, "
                    "\"original_max_position_embeddings\": 8192}"),
             Catch::Contains("rope_scaling.high_freq_factor: 4, expected more than low_freq_factor"));
  CHECK_THAT(scaled("null, \"partial_rotary_factor\": 0.5"), Catch::Contains("partial_rotary_factor: 0.5, expected 1"));
  CHECK(scaled("{\"rope_type\": \"default\"}") == "");
  CHECK_THAT(refusal("\"silu\"", "\"relu\""), Catch::Contains("hidden_act: \"relu\", expected silu"));
  CHECK_THAT(
      refusal("\"llama\"", "\"t5\""),
      Catch::Contains("model_type: \"t5\", expected gpt2 or llama or mistral or qwen2 or qwen3 or olmo2 or gemma2 or "
                      "gemma3_text or bert or mixtral or qwen3_moe or olmoe or qwen2_moe or dots1"));
  CHECK(refusal("\"rope_theta\": 5000.0", "\"rope_theta\": 500000.0") == "");
}

TEST_CASE("keys of a config.json that are not known are refused unless they are ignored") {
  const std::string text = read_file(kLlama.folder() + "/config.json");
  const auto with = [&](const std::string& keys) { return "{" + keys + ", " + text.substr(text.find('{') + 1); };
  for (const char* harmless :
       {"\"residual_scale\": null", "\"residual_scale\": false", "\"gradient_checkpointing\": true"})
    CHECK_NOTHROW(parse_hf_config(with(harmless), "config.json"));
  const std::string unknown = with("\"residual_scale\": 2.0, \"rope_parameters\": {\"rope_theta\": 5000, \"warp\": 3}");
  CHECK_THROWS_WITH(
      parse_hf_config(unknown, "config.json"),
      Catch::Contains("residual_scale: not known, and may change the model; --ignore-unknown ignores it") &&
          Catch::Contains("rope_parameters.warp: not known"));
  CHECK(parse_hf_config(unknown, "config.json", true).warnings ==
        std::vector<std::string>{"rope_parameters.warp: not known, ignored", "residual_scale: not known, ignored"});
  TempDir dir;
  std::filesystem::copy(kLlama.folder(), dir / "hf");
  write_file(dir / "hf/config.json", unknown);
  for (const std::string words :
       {"import --output m --from hf", "--data.train mock --device.kind cpu --dry-run --from hf"}) {
    INFO(words);
    const Outcome refused = gpttrain(words, dir.path());
    CHECK(refused.code == 65);
    CHECK(refused.prints("residual_scale: not known"));
    const Outcome ignored = gpttrain(words + " --ignore-unknown", dir.path());
    INFO(ignored.out);
    CHECK(ignored.code == 0);
  }
}

TEST_CASE("windows of a config.json are read, and an unsupported pattern is refused") {
  const std::string text = read_file(kQwen2Windows.folder() + "/config.json");
  const auto read = [](const nlohmann::json& j) { return parse_hf_config(j.dump(), "config.json").model; };
  nlohmann::json j = nlohmann::json::parse(text);
  j["num_hidden_layers"] = 6;
  const auto types = [&](const std::string& pattern) {
    j["layer_types"] = nlohmann::json::array();
    for (const char c : pattern) j["layer_types"].push_back(c == 's' ? "sliding_attention" : "full_attention");
  };
  types("ssfssf");
  CHECK((read(j).global_every == 3 && read(j).global_first == 0 && read(j).window == 5));
  types("ffffss");
  CHECK((read(j).global_every == 0 && read(j).global_first == 4));
  types("fffsfs");
  CHECK((read(j).global_every == 5 && read(j).global_first == 3));
  types("ffffff");
  CHECK((read(j).global_every == 0 && read(j).global_first == 0 && read(j).window == 0));
  types("ssffsf");
  CHECK_THROWS_WITH(read(j), Catch::Contains("layer_types: expected the same number of sliding layers"));
  types("ssf");
  CHECK_THROWS_WITH(read(j), Catch::Contains("layer_types: 3 entries, expected 6"));
  j["layer_types"] = {"sliding"};
  CHECK_THROWS_WITH(read(j), Catch::Contains("layer_types: sliding, expected full_attention or sliding_attention"));
  types("ffffss");
  j["use_sliding_window"] = false;
  CHECK_THROWS_WITH(read(j), Catch::Contains("layer 4 is sliding_attention, but there is no sliding_window"));
  nlohmann::json m = nlohmann::json::parse(read_file(kMistral.folder() + "/config.json"));
  m["sliding_window"] = nullptr;  // from version 0.2 on
  CHECK(read(m).window == 0);
  m.erase("sliding_window");  // transformers' own default
  CHECK(read(m).window == 4096);
  m["sliding_window"] = 0;
  CHECK_THROWS_WITH(read(m), Catch::Contains("sliding_window: expected a whole number 1 to"));
  m.erase("num_key_value_heads");
  m["sliding_window"] = nullptr;
  CHECK(read(m).kv_heads == 8);
}

TEST_CASE("keys of a Gemma that are missing or null mean what transformers means by it") {
  const auto read = [](const nlohmann::json& j) { return parse_hf_config(j.dump(), "config.json").model; };
  nlohmann::json two = nlohmann::json::parse(read_file(kGemma2.folder() + "/config.json"));
  two.erase("layer_types");  // transformers before 4.53: every other block
  CHECK((read(two).global_every == 2 && read(two).window == 7));
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "query_pre_attn_scalar"})
    two.erase(key);
  const ModelConfig usual = read(two);
  CHECK((usual.attn_softcap == 50 && usual.logit_softcap == 30 && usual.window == 4096 && usual.attn_scalar == 256));
  two["attn_logit_softcapping"] = two["final_logit_softcapping"] = two["sliding_window"] = nullptr;
  const ModelConfig none = read(two);
  CHECK((none.attn_softcap == 0 && none.logit_softcap == 0 && none.window == 0 && none.global_every == 0));
  two["attn_logit_softcapping"] = -1;
  CHECK_THROWS_WITH(read(two), Catch::Contains("attn_logit_softcapping: expected a number"));

  nlohmann::json three = nlohmann::json::parse(read_file(kGemma3.folder() + "/config.json"));
  three.erase("layer_types");
  CHECK(read(three).global_every == 6);
  three["sliding_window_pattern"] = 3;
  CHECK(model_flags(read(three)) == model_flags(model_of(kGemma3.folder())));
  three["attn_logit_softcapping"] = 50;
  CHECK_THROWS_WITH(read(three), Catch::Contains("attn_logit_softcapping: 50, which is not built"));
  three["attn_logit_softcapping"] = nullptr;
  three["use_bidirectional_attention"] = true;
  CHECK_THROWS_WITH(read(three), Catch::Contains("use_bidirectional_attention: true, expected false"));
  three["use_bidirectional_attention"] = false;
  for (const char* key : {"rope_theta", "rope_local_base_freq"}) three.erase(key);
  CHECK((read(three).rope_theta == 1e6 && read(three).rope_local_theta == 1e4));
  three["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5000.0}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 100.0}}}};
  const ModelConfig newer = read(three);
  CHECK((newer.rope_theta == 5000 && newer.rope_local_theta == 100 && newer.rope.factor == 8));
  three["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  three["rope_parameters"]["sliding_attention"]["factor"] = 2;
  CHECK_THROWS_WITH(read(three), Catch::Contains("rope_parameters.sliding_attention.rope_type: expected default"));
  CHECK_THROWS_WITH(read({{"model_type", "gemma3"}}), Catch::Contains("or gemma2 or gemma3_text"));
}

TEST_CASE("rotary positions are read in the newer spelling of transformers as well") {
  for (const Golden& g : {kLlama, kLlama31, kYarn, kLinear}) {
    auto json = nlohmann::json::parse(read_file(g.folder() + "/config.json"));
    const ModelConfig older = parse_hf_config(json.dump(), "config.json").model;
    nlohmann::json rope =
        json["rope_scaling"].is_null() ? nlohmann::json{{"rope_type", "default"}} : json["rope_scaling"];
    rope["rope_theta"] = json["rope_theta"];
    json.erase("rope_scaling"), json.erase("rope_theta");
    json["rope_parameters"] = rope;
    CHECK(model_flags(parse_hf_config(json.dump(), "config.json").model) == model_flags(older));
    CHECK((older.rope.kind == RopeKind::kDefault) == (g.name == kLlama.name));
  }
}

TEST_CASE("parameters of a rotary scaling are refused where they are unused") {
  const auto load = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--model.arch", "llama"};
    flags.insert(flags.end(), more.begin(), more.end());
    return load_config({.flags = flags}).config.model;
  };
  CHECK(load({"--model.rope_scaling", "linear", "--model.rope_factor", "4"}).rope.factor == 4);
  CHECK_THROWS_WITH(load({"--model.rope_factor", "4"}), Catch::Contains("model.rope_scaling default does not read it"));
  CHECK_THROWS_WITH(load({"--model.rope_scaling", "linear", "--model.rope_beta_fast", "4"}),
                    Catch::Contains("rope_beta_fast"));
  CHECK_THROWS_WITH(load({"--model.rope_scaling", "llama3", "--model.rope_high_freq_factor", "1"}),
                    Catch::Contains("is not above model.rope_low_freq_factor 1"));
  CHECK_THROWS_WITH(load({"--model.position", "learned", "--model.rope_scaling", "yarn"}), Catch::Contains("learned"));
}

TEST_CASE("decisions that a Gemma does not combine are refused") {
  const auto load = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--model.arch", "gemma3"});
    return load_config({.flags = flags}).config.model;
  };
  CHECK((load({}).rope_local_theta == 1e4 && load({}).head_dim == 256 && load({}).tied));
  CHECK_THROWS_WITH(load({"--model.norm", "layer_norm"}),
                    Catch::Contains("weights of a layer norm are stored as they are"));
  CHECK_THROWS_WITH(load({"--model.qk_norm", "row"}), Catch::Contains("but model.norm_zero_centered is true"));
  CHECK_THROWS_WITH(load({"--model.window", "0", "--model.global_every", "0"}),
                    Catch::Contains("no block has a window"));
  CHECK_THROWS_WITH(load({"--model.rope_local_theta", "0.5"}), Catch::Contains("0.5: no frequency falls"));
  CHECK_THROWS_WITH(load({"--model.position", "learned"}), Catch::Contains("positions are learned"));
}

TEST_CASE("the family sets defaults, and explicit values win") {
  const auto load = [](std::vector<std::string> flags) { return load_config({.flags = std::move(flags)}).config; };
  const ModelConfig plain = load({}).model, llama = load({"--model.arch", "llama"}).model;
  CHECK((plain.norm == NormKind::kLayer && plain.position == PositionKind::kLearned && plain.tied && plain.mlp_bias));
  CHECK((llama.norm == NormKind::kRms && llama.position == PositionKind::kRotary && !llama.tied && !llama.mlp_bias));
  CHECK((llama.gated && llama.activation == Activation::kSilu && llama.ffn == 2048));
  const Config mixed = load({"--model.arch", "llama", "--model.norm", "layer_norm", "--model.tied", "true"});
  CHECK((mixed.model.norm == NormKind::kLayer && mixed.model.tied && mixed.model.gated));
  CHECK_THROWS_WITH(load({"--model.arch", "lama"}), Catch::Contains("did you mean llama"));
  CHECK_THROWS_WITH(load({"--model.norm", "rms"}), Catch::Contains("layer_norm or rms_norm"));
  CHECK_THROWS_WITH(load({"--model.position", "rotary", "--model.head_dim", "7"}), Catch::Contains("even"));
}

TEST_CASE("a run does not resume as another family, and an export that would lose a setting is refused") {
  TempDir dir;
  const std::string run =
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 40 --model.seq 8 --data.train "
      "mock "
      "--device.kind cpu --log.tensorboard false --train.micro_batch 2 --train.global_batch 2 --log.name x ";
  must(run + "--train.steps 2 --model.arch llama --model.norm layer_norm", dir);
  const Outcome other = gpttrain(run + "--train.steps 4", dir.path());
  INFO(other.out);
  CHECK(other.code == 2);
  CHECK(other.prints("model.arch"));
  const Outcome lost = gpttrain("export --load runs/x --output hf", dir.path());
  INFO(lost.out);
  CHECK(lost.code == 2);
  CHECK(lost.prints("model.norm layer_norm, where Hugging Face's llama has rms_norm"));
  must("export --load runs/x --naming native --output native", dir);
  // Dropout acts in training alone.
  must(run + "--log.name y --train.steps 1 --model.arch llama --model.dropout 0.1", dir);
  CHECK(must("export --load runs/y --output y", dir).prints("model.dropout 0.1 is not in config.json"));
  must(run + "--log.name z --train.steps 1 --model.dropout 0.1", dir);
  CHECK_FALSE(must("export --load runs/z --output z", dir).prints("not in config.json"));
}

TEST_CASE("a model given by Megatron's flags alone is exported as the family whose model it is") {
  TempDir dir;
  const std::string run =
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.ffn 32 --model.vocab 40 --model.seq 8 --data.train "
      "mock --device.kind cpu --log.tensorboard false --train.micro_batch 2 --train.global_batch 2 --train.steps 1 ";
  must(run + "--log.name ours --model.arch llama --model.norm_eps 1e-5 --model.tied false", dir);
  must(run +
           "--log.name theirs --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
           "--untie-embeddings-and-output-weights",
       dir);
  must("export --load runs/ours --output ours", dir);
  const Outcome r = must("export --load runs/theirs --output theirs", dir);
  CHECK(r.prints("model.arch is gpt2, but the model is that of llama: exported as LlamaForCausalLM"));
  for (const char* file : {"config.json", "model.safetensors"})
    CHECK(read_file(dir / "theirs/" + file) == read_file(dir / "ours/" + file));
}
