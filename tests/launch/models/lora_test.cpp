// LoRA: only adapters are trained, every layout equals one rank, PEFT trains the same (tests/readers/peft_steps.py) and
// reads what is exported; merged weights predict the same.
#include <cstring>
#include <filesystem>

#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/verify/verifier.h"
#include "launch/tools/weights/lora_weights.h"
#include "launch/tools/weights/model_weights.h"
#include "tests/launch/models/hf_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/hf_" + name; }

bool is_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

MeshRun small(bool llama, LoraConfig lora) {
  MeshRun run;
  ModelConfig m;
  if (llama) static_cast<TransformerConfig&>(m) = find_family("llama")->defaults;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = llama ? 2 : 4, m.ffn = 64, m.vocab = 300, m.seq = 16;
  lora.separate_qkv = llama;
  m.lora = std::move(lora);
  run.engine.model = m;
  run.engine.loss_chunk = 16;
  run.engine.lr = {.type = "constant", .peak = 1e-2, .total_steps = 30};
  run.engine.micro_batch = 1;
  run.engine.threads = 1;
  run.global_batch = 8;
  run.steps = 3;
  run.stir = true;
  run.samples = synthetic_samples(24, 16, 300, 3);
  return run;
}

}  // namespace

TEST_CASE("adapters alone have gradients and optimizer state, and the base stays bitwise as it was") {
  for (const bool llama : {false, true}) {
    MeshRun run = small(llama, {.rank = 4, .alpha = 8, .dropout = 0.1});
    run.every_step = true;
    const MeshResult one = run_mesh(run);
    size_t adapters = 0;
    for (const auto& [name, before] : one.initial) {
      INFO(name);
      adapters += is_adapter(name);
      CHECK((one.weights.at(name) == before) == !is_adapter(name));
      CHECK(one.grads.count(name) == (is_adapter(name) ? 1 : 0));
      CHECK(one.state.count("exp_avg/" + name) == (is_adapter(name) ? 1 : 0));
    }
    CHECK(adapters == 2 * 4 * 2);  // A and B of four layers of two blocks
  }
}

namespace {

// Gradients of adapters by those of the merged weights: dB = s dW A^T and dA = s B^T dW of each block, in f64.
Logical adapter_gradients(const ModelConfig& m, const Logical& values, const Logical& merged) {
  const ModelSpec spec = describe(m);
  Logical out;
  for (const ParamSpec& w : spec.params) {
    const std::string linear = w.name.substr(0, w.name.rfind('.'));
    if (!w.name.ends_with(".weight") || spec.find(linear + ".lora_a") == nullptr) continue;
    const std::vector<float>&a = values.at(linear + ".lora_a"), &b = values.at(linear + ".lora_b"),
          &dw = merged.at(w.name);
    const auto in = static_cast<size_t>(w.shape[1]), rank = static_cast<size_t>(m.lora.rank);
    std::vector<double> da(a.size()), db(b.size());
    const std::vector<int> blocks = lora_blocks(m, linear.substr(linear.find('.', 7) + 1));
    for (size_t k = 0; k < blocks.size(); ++k) {
      const BlockRange rows =
          blocks[k] < 0 ? BlockRange{0, w.shape[0]} : local_block(w.shard.tp(), w.shape[0], blocks[k], 1);
      for (auto r = static_cast<size_t>(rows.first); r < static_cast<size_t>(rows.first + rows.count); ++r)
        for (size_t j = 0; j < rank; ++j)
          for (size_t c = 0; c < in; ++c) {
            db[r * rank + j] += m.lora.scale() * double{dw[r * in + c]} * a[(k * rank + j) * in + c];
            da[(k * rank + j) * in + c] += m.lora.scale() * double{dw[r * in + c]} * b[r * rank + j];
          }
    }
    out[linear + ".lora_a"] = {da.begin(), da.end()};
    out[linear + ".lora_b"] = {db.begin(), db.end()};
  }
  return out;
}

}  // namespace

