// FLOPs table by module: its sums match the formula, its times match the ops, and a run prints it.
#include <fmt/format.h>

#include <map>
#include <sstream>

#include "launch/engine/measure/module_flops.h"
#include "launch/engine/measure/module_timer.h"
#include "launch/engine/measure/step_ops.h"
#include "parallel/comm/self_group.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

ModelSpec model(bool tied) {
  return describe(
      {.layers = 3, .hidden = 24, .heads = 4, .kv_heads = 2, .ffn = 60, .vocab = 300, .seq = 16, .tied = tied});
}

}  // namespace

TEST_CASE("the modules' parameters and FLOPs add up to the model's, with dropped layers and shorter sequences too") {
  for (const bool tied : {true, false}) {
    const ModelSpec c = model(tied);
    const auto sums = [](const std::vector<ModuleCost>& leaves) {
      std::pair<int64_t, double> out;
      for (const ModuleCost& m : leaves) out.first += m.parameters, out.second += m.flops;
      return out;
    };
    const auto [parameters, flops] = sums(module_costs(c, 64, 16));
    CHECK(parameters == c.parameters());
    CHECK(3 * flops == c.train_flops(64));
    CHECK(3 * sums(module_costs(c, 32, 8)).second == c.train_flops(32, 8));
    CHECK(3 * sums(module_costs(c, 64, 16, std::vector<double>{1, 0, 0.5})).second == c.train_flops(64, 16, 2));
    TransformerConfig windows = c.config;
    windows.window = 4, windows.global_every = 3;
    const ModelSpec w = describe(windows);
    CHECK(3 * sums(module_costs(w, 64, 16)).second == w.train_flops(64));
    CHECK(w.train_flops(64) < c.train_flops(64));
  }
}

TEST_CASE("an op belongs to the module of its parameter, without one to a leaf of the block before it") {
  ModuleTimer timer;
  const std::string qkv = "layers.1.attn.qkv.weight", down = "layers.1.mlp.down.weight";
  timer.add(Leaf::kOfParameter, Direction::kForward, &qkv, 1);
  timer.add(Leaf::kAttentionCore, Direction::kForward, nullptr, 2);
  timer.add(Leaf::kOfParameter, Direction::kBackward, &down, 4);
  timer.add(Leaf::kActivation, Direction::kBackward, nullptr, 8);
  timer.add(Leaf::kAttentionCore, Direction::kBackward, nullptr, 16);
  timer.add(Leaf::kOfParameter, Direction::kNeither, nullptr, 32);
  CHECK(timer.modules().at("layers.1.attn.qkv").forward == 1);
  CHECK(timer.modules().at("layers.1.attn.core").forward == 2);
  CHECK(timer.modules().at("layers.1.mlp.down").backward == 4 + 32);
  CHECK(timer.modules().at("layers.1.mlp.act").backward == 8);
  CHECK(timer.modules().at("layers.1.attn.core").backward == 16);
  std::vector<ModuleCost> leaves = module_costs(model(true), 64, 16);
  SelfGroup alone;
  timer.share(alone, leaves);
  for (const ModuleCost& m : leaves)
    if (m.name == "layers.1.attn.core") CHECK((m.forward == 2 && m.backward == 16));
}

TEST_CASE("the GEMMs of a tied head are the head's, whose table is the embedding's") {
  const std::string table = "embed.weight", head = "head.weight";
  CHECK(counted_parameter(table, OpClass::kGemm) == head);
  CHECK(counted_parameter(table, OpClass::kEmbedding) == table);
  CHECK(counted_parameter("layers.0.mlp.up.weight", OpClass::kGemm) == "layers.0.mlp.up.weight");
  // The same ops with the same parameters, tied or not: those of the head are named alike.
  const auto heads = [](bool tied) {
    EngineOptions o;
    o.model = {.layers = 1, .hidden = 16, .heads = 2, .ffn = 32, .vocab = 64, .seq = 8, .tied = tied};
    std::map<std::string, int64_t> out;
    for (const OpCall& c : step_ops(o, {}, 0))
      if (c.op == std::string("gemm") && (c.what.starts_with("head") || c.what.starts_with("embed")))
        out[c.what] += c.calls;
    return out;
  };
  CHECK(heads(true) == heads(false));
  CHECK(heads(true).size() == 3);
}

