// Quantization-aware training: the computed weights are those of an int8 export; straight-through gradients; layouts,
// checkpoints and evaluation.
#include "checkpoint/store/vfs.h"
#include "checkpoint/weights/int8_rows.h"
#include "checkpoint/weights/weights.h"
#include "launch/config/config.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/verify/verifier.h"
#include "launch/tools/weights/loaded_model.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun small(MeshShape mesh, bool int8) {
  MeshRun run;
  run.engine.model = {.layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocab = 300, .seq = 16};
  run.engine.loss_chunk = 16;
  run.engine.lr = {.type = "constant", .peak = 1e-2, .total_steps = 30};
  run.engine.precision.int8 = int8;
  run.engine.micro_batch = 1;
  run.engine.threads = 1;
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 1;
  run.samples = synthetic_samples(32, 16, 300, 3);
  return run;
}

// Returns the dequantized weights that training computes with, by name.
Logical codes_of(const Logical& weights) {
  Logical out;
  for (const auto& [name, w] : weights) {
    const bool matrix = name.find("bias") == std::string::npos && name.find("norm") == std::string::npos;
    const int64_t cols = name.find("mlp.down") != std::string::npos ? 64 : 32;
    out[name] = matrix ? restore_rows(quantize_rows(w, static_cast<int64_t>(w.size()) / cols)) : w;
  }
  return out;
}

}  // namespace

TEST_CASE("in its first step a quantized model has the gradients of a plain one with the quantized weights") {
  MeshRun begin = small({}, false);
  begin.every_step = true;
  const MeshResult plain = run_mesh(begin);  // for its initial weights
  const Logical codes = codes_of(plain.initial);
  MeshRun of_codes = small({}, false), quantized = small({}, true);
  of_codes.weights = &codes;
  quantized.weights = &plain.initial;
  const MeshResult a = run_mesh(quantized), b = run_mesh(of_codes);
  CHECK(a.losses[0] == Approx(b.losses[0]).epsilon(1e-6));
  CHECK(a.losses[0] != plain.losses[0]);
  const auto [name, error] = worst_error(a.grads, b.grads);
  INFO(name);
  CHECK(error < 1e-5);
}

TEST_CASE("a quantized model learns, its quantizer state converges, and is equal on every rank") {
  MeshRun run = small({.pp = 2, .dp = 2, .tp = 2}, true);
  run.engine.partition = "1,1";
  run.engine.sequence_parallel = true;
  run.steps = 8;
  const MeshResult cut = run_mesh(run);
  run = small({}, true);
  run.steps = 8;
  const MeshResult one = run_mesh(run);
  CHECK(one.losses.back() < 0.97 * one.losses.front());
  size_t ranges = 0;
  for (const auto& [name, limit] : one.state) {
    if (name.rfind("limit/", 0) != 0) continue;
    INFO(name);
    ++ranges;
    REQUIRE(limit.size() == 1);
    CHECK(limit[0] > 0);
    CHECK(cut.state.at(name)[0] == Approx(limit[0]).epsilon(0.05));
  }
  CHECK(ranges == 2 * 4 + 1);  // four linears per block, and the head
}

TEST_CASE("quantized layouts are close to one rank") {
  Verifier verifier({.steps = 3});
  for (const std::string flags :
       {"--tp 2", "--tp 2 --pp 2 --dp 2 --zero 3 --zero.persist_numel 0", "--dp 2 --amp O2",
        "--model.arch llama --model.ffn 64 --tp 2 --parallel.sequence_parallel true",
        "--model.arch qwen3 --model.ffn 64 --model.head_dim 12 --model.kv_heads 2 --tp 4",
        "--model.arch qwen3 --model.ffn 64 --model.head_dim 12 --pp 2 --dp 2 --amp O2 --parallel.recompute selective",
        "--model.arch olmo2 --model.ffn 64 --tp 2 --pp 2 --parallel.sequence_parallel true",
        "--model.arch gemma2 --model.ffn 64 --model.head_dim 12 --tp 2 --dp 2 --parallel.recompute full"}) {
    ConfigSource source;
    std::istringstream words(
        "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --precision.qat int8 "
        "--train.micro_batch 2 --train.grad_accum 2 --schedule.type constant --optim.lr 1e-3 " +
        flags);
    for (std::string w; words >> w;) source.flags.push_back(w);
    const VerifyResult v = verifier.check(load_config(source).config);
    const Difference* d = v.bad();
    INFO(flags << ": " << (d ? cat(d->name, ' ', d->error, " step ", d->step) : "equal"));
    CHECK(d == nullptr);
  }
}

