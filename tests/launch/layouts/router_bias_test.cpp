// Loss-free balance: the bias of a router moves once an applied step, by the tokens of all ranks and microbatches. It
// has no gradient, no decay and no optimizer state, and is FP32 at every precision.
#include <algorithm>
#include <cmath>

#include "launch/tools/verify/mesh_run.h"
#include "model/families/family.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int kSteps = 3, kBatch = 8;
constexpr int64_t kSeq = 12, kTopK = 3, kExperts = 8;
constexpr double kRate = 0.001;

// Three blocks, of which the one in the middle has no experts.
MeshRun balanced(const MeshShape& mesh, double rate = kRate) {
  MeshRun run;
  TransformerConfig& c = run.engine.model;
  c = find_family("dots1")->defaults;
  c.layers = 3, c.hidden = 16, c.heads = 4, c.ffn = 8, c.vocab = 97, c.seq = kSeq;
  c.moe.experts = kExperts, c.moe.top_k = kTopK, c.moe.groups = 4, c.moe.top_groups = 2, c.moe.bias_rate = rate;
  c.moe.dense_blocks = {1}, c.moe.dense_ffn = 24;
  run.mesh = mesh;
  run.engine.micro_batch = 1;
  run.engine.zero.persist_numel = 0;
  run.engine.optim.weight_decay = 0.5f;
  run.engine.lr = {.type = "constant", .peak = 1e-3};
  run.global_batch = kBatch, run.steps = kSteps;
  run.samples = synthetic_samples(kBatch * kSteps, kSeq, c.vocab, 5);
  return run;
}

Logical biases(const Logical& all) {
  Logical out;
  for (const auto& [name, values] : all)
    if (name.ends_with(".router.bias")) out[name] = values;
  return out;
}

// Whether every value is a sum of `steps` or fewer steps up or down.
bool steps_of(const std::vector<float>& bias, int steps) {
  return std::all_of(bias.begin(), bias.end(), [&](float b) {
    const double k = b / kRate;
    return std::fabs(k) < steps + 0.5 && std::fabs(k - std::round(k)) < 1e-5;
  });
}

Parameter* first_bias(Engine& engine) {
  for (Parameter* p : engine.store().parameters())
    if (p->name.ends_with(".router.bias")) return p;
  return nullptr;
}

}  // namespace

TEST_CASE("biases of routers move once a step by the tokens of all ranks, alike on every layout") {
  const MeshResult one = run_mesh(balanced({}));
  const Logical expected = biases(one.weights);
  REQUIRE(expected.size() == 2);  // blocks 0 and 2: one without experts in between ends nothing
  for (const auto& [name, bias] : expected) {
    INFO(name);
    CHECK(steps_of(bias, kSteps));
    CHECK(std::any_of(bias.begin(), bias.end(), [](float b) { return std::fabs(b) > 1.5 * kRate; }));
    CHECK(std::any_of(bias.begin(), bias.end(), [](float b) { return b > 0; }));
    CHECK(std::any_of(bias.begin(), bias.end(), [](float b) { return b < 0; }));
  }
  CHECK(one.grads.count("layers.0.mlp.router.weight") == 1);
  CHECK(biases(one.grads).empty());
  for (const auto& [name, values] : one.state) CHECK_FALSE(name.ends_with(".router.bias"));
  struct Layout {
    MeshShape mesh;
    int zero = 0;
    int64_t micro = 1;
    Recompute recompute = Recompute::kNone;
    bool sequence_parallel = false;
  };
  for (const Layout& l : {Layout{{.dp = 4}}, Layout{{.dp = 2, .tp = 2}, 1, 2, Recompute::kSelective, true},
                          Layout{{.pp = 2, .dp = 2}, 3}, Layout{{}, 0, 4, Recompute::kFull},
                          Layout{{.pp = 3, .tp = 2}, 0, 1, Recompute::kFull}, Layout{{.tp = 4}, 2, 8}}) {
    INFO("pp " << l.mesh.pp << " dp " << l.mesh.dp << " tp " << l.mesh.tp << " micro_batch " << l.micro);
    MeshRun run = balanced(l.mesh);
    run.engine.zero.stage = l.zero, run.engine.micro_batch = l.micro, run.engine.recompute = l.recompute;
    run.engine.sequence_parallel = l.sequence_parallel;
    const MeshResult r = run_mesh(run);
    CHECK(biases(r.weights) == expected);
    CHECK(r.stale.empty());
  }
}