TEST_CASE("the table sums levels of the tree, names the largest and has the requested depth") {
  std::vector<ModuleCost> leaves = module_costs(model(true), 64, 16);
  for (ModuleCost& m : leaves) m.forward = 1e-3, m.backward = 2e-3;
  FlopsTable t{.step = 7, .top = 2, .replicas = 2, .step_seconds = 0.1, .batch = "4 sequences of 16 tokens"};
  const std::string all = flops_table(leaves, t);
  INFO(all);
  CHECK_THAT(all, Contains("FLOPs of step 7: 4 sequences of 16 tokens"));
  CHECK_THAT(all, Contains("level 1: most parameters embed 7200") && Contains("    layers.2"));
  CHECK_THAT(all, Contains("level 3: ") && Contains("layers.0.mlp.up") && Contains("      qkv"));
  CHECK_THAT(all, Contains("modules forward 28.0 ms and backward 56.0 ms"));
  t.depth = 1;
  const std::string top = flops_table(leaves, t);
  CHECK_THAT(top, Contains("    layers.2") && !Contains("qkv") && !Contains("level 2"));
  t.detailed = false;
  CHECK_THAT(flops_table(leaves, t), Contains("level 1") && !Contains("module   "));
  t.recompute_factor = 1;
  const double flops = model(true).train_flops(64);
  CHECK_THAT(flops_table(leaves, t), Contains(fmt::format("{:.3e}", flops / 3 * 4)));
}

TEST_CASE("a run prints the table after the requested step, with any layout") {
  TempDir dir;
  write_file(dir / "ds.json", R"({"train_batch_size": 4, "flops_profiler": {"enabled": true, "profile_step": 2,
      "module_depth": -1, "top_modules": 3, "detailed": true, "recompute_fwd_factor": 1.0}})");
  const std::string run =
      "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--device.kind cpu --launch.ranks threads --checkpoint.every 0 --log.tensorboard false --train.steps 3 ";
  const Outcome r = gpttrain(run + "--deepspeed_config ds.json --pp 2 --tp 2 --log.name x", dir.path());
  INFO(r.out);
  REQUIRE(r.code == 0);
  const std::string table = read_file(dir / "runs/x/flops-2.txt");
  INFO(table);
  CHECK(r.prints("FLOPs of step 2: 4 sequences of 16 tokens"));
  for (const char* module : {"embed", "layers.0", "layers.1", "qkv", "core", "act", "down", "final_norm", "head"})
    CHECK_THAT(table, Contains(module));
  std::istringstream lines(table);
  int timed = 0;
  for (std::string line; std::getline(lines, line);)  // of both stages
    for (const char* leaf : {"   qkv", "   core", "   down"})
      if (line.find(leaf) != std::string::npos) timed += line.back() != '-';
  CHECK(timed == 6);
  const Outcome file =
      gpttrain(run + "--train.global_batch 4 --log.flops_step 1 --log.flops_file t.txt --log.name y", dir.path());
  INFO(file.out);
  REQUIRE(file.code == 0);
  CHECK_THAT(read_file(dir / "t.txt"), Contains("FLOPs of step 1"));
  CHECK_FALSE(file.prints("FLOPs of step 1"));
  const std::vector<double> plain = logged(dir / "runs/y", "loss");
  REQUIRE(gpttrain(run + "--train.global_batch 4 --log.name z", dir.path()).code == 0);
  CHECK(logged(dir / "runs/z", "loss") == plain);  // timing does not change results
}