namespace {
const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --optim.lr 3e-3 --device.kind cpu --log.tensorboard false "
    "--launch.ranks threads --train.steps 6 --checkpoint.every 3 ";

std::vector<double> losses_of(const TempDir& dir, const std::string& name) {
  return logged(dir / ("runs/" + name), "loss");
}
}  // namespace

TEST_CASE("an int8 export stores the quantized values that training computed with, bitwise") {
  TempDir dir;
  const Outcome run = gpttrain(kTiny + "--precision.qat int8 --log.name q", dir.path());
  INFO(run.out);
  REQUIRE(run.code == 0);
  CHECK(run.prints("weights and inputs of linear layers quantized to int8"));
  REQUIRE(gpttrain("export --load runs/q --dtype int8 --output out", dir.path()).code == 0);
  Vfs vfs;
  const auto file = open_safetensors(vfs, dir / "out");
  std::map<std::string, std::vector<float>> stored;
  for (size_t k = 0; k < file->list().size(); ++k) stored[file->list()[k].name] = file->read(k);
  const auto model = load_model(dir / "runs/q", {"--device.kind", "cpu"});
  size_t matrices = 0;
  for (const Parameter* p : model->engine->store().parameters()) {
    const auto scale = stored.find(p->name + ".scale");
    if (scale == stored.end() || !p->tied_to.empty()) continue;
    INFO(p->name);
    ++matrices;
    const std::vector<float> codes = restore_rows({stored.at(p->name), scale->second});
    const float* value = p->value.as<float>();
    CHECK(std::equal(codes.begin(), codes.end(), value));
  }
  CHECK(matrices == 2 + 2 * 4);
}

TEST_CASE("a quantized run resumes from its checkpoint bitwise, and from one that was not quantized") {
  TempDir dir;
  const std::string run = kTiny + "--precision.qat int8 ";
  REQUIRE(gpttrain(run + "--dp 2 --log.name whole", dir.path()).code == 0);
  const auto whole = losses_of(dir, "whole");
  REQUIRE(whole.size() == 6);
  const auto copy = [&](const std::string& from, const std::string& to) {
    REQUIRE(shell("mkdir -p runs/" + to + " && cp -r runs/" + from + "/checkpoints runs/" + to, dir.path()).code == 0);
  };
  copy("whole", "part");
  const Outcome part = gpttrain(run +
                                    "--pp 2 --dp 2 --zero 3 --zero.persist_numel 0 --zero.grad_reduce end "
                                    "--checkpoint.resume 3 --log.name part",
                                dir.path());
  INFO(part.out);
  REQUIRE(part.code == 0);
  CHECK(losses_of(dir, "part") == std::vector<double>(whole.begin() + 3, whole.end()));
  REQUIRE(gpttrain(kTiny + "--log.name plain", dir.path()).code == 0);
  copy("plain", "later");
  const Outcome later =
      gpttrain(run + "--checkpoint.allow_change precision --checkpoint.resume 3 --log.name later", dir.path());
  INFO(later.out);
  REQUIRE(later.code == 0);
  const auto plain = losses_of(dir, "plain"), after = losses_of(dir, "later");
  REQUIRE(after.size() == 3);
  CHECK(after[0] != plain[3]);
  CHECK(after[2] == Approx(plain[5]).epsilon(0.02));
}
