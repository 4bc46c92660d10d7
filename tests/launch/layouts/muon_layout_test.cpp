// Muon, an optimizer that needs whole matrices, under layouts that shard and slice them: grouped-query heads that TP
// ranks share, fused projections, weights split by columns, adapters.
#include "model/families/family.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun muon_run(MeshShape mesh, int zero = 1) {
  MeshRun run;
  TransformerConfig& m = run.engine.model;
  m = find_family("llama")->defaults;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.ffn = 72, m.vocab = 300, m.seq = 16;
  run.engine.optim = {.type = "muon", .beta2 = 0.95f, .weight_decay = 0.1f, .momentum = 0.95f, .nesterov = true};
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.engine.zero = {.stage = zero, .grad_reduce = zero > 1 ? GradReduce::kEnd : GradReduce::kAuto, .persist_numel = 0};
  mesh.kv_ranks = m.kv_ranks(mesh.tp);
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 3;
  run.samples = synthetic_samples(8 * 4, 16, 300, 5);
  run.evaluate = true;  // so that all planned memory is used
  return run;
}

bool is_linear(const std::string& name) {
  return name.rfind("layers.", 0) == 0 && name.find("norm") == std::string::npos;
}

// Parameters after the last step.
void check_weights(const MeshResult& layout, const MeshResult& one) {
  const auto [name, error] = worst_error(layout.weights, one.weights);
  INFO("worst parameter: " << name);
  CHECK(error < 2e-5);
}

}  // namespace

TEST_CASE("Muon has one moment of every weight of a linear layer and AdamW two of all other parameters") {
  const MeshResult one = run_mesh(muon_run({})), split = run_mesh(muon_run({.pp = 2, .dp = 2, .tp = 2}, 2));
  for (const auto& [name, values] : one.weights) {
    INFO(name);
    for (const MeshResult* r : {&one, &split}) {
      CHECK(r->state.count("momentum_buffer/" + name) == (is_linear(name) ? 1 : 0));
      CHECK(r->state.count("exp_avg/" + name) == (is_linear(name) ? 0 : 1));
      CHECK(r->state.count("exp_avg_sq/" + name) == (is_linear(name) ? 0 : 1));
    }
  }
  const auto [name, error] = worst_error(split.state, one.state);
  INFO(name);
  CHECK(error < 1e-4);
}

TEST_CASE("a parameter group without settings of its own leaves Muon bitwise as it is") {
  for (const MeshShape& mesh : {MeshShape{}, {.pp = 2, .dp = 2, .tp = 2}}) {
    MeshRun run = muon_run(mesh);
    run.engine.grad_clip = 0.05f;  // a factor of every row of scalars
    const MeshResult plain = run_mesh(run);
    run.engine.optim.groups = {{.match = "mlp"}, {.match = "norm"}};
    check_bitwise(run_mesh(run), plain);
  }
}

TEST_CASE("Muon orthogonalizes tall matrices whose columns TP ranks share as one rank does") {
  const auto tall = [](MeshShape mesh) {
    MeshRun run = muon_run(mesh);
    run.engine.model.ffn = 24;  // mlp.down is [32, 24]
    return run_mesh(run);
  };
  const MeshResult one = tall({});
  for (const MeshShape& mesh : {MeshShape{.tp = 2}, {.dp = 2, .tp = 2}}) check_weights(tall(mesh), one);
}

TEST_CASE("Muon trains every layout as one rank, bitwise across pp and ZeRO stages") {
  const MeshResult one = run_mesh(muon_run({}));
  CHECK(one.losses.back() < one.losses.front());
  for (const MeshShape flat :
       {MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.dp = 2, .tp = 2}, MeshShape{.dp = 8}}) {
    INFO("tp " << flat.tp << " dp " << flat.dp);
    const MeshResult base = run_mesh(muon_run(flat));
    check_close(base, one);
    check_weights(base, one);
    check_planned(base, 3);
    for (const int stage : {0, 2, 3}) check_bitwise(run_mesh(muon_run(flat, stage)), base);
    if (flat.dp * flat.tp > 4) continue;
    MeshShape deep = flat;
    deep.pp = 2;
    check_bitwise(run_mesh(muon_run(deep)), base);
  }
}

TEST_CASE("Muon at every level of precision is bitwise equal across pp and ZeRO stages, also under loss scaling") {
  const Precision levels[] = {{.level = 1, .compute_dtype = DType::kBF16},
                              {.level = 1, .compute_dtype = DType::kF16},
                              {.level = 2, .compute_dtype = DType::kBF16},
                              {.level = 2, .compute_dtype = DType::kF16},
                              {.level = 3, .compute_dtype = DType::kF16, .keep_norm = false, .masters = false},
                              {.level = 3, .compute_dtype = DType::kBF16, .keep_norm = false, .masters = false}};
  for (const Precision& level : levels) {
    const auto with = [&](MeshShape mesh, int stage) {
      MeshRun run = muon_run(mesh, stage);
      run.engine.precision = level;
      run.engine.optim.muon_gemms = DType::kBF16;
      const bool fp16 = level.compute_dtype == DType::kF16;
      if (fp16) run.engine.loss_scale = {.dynamic = true, .init = 0x1p10, .window = 2, .delta = 0, .hysteresis = 1};
      if (level.level == 3 && !fp16) run.engine.optim.rounding_seed = 11;  // stochastic rounding
      return run_mesh(run);
    };
    INFO("O" << level.level << " " << name_of(level.compute_dtype));
    const MeshResult base = with({.dp = 2, .tp = 2}, 1);
    CHECK(base.losses.back() < base.losses.front());
    for (const int stage : {0, 2, 3}) check_bitwise(with({.dp = 2, .tp = 2}, stage), base);
    check_bitwise(with({.pp = 2, .dp = 2, .tp = 2}, 1), base);
  }
}

TEST_CASE("Muon trains adapters alone on every layout as on one rank") {
  const auto with = [](MeshShape mesh) {
    MeshRun run = muon_run(mesh);
    run.stir = true;
    run.engine.model.lora = {.rank = 4, .alpha = 8, .separate_qkv = true};
    return run_mesh(run);
  };
  const MeshResult one = with({});
  for (const MeshShape mesh : {MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    const MeshResult layout = with(mesh);
    check_close(layout, one);
    check_weights(layout, one);
  }
}

TEST_CASE("a parameter group moves weights from Muon to AdamW") {
  const auto with = [](std::vector<ParamGroup> groups, MeshShape mesh) {
    MeshRun run = muon_run(mesh);
    run.engine.optim.groups = std::move(groups);
    return run_mesh(run);
  };
  const ParamGroup mlp{.match = "mlp", .rule = "adamw", .lr_scale = 0.5};
  const MeshResult one = with({mlp}, {});
  CHECK(one.state.count("exp_avg/layers.0.mlp.down.weight") == 1);
  CHECK(one.state.count("momentum_buffer/layers.0.mlp.down.weight") == 0);
  CHECK(one.state.count("momentum_buffer/layers.0.attn.qkv.weight") == 1);
  CHECK(one.losses != with({}, {}).losses);
  const MeshResult layout = with({mlp}, {.pp = 2, .dp = 2, .tp = 2});
  check_close(layout, one);
  check_weights(layout, one);
}