TEST_CASE("gradients of adapters are those of the merged weights, projected") {
  for (const bool llama : {false, true})
    for (const bool some : {false, true}) {
      MeshRun run = small(llama, {.rank = 4, .alpha = 8});
      if (some) run.engine.model.lora.targets = {llama ? "k" : "qkv", "down"};
      run.steps = 1;
      run.every_step = true;
      ModelConfig model;
      static_cast<TransformerConfig&>(model) = run.engine.model;
      const MeshResult adapted = run_mesh(run);
      AdapterMerge merge(model, [&](const std::string& name, int64_t) { return adapted.initial.at(name); });
      Logical merged;
      for (const auto& [name, value] : adapted.initial) {
        if (is_adapter(name)) continue;
        merge.add_to(name, 0, merged[name] = value);
      }
      MeshRun plain = small(llama, {});
      plain.steps = 1;
      plain.weights = &merged;
      const MeshResult whole = run_mesh(plain);
      CHECK(adapted.losses[0] == Approx(whole.losses[0]).epsilon(1e-6));
      const Logical expected = adapter_gradients(model, adapted.initial, whole.grads);
      REQUIRE(expected.size() == adapted.grads.size());
      const auto [name, error] = worst_error(adapted.grads, expected);
      INFO((llama ? "llama " : "gpt2 ") << name);
      CHECK(error < 1e-5);
    }
}

TEST_CASE("every layout trains the adapters that one rank trains") {
  const bool llama = GENERATE(false, true);
  LoraConfig lora{.rank = 4, .alpha = 8, .dropout = 0.1};
  if (GENERATE(false, true))
    lora.targets = llama ? std::vector<std::string>{"v", "up"} : std::vector<std::string>{"out"};
  const MeshResult one = run_mesh(small(llama, lora));
  struct Layout {
    MeshShape mesh;
    int zero = 1;
    bool sequence_parallel = false;
    Recompute recompute = Recompute::kNone;
  };
  const int shared = llama ? 2 : 1;  // TP ranks that hold the same KV head
  for (const Layout& l :
       {Layout{{.tp = 2}}, Layout{{.tp = 2}, 1, true}, Layout{{.pp = 2, .tp = 2}, 0, true}, Layout{{.dp = 2}, 0},
        Layout{{.dp = 4}, 2}, Layout{{.dp = 2}, 3}, Layout{{.pp = 2, .dp = 2}, 3, false, Recompute::kFull},
        Layout{{.dp = 2, .tp = 4, .kv_ranks = shared}, 3, true, Recompute::kSelective}}) {
    INFO((llama ? "llama" : "gpt2") << " pp " << l.mesh.pp << " dp " << l.mesh.dp << " tp " << l.mesh.tp << " zero "
                                    << l.zero);
    MeshRun run = small(llama, lora);
    run.mesh = l.mesh;
    run.engine.sequence_parallel = l.sequence_parallel;
    run.engine.recompute = l.recompute;
    run.engine.zero.stage = l.zero;
    run.engine.zero.persist_numel = 0;
    const MeshResult cut = run_mesh(run);
    REQUIRE(cut.losses.size() == one.losses.size());
    for (size_t k = 0; k < one.losses.size(); ++k) CHECK(cut.losses[k] == Approx(one.losses[k]).epsilon(1e-5));
    CHECK(cut.norms[0] == Approx(one.norms[0]).epsilon(1e-5));
    CHECK(cut.stale.empty());
    REQUIRE(cut.grads.size() == one.grads.size());
    const auto [name, error] = worst_error(cut.grads, one.grads);
    INFO(name);
    CHECK(error < 1e-5);
    for (const auto& [frozen, value] : one.weights)
      if (!is_adapter(frozen)) CHECK(cut.weights.at(frozen) == value);
  }
}

TEST_CASE("mixed precision trains adapters on a 16-bit base") {
  const bool llama = GENERATE(false, true);  // GPT-2's head is tied: at O1 a 16-bit copy of an f32 table
  for (const int level : {1, 2, 3}) {
    INFO((llama ? "llama" : "gpt2") << " O" << level);
    MeshRun run = small(llama, {.rank = 4, .alpha = 8});
    run.engine.precision.level = level;
    run.steps = 8;
    run.every_step = true;
    const MeshResult one = run_mesh(run);
    CHECK(one.losses.back() < one.losses.front());
    run.engine.zero.stage = 3;
    run.engine.zero.persist_numel = 0;
    for (const MeshShape& mesh : {MeshShape{.dp = 2, .tp = 2}, MeshShape{.pp = 2, .dp = 2}}) {
      run.mesh = mesh;
      const MeshResult cut = run_mesh(run);
      CHECK(cut.losses[0] == Approx(one.losses[0]).epsilon(2e-3));
      CHECK(cut.stale.empty());
      for (const auto& [name, before] : one.initial)
        if (!is_adapter(name)) CHECK((one.weights.at(name) == before && cut.weights.at(name) == before));
    }
  }
}