TEST_CASE("each token of a step is counted once, run again or not, and those of an evaluation never") {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
    for (const MeshShape& mesh : {MeshShape{}, MeshShape{.dp = 2, .tp = 2}}) {
      MeshRun run = balanced(mesh);
      run.engine.recompute = recompute;
      run.engine.sequence_parallel = mesh.tp > 1;
      run.engine.micro_batch = kBatch / mesh.dp;
      run.evaluate = true;
      std::vector<MicroBatch> last(static_cast<size_t>(mesh.world()));
      std::vector<double> counted(last.size()), after(last.size());
      MeshHooks hooks;
      hooks.batch = [&](const Mesh& m, MicroBatch& mb) { last[static_cast<size_t>(m.rank())] = mb; };
      hooks.after_step = [&](Engine& engine, int) {
        const auto rank = static_cast<size_t>(engine.mesh().rank());
        const auto sum = [&] {
          const Tensor c = engine.stages().front()->loads().front()->counts;
          double total = 0;
          for (int64_t e = 0; e < c.numel(); ++e) total += c.as<double>()[e];
          return total;
        };
        counted[rank] = sum();
        MicroBatch mb = last[rank];
        mb.train = false;
        engine.evaluate({&mb, 1});
        after[rank] = sum();
      };
      run.hooks = &hooks;
      run_mesh(run);
      const std::vector<double> all(last.size(), kBatch * kSeq * kTopK);
      CHECK(counted == all);
      CHECK(after == all);
    }
}

TEST_CASE("steps that are skipped move no bias") {
  MeshRun run = balanced({.dp = 2});
  run.engine.precision.level = 2;
  run.engine.precision.compute_dtype = DType::kF16;
  run.engine.loss_scale = {.dynamic = true, .init = 0x1p40, .window = 100, .delta = 0, .hysteresis = 1};
  run.steps = 1;
  std::vector<int64_t> applied(2, -1);
  MeshHooks hooks;
  hooks.after_step = [&](Engine& e, int) { applied[static_cast<size_t>(e.mesh().rank())] = e.applied_steps(); };
  run.hooks = &hooks;
  for (const auto& [name, bias] : biases(run_mesh(run).weights)) CHECK(bias == std::vector<float>(kExperts, 0));
  CHECK(applied == std::vector<int64_t>{0, 0});
}

TEST_CASE("a bias of a router is FP32 at every precision, moves at its rate alone, and is not decayed") {
  for (const int level : {0, 1, 2, 3})
    for (const int stage : {0, 3}) {
      INFO("O" << level << " ZeRO " << stage);
      MeshRun run = balanced({.dp = 2}, 0);
      run.engine.precision.level = level;
      run.engine.precision.compute_dtype = level == 0 ? DType::kF32 : DType::kBF16;
      run.engine.zero.stage = stage;
      MeshHooks hooks;
      hooks.after_step = [&](Engine& engine, int step) {
        const Parameter* p = first_bias(engine);
        REQUIRE(p != nullptr);
        CHECK(p->value.dtype == DType::kF32);
        if (step == 0) std::fill_n(p->value.as<float>(), kExperts, 0.3f);
        for (const FlatMemory& f : engine.store().flat_memory())  // the others are sharded as ever
          if (f.params.front()->name == "layers.0.norm1.weight" && level == 0) CHECK(f.values_sharded == (stage == 3));
      };
      run.hooks = &hooks;
      const Logical all = biases(run_mesh(run).weights);
      CHECK(all.at("layers.0.mlp.router.bias") == std::vector<float>(kExperts, 0.3f));
      CHECK(all.at("layers.2.mlp.router.bias") == std::vector<float>(kExperts, 0));
    }
  MeshRun run = balanced({.dp = 2});
  run.engine.precision.level = 2;
  run.engine.precision.compute_dtype = DType::kBF16;
  for (const auto& [name, bias] : biases(run_mesh(run).weights)) CHECK(steps_of(bias, kSteps));  // 0.001 is no bf16
}