namespace {

// Values of weights that a run holds in int8: codes times the scale of their row. Others as they are.
Logical dequantized(const MeshResult& r) {
  Logical out = r.weights;
  for (auto& [name, values] : out) {
    const auto scales = r.state.find("scale/" + name);
    if (scales == r.state.end()) continue;
    const size_t cols = values.size() / scales->second.size();
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scales->second[i / cols];
  }
  return out;
}

// A run whose learning rate moves nothing: its result has the initial weights.
MeshRun at_rest(MeshRun run) {
  run.engine.lr.peak = 1e-30;
  run.steps = 1;
  return run;
}

size_t int8_weights(const MeshResult& r) {
  return static_cast<size_t>(
      std::count_if(r.state.begin(), r.state.end(), [](const auto& x) { return x.first.starts_with("scale/"); }));
}

}  // namespace

TEST_CASE("a base held in int8 is the nearest code of each weight and trains as its dequantized values do") {
  const bool llama = GENERATE(false, true);
  for (const int level : {0, 1, 2}) {
    INFO((llama ? "llama" : "gpt2") << " O" << level);
    MeshRun run = small(llama, {.rank = 4, .alpha = 8, .dropout = 0.1});
    run.engine.precision.level = level;
    const Logical exact = run_mesh(at_rest(run)).weights;
    run.engine.precision.frozen_int8 = true;
    const Logical values = dequantized(run_mesh(at_rest(run)));
    const MeshResult held = run_mesh(run);
    REQUIRE(int8_weights(held) == 8);
    for (const auto& [name, scales] : held.state) {
      if (!name.starts_with("scale/")) continue;
      INFO(name);
      const std::string weight = name.substr(6);
      const std::vector<float>&codes = held.weights.at(weight), &was = exact.at(weight), &is = values.at(weight);
      const size_t cols = codes.size() / scales.size();
      for (size_t row = 0; row < scales.size(); ++row) {
        float most = 0;
        for (size_t i = row * cols; i < (row + 1) * cols; ++i) {
          most = std::max(most, std::fabs(codes[i]));
          // Half a step; from O2 on the value compared with was rounded to bf16.
          if (!(std::fabs(is[i] - was[i]) <= scales[row] / 2 + 0x1p-8f * std::fabs(was[i])))
            FAIL_CHECK("element " << i);
        }
        if (most != 127) FAIL_CHECK("row " << row << " uses codes up to " << most);
      }
    }
    MeshRun plain = run;
    plain.engine.precision.frozen_int8 = false;
    plain.weights = &values;
    const MeshResult floats = run_mesh(plain);
    CHECK(held.losses == floats.losses);
    CHECK(held.norms == floats.norms);
    CHECK(held.grads == floats.grads);
    for (const auto& [name, value] : floats.weights)
      if (is_adapter(name)) CHECK(held.weights.at(name) == value);
  }
}

TEST_CASE("every layout trains the adapters that one rank trains on a base held in int8") {
  const bool llama = GENERATE(false, true);
  MeshRun run = small(llama, {.rank = 4, .alpha = 8, .dropout = 0.1});
  run.engine.precision.frozen_int8 = true;
  const MeshResult one = run_mesh(run);
  struct Layout {
    MeshShape mesh;
    int zero = 1;
    bool sequence_parallel = false;
    Recompute recompute = Recompute::kNone;
    const char* schedule = "1f1b";
  };
  const int shared = llama ? 2 : 1;
  for (const Layout& l :
       {Layout{{.tp = 2}}, Layout{{.tp = 2}, 1, true}, Layout{{.pp = 2, .tp = 2}, 0, true}, Layout{{.dp = 2}, 0},
        Layout{{.dp = 4}, 2}, Layout{{.dp = 2}, 3}, Layout{{.pp = 2, .dp = 2}, 3, false, Recompute::kFull},
        Layout{{.pp = 2}, 0, false, Recompute::kSelective, "zb-h1"},
        Layout{{.dp = 2, .tp = 4, .kv_ranks = shared}, 3, true, Recompute::kSelective}}) {
    INFO((llama ? "llama" : "gpt2") << " pp " << l.mesh.pp << " dp " << l.mesh.dp << " tp " << l.mesh.tp << " zero "
                                    << l.zero << " " << l.schedule);
    run.mesh = l.mesh;
    run.engine.sequence_parallel = l.sequence_parallel;
    run.engine.recompute = l.recompute;
    run.engine.schedule = l.schedule;
    run.engine.zero.stage = l.zero;
    run.engine.zero.persist_numel = 0;
    const MeshResult cut = run_mesh(run);
    for (size_t k = 0; k < one.losses.size(); ++k) CHECK(cut.losses[k] == Approx(one.losses[k]).epsilon(1e-5));
    CHECK(cut.norms[0] == Approx(one.norms[0]).epsilon(1e-5));
    CHECK(cut.stale.empty());
    const auto [name, error] = worst_error(cut.grads, one.grads);
    INFO(name);
    CHECK((cut.grads.size() == one.grads.size() && error < 1e-5));
    REQUIRE(int8_weights(cut) == 8);
    for (const auto& [state, value] : one.state)
      if (state.starts_with("scale/")) CHECK(cut.state.at(state) == value);
    for (const auto& [frozen, value] : one.weights)
      if (!is_adapter(frozen)) CHECK(cut.weights.at(frozen) == value);
    for (size_t r = 0; r < cut.planned.size(); ++r) {
      const int64_t planned = cut.planned[r].memory.weights, measured = cut.measured[r].memory.weights;
      // Evaluation, which is planned and does not run here, prefetches other units at stage 3.
      CHECK((l.zero < 3 ? planned == measured : planned >= measured));
    }
  }
}

TEST_CASE("a base held in int8 takes a byte a weight and a scale a row besides the units in use") {
  MeshRun run = small(true, {.rank = 4, .alpha = 8});
  run.engine.model.layers = 8;
  run.steps = 1;
  const int64_t plain = run_mesh(run).measured[0].memory.weights;
  run.engine.precision.frozen_int8 = true;
  const MeshResult r = run_mesh(run);
  int64_t saved = 0, block = 0;
  for (const auto& [name, values] : r.weights)
    if (r.state.count("scale/" + name) != 0) {
      const auto rows = static_cast<int64_t>(r.state.at("scale/" + name).size());
      const int64_t bytes = 4 * static_cast<int64_t>(values.size());
      saved += bytes - (bytes / 4 + 4 * rows);
      block += name.starts_with("layers.0.") ? bytes : 0;
    }
  REQUIRE(saved > 4 * block);
  // At most two blocks are dequantized; buffers are rounded up to 256 bytes.
  const int64_t now = r.measured[0].memory.weights;
  CHECK(now >= plain - saved + block);
  CHECK(now <= plain - saved + 2 * block + 8 * 4 * 256);
}

namespace {

// PEFT's tensors as our parameters.
Logical native_adapters(const ModelConfig& m, const Logical& theirs, const std::string& prefix) {
  const ModelSpec spec = describe(m);
  Logical out;
  for (const PeftTensor& t : peft_tensors(m)) {
    std::vector<float>& to = out[t.native];
    to.resize(static_cast<size_t>(spec.param(t.native).shape.numel()));
    const std::vector<float>& from = theirs.at(prefix + t.name);
    REQUIRE(static_cast<int64_t>(from.size()) == t.rows * t.columns);
    std::copy(from.begin(), from.end(), to.begin() + t.first_row * t.columns);
  }
  return out;
}

std::string hf_python() { return source_dir() + "/build/hf/bin/python"; }

bool has_peft() {
  return std::filesystem::exists(hf_python()) && shell(hf_python() + " -c 'import peft'", ".").code == 0;
}

void check_steps(const std::string& name, const std::string& modules, std::vector<std::string> targets) {
  TempDir dir;
  const std::string base = golden(name);
  const Outcome r =
      shell(hf_python() + " " + source_dir() + "/tests/readers/peft_steps.py " + base + " out 3 7 " + modules,
            dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  Vfs vfs;
  const PeftFolder adapter(vfs, dir / "out/adapter", [](const std::string& folder) {
    return parse_hf_config(read_file(folder + "/config.json"), "config.json").model;
  });
  const ModelConfig& model = adapter.model();
  CHECK((model.lora.rank == 3 && model.lora.alpha == 7 && adapter.base() == base));
  CHECK(model.lora.targets == targets);
  const Logical theirs = tensors_of(dir / "out/steps.safetensors");
  const Logical grads = native_adapters(model, theirs, "grad.");
  ModelConfig plain = model;
  plain.lora = {};
  Logical base_tensors;  // some folders lack the prefix
  for (auto& [tensor, values] : tensors_of(base)) {
    const std::string prefix = family_of(model).prefix;
    base_tensors[tensor.rfind(prefix, 0) == 0 || tensor == "lm_head.weight" ? tensor : prefix + tensor] = values;
  }
  Logical weights = native_tensors(plain, base_tensors);
  weights.merge(native_adapters(model, tensors_of(dir / "out/adapter/adapter_model.safetensors"), ""));
  constexpr int64_t kLength = 16;
  if (const auto positions = weights.find("pos_embed.weight"); positions != weights.end())
    positions->second.resize(static_cast<size_t>(kLength * model.hidden));
  for (const MeshShape& mesh : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.pp = 2, .dp = 2}}) {
    INFO(name << ", tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    MeshRun run = adamw_run(model, mesh, 1e-2, 4, dir / "out/steps.safetensors");
    run.engine.model.seq = kLength;
    run.engine.model.dropout = run.engine.model.attn_dropout = 0;
    run.weights = &weights;
    const MeshResult ours = run_mesh(run);
    REQUIRE(run.steps == 4);
    for (size_t k = 0; k < 4; ++k) CHECK(ours.losses[k] == Approx(theirs.at("losses")[k]).epsilon(1e-5));
    REQUIRE(ours.grads.size() == grads.size());
    for (const auto& [parameter, expected] : grads) {
      INFO(parameter);
      CHECK(relative_error(ours.grads.at(parameter), expected) <= 1e-5);
    }
  }
}

}  // namespace

TEST_CASE("losses and gradients of adapters equal PEFT's over several steps") {
  if (!has_peft()) GT_SKIP("no peft for " + hf_python() + "; tests/readers/setup.sh installs it");
  check_steps(
      "llama",
      "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj",
      {"q", "k", "v", "out", "gate", "up", "down"});
  check_steps("qwen2", "self_attn.q_proj self_attn.v_proj mlp.up_proj", {"q", "v", "up"});
  check_steps("gpt2", "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj", {"qkv", "out", "up", "down"});
}

namespace {

constexpr const char* kTrain =
    "--data.train mock --train.global_batch 8 --train.micro_batch 2 --schedule.type constant --optim.lr 3e-2 "
    "--device.kind cpu --log.tensorboard false --launch.ranks threads ";

std::vector<std::vector<float>> logits_at(const std::string& run, const std::string& folder) {
  const auto model = load_model(run, {"--device.kind", "cpu"});
  std::vector<std::vector<float>> out;
  for (const Prompt& p : prompts_of(folder)) out.push_back(logits_of(*model, p.tokens));
  return out;
}

void check_logits(const std::vector<std::vector<float>>& ours, const std::vector<std::vector<float>>& others) {
  REQUIRE(ours.size() == others.size());
  for (size_t k = 0; k < ours.size(); ++k) CHECK(largest_difference(ours[k], others[k]) <= 1e-5);
}

// Logits that a script of tests/readers writes for the prompts of a folder.
std::vector<std::vector<float>> logits_by(const std::string& script, const std::string& model,
                                          const std::string& folder, const TempDir& dir) {
  std::string text;
  for (const Prompt& p : prompts_of(folder)) {
    for (const int32_t token : p.tokens) text += std::to_string(token) + " ";
    text += "\n";
  }
  write_file(dir / "prompts.txt", text);
  const Outcome r =
      shell(hf_python() + " " + source_dir() + "/tests/readers/" + script + " " + model + " prompts.txt logits.f32",
            dir.path(), 300);
  INFO(r.out);
  REQUIRE(r.code == 0);
  const std::string bytes = read_file(dir / "logits.f32");
  const size_t vocab = prompts_of(folder)[0].logits.size();
  std::vector<std::vector<float>> out(bytes.size() / 4 / vocab, std::vector<float>(vocab));
  for (size_t k = 0; k < out.size(); ++k) std::memcpy(out[k].data(), bytes.data() + k * vocab * 4, vocab * 4);
  return out;
}

}  // namespace

TEST_CASE("adapters on a Hugging Face folder are trained, resumed on another layout, merged, exported and imported") {
  for (const std::string name : {"llama", "gpt2"}) {
    INFO(name);
    TempDir dir;
    const std::string from = "--from " + golden(name) + " ", lora = "--model.lora_rank 2 --model.lora_alpha 8 ";
    const Outcome start = must(from + lora + kTrain + "--train.steps 4 --log.name whole", dir);
    if (name == "llama") {  // values of all parameters; gradients and two moments of the adapters
      CHECK(start.prints("11,020 parameters, 1,280 of them trained (LoRA of rank 2)"));
      CHECK(start.prints("gradients 5.1 kB, optimizer 10.2 kB"));
    }
    must(from + lora + kTrain + "--train.steps 2 --log.name parts", dir);
    must("--config runs/parts/config.json --train.steps 4 --train.grad_accum 2 --tp 2 --dp 2 --zero 3", dir);
    const std::vector<double> whole = logged(dir / "runs/whole", "loss"), parts = logged(dir / "runs/parts", "loss");
    REQUIRE((whole.size() == 4 && parts.size() == 4));
    for (size_t k = 0; k < 4; ++k) CHECK(parts[k] == Approx(whole[k]).epsilon(1e-5));

    must("export --load runs/whole --output merged", dir);
    must("export --load runs/whole --format peft --output adapter", dir);
    must("import --from merged --output m", dir);
    must("import --from adapter --output a", dir);
    const std::vector<std::vector<float>> trained = logits_at(dir / "runs/whole", golden(name));
    check_logits(logits_at(dir / "m", golden(name)), trained);
    check_logits(logits_at(dir / "a", golden(name)), trained);
    CHECK(largest_difference(trained[0], prompts_of(golden(name))[0].logits) > 1e-3);  // training changed them
    must("export --load a --format peft --output again", dir);
    CHECK(tensors_of(dir / "again/adapter_model.safetensors") == tensors_of(dir / "adapter/adapter_model.safetensors"));
    CHECK(
        must("--from adapter --log.name on " + std::string(kTrain) + "--train.steps 1", dir).prints("LoRA of rank 2"));

    if (!has_peft()) continue;
    check_logits(logits_by("hf_logits.py", "merged", golden(name), dir), trained);
    check_logits(logits_by("peft_logits.py", "adapter", golden(name), dir), trained);
  }
}

TEST_CASE("a base in int8 is read from a Hugging Face folder and resumed and merged and generates") {
  for (const std::string name : {"llama", "gpt2"}) {
    INFO(name);
    TempDir dir;
    const std::string from = "--from " + golden(name) + " ";
    const std::string lora = "--model.lora_rank 2 --model.lora_alpha 8 --precision.frozen_weights int8 ";
    const Outcome start = must(from + lora + kTrain + "--train.steps 4 --log.name whole", dir);
    CHECK(start.prints("(LoRA of rank 2, base in int8)"));
    must(from + lora + kTrain + "--train.steps 2 --log.name parts --pp 2 --dp 2 --zero 3 --zero.persist_numel 0", dir);
    must("--config runs/parts/config.json --train.steps 4 --train.grad_accum 2 --pp 1 --tp 2 --dp 2 --zero 1", dir);
    const std::vector<double> whole = logged(dir / "runs/whole", "loss"), parts = logged(dir / "runs/parts", "loss");
    REQUIRE((whole.size() == 4 && parts.size() == 4));
    for (size_t k = 0; k < 4; ++k) CHECK(parts[k] == Approx(whole[k]).epsilon(1e-5));
    must(
        "--config runs/whole/config.json --train.steps 4 --log.name same --checkpoint.resume never "
        "--checkpoint.load_from "
        "runs/whole --checkpoint.load weights --train.steps 1",
        dir);
    CHECK(must("ckpt ls runs/whole --json", dir).code == 0);

    must("export --load runs/whole --output merged", dir);
    must("export --load runs/whole --format peft --output adapter", dir);
    must("import --from merged --output m", dir);
    const std::vector<std::vector<float>> trained = logits_at(dir / "runs/whole", golden(name));
    check_logits(logits_at(dir / "m", golden(name)), trained);  // of the dequantized base
    CHECK(largest_difference(trained[0], prompts_of(golden(name))[0].logits) > 1e-3);
    if (has_peft()) check_logits(logits_by("hf_logits.py", "merged", golden(name), dir), trained);

    const auto refused = [&](const std::string& words, const std::string& reason) {
      const Outcome o = gpttrain(words, dir.path());
      INFO(o.out);
      CHECK(o.code == 2);
      CHECK(o.prints(reason));
    };
    refused("--config runs/whole/config.json --train.steps 5 --precision.frozen_weights same",
            "Frozen weights are i8 in runs with --precision.frozen_weights int8, and in no others");
    refused(from + kTrain + "--precision.frozen_weights int8",
            "precision.frozen_weights: int8: without adapters every weight is trained");
  }
}

TEST_CASE("what adapters cannot have is refused with what they can") {
  TempDir dir;
  const auto refused = [&](const std::string& words, const std::string& reason) {
    const Outcome o = gpttrain("--from " + golden("llama") + " " + kTrain + words, dir.path());
    INFO(o.out);
    CHECK(o.code == 2);
    CHECK(o.prints(reason));
  };
  refused("--model.lora_rank 2 --model.lora_targets gat", "did you mean gate?");
  refused("--model.lora_rank 2 --model.lora_targets c_attn", "any of qkv, q, k, v, out, gate, up, down");
  refused("--model.lora_alpha 2", "model.lora_rank is 0");
  refused("--model.lora_rank 2 --precision.qat int8", "precision.qat trains the weights that LoRA freezes");
  const Outcome peft = gpttrain("export --load runs/none --format peft --output x", dir.path());
  CHECK(peft.code == 2);
  must("import --from " + golden("llama") + " --output in", dir);
  const Outcome none = gpttrain("export --load in --format peft --output x", dir.path());
  INFO(none.out);
  CHECK((none.code == 2 && none.prints("has no adapters")));
}

TEST_CASE("a PEFT folder that cannot be imported is refused by setting and tensor") {
  TempDir dir;
  must("--from " + golden("llama") + " --model.lora_rank 2 --train.steps 1 --log.name a " + kTrain, dir);
  must("export --load runs/a --format peft --output good", dir);
  const std::string config = read_file(dir / "good/adapter_config.json");
  const auto outcome_of = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write_file(dir / "good/adapter_config.json", text.replace(at, from.size(), to));
    const Outcome o = gpttrain("import --from good --output in", dir.path());
    CHECK(o.code != 0);
    return o;
  };
  CHECK(outcome_of("\"LORA\"", "\"IA3\"").prints("peft_type: IA3, expected LORA"));
  CHECK(outcome_of("\"bias\": \"none\"", "\"bias\": \"all\"").prints("bias: all, expected none"));
  CHECK(outcome_of("\"r\": 2", "\"r\": 2.5").prints("r: "));
  CHECK(outcome_of("\"r\": 2", "\"r\": 3").prints("lora_A.weight: [2, "));
  CHECK(outcome_of("\"r\": 2", "\"use_dora\": true, \"r\": 2").prints("use_dora: "));
  CHECK(outcome_of("hf_llama\"", "nowhere\"").prints("is not a folder of this machine"));
  write_file(dir / "good/adapter_config.json", config);
  std::filesystem::remove(dir / "good/adapter_model.safetensors");
  CHECK(gpttrain("import --from good --output in", dir.path()).prints("adapter_model.safetensors: does not exist"));
}
