// Optimizers are layout independent: LAMB's trust ratios match one rank on every layout, and changes that only move
// work are bitwise identical for every optimizer.
#include <cmath>

#include "kernels/core/enum_names.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun small_run(const char* type, MeshShape mesh, int steps, int zero = 1) {
  MeshRun run;
  run.engine.model = {.layers = 3, .hidden = 32, .heads = 4, .ffn = 96, .vocab = 300, .seq = 16};
  run.engine.optim = {
      .type = type, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-6f, .weight_decay = 0.01f, .momentum = 0.9f};
  const std::string name = type;
  run.engine.lr = {.type = "one_cycle_torch", .peak = name == "lion" ? 1e-3 : 1e-2, .total_steps = 10};
  run.engine.zero.stage = zero;
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = steps;
  run.samples = synthetic_samples(8 * 4, 16, 300, 5);
  return run;
}

MeshRun grouped_run(const char* type, MeshShape mesh, int zero) {
  MeshRun run = small_run(type, mesh, 4, zero);
  run.samples = synthetic_samples(8 * 5, 16, 300, 5);
  run.evaluate = true;  // so that all planned memory is used
  run.engine.zero.grad_reduce = zero <= 1 ? GradReduce::kAuto : GradReduce::kEnd;
  run.engine.zero.persist_numel = 0;
  run.engine.optim.groups = {{.match = "embed", .lr_scale = 0.1, .weight_decay = 0.0f},
                             {.match = "mlp.*weight", .weight_decay = 0.3f, .betas = {{0.8f, 0.99f}}},
                             {.match = "norm", .lr_scale = 2}};
  return run;
}

std::string name_of(const MeshShape& m) {
  return "tp " + std::to_string(m.tp) + " pp " + std::to_string(m.pp) + " dp " + std::to_string(m.dp);
}

void check_ratios(const std::map<std::string, float>& got, const std::map<std::string, float>& one, double tolerance) {
  REQUIRE(got.size() == one.size());
  for (const auto& [tensor, ratio] : one) {
    INFO(tensor);
    REQUIRE(got.count(tensor) == 1);
    CHECK(got.at(tensor) == Approx(ratio).epsilon(tolerance));
  }
}

}  // namespace

TEST_CASE("LAMB's trust ratios are those of one rank on every layout, bitwise across pp and ZeRO stages") {
  for (const LambVariant variant : {LambVariant::kPaper, LambVariant::kApex, LambVariant::kDeepSpeed}) {
    const auto with = [&](MeshShape mesh, int steps, int zero) {
      MeshRun run = small_run("lamb", mesh, steps, zero);
      run.engine.optim.lamb_variant = variant;
      return run_mesh(run);
    };
    const MeshResult first = with({}, 1, 1), third = with({}, 3, 1);
    CHECK(first.ratios.size() == 3 * 12 + 4);  // tied: counted once
    CHECK(third.ratios.at("layers.1.mlp.up.weight") != 1);
    for (int tp : {1, 2, 4})
      for (int dp : {1, 2}) {
        const MeshShape flat{.pp = 1, .dp = dp, .tp = tp};
        INFO(name_of(variant) << " " << name_of(flat));
        check_ratios(with(flat, 1, 1).ratios, first.ratios, 1e-6);
        const MeshResult base = with(flat, 3, 1);
        check_ratios(base.ratios, third.ratios, 1e-4);  // by then gradients differ by the rounding of two steps
        if (variant != LambVariant::kPaper && tp * dp > 2) continue;
        check_bitwise(with(flat, 3, 0), base);
        if (tp * dp <= 4) check_bitwise(with({.pp = 2, .dp = dp, .tp = tp}, 3, 1), base);
      }
  }
}

TEST_CASE("twenty steps of LAMB lead to the same parameters on every layout") {
  for (const LambVariant variant : {LambVariant::kPaper, LambVariant::kApex, LambVariant::kDeepSpeed}) {
    const auto with = [&](MeshShape mesh, int zero, int steps) {
      MeshRun run = small_run("lamb", mesh, steps, zero);
      run.engine.optim.lamb_variant = variant;
      run.engine.lr = {.type = "one_cycle_torch", .peak = 2e-3, .total_steps = 20};
      run.samples = synthetic_samples(8 * 20, 16, 300, 5);
      return run_mesh(run);
    };
    const MeshResult one = with({}, 1, 20);
    CHECK(relative_error(one.weights.at("embed.weight"), with({}, 1, 1).weights.at("embed.weight")) > 1e-3);
    for (const MeshShape mesh : {MeshShape{.dp = 2}, MeshShape{.tp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2},
                                 MeshShape{.dp = 2, .tp = 4}, MeshShape{.dp = 8}}) {
      INFO(name_of(variant) << " " << name_of(mesh));
      const MeshResult many = with(mesh, mesh.dp == 8 ? 2 : 1, 20);
      double difference = 0, size = 0;  // over all parameters as one vector
      for (const auto& [name, values] : one.weights)
        for (size_t i = 0; i < values.size(); ++i) {
          const double a = static_cast<double>(values[i]), b = static_cast<double>(many.weights.at(name)[i]);
          difference += (a - b) * (a - b);
          size += a * a;
        }
      CHECK(std::sqrt(difference / size) <= 1e-6);
    }
  }
}

TEST_CASE("LAMB's trust ratios do not depend on ZeRO 2 and 3 nor on sequence parallelism") {
  struct Way {
    int stage;
    GradReduce reduce;
    int64_t persist;
  };
  // 5000 keeps the smaller FSDP units whole and shards the others.
  const Way ways[] = {{2, GradReduce::kEnd, 0},  {2, GradReduce::kEach, 0},   {3, GradReduce::kEnd, 0},
                      {3, GradReduce::kEach, 0}, {3, GradReduce::kEnd, 5000}, {3, GradReduce::kEach, 5000}};
  for (const LambVariant variant : {LambVariant::kPaper, LambVariant::kApex, LambVariant::kDeepSpeed}) {
    const auto with = [&](MeshShape mesh, int steps, Way way, bool sequence_parallel) {
      MeshRun run = small_run("lamb", mesh, steps);
      run.engine.optim.lamb_variant = variant;
      run.engine.zero.stage = way.stage;
      run.engine.zero.grad_reduce = way.reduce;
      run.engine.zero.persist_numel = way.persist;
      run.engine.sequence_parallel = sequence_parallel;
      if (mesh.dp == 3) run.global_batch = 6;
      return run_mesh(run);
    };
    const MeshResult first = with({}, 1, {1, GradReduce::kAuto, 0}, false);
    for (const MeshShape mesh : {MeshShape{.dp = 2}, MeshShape{.dp = 3}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
      for (bool sequence_parallel : {false, true}) {
        if ((sequence_parallel && mesh.tp == 1) || (mesh.dp == 3 && variant != LambVariant::kPaper)) continue;
        const MeshResult end = with(mesh, 3, {1, GradReduce::kEnd, 0}, sequence_parallel);
        const MeshResult each = with(mesh, 3, {2, GradReduce::kEach, 0}, sequence_parallel);
        CHECK(each.losses.back() == Approx(end.losses.back()).epsilon(1e-5));
        if (mesh.dp == 2)
          check_ratios(with(mesh, 1, {3, GradReduce::kEach, 0}, sequence_parallel).ratios, first.ratios, 1e-6);
        for (const Way& way : ways) {
          INFO(name_of(variant) << " " << name_of(mesh) << " zero " << way.stage << " each "
                                << (way.reduce == GradReduce::kEach) << " persist " << way.persist
                                << " sequence parallel " << sequence_parallel);
          check_bitwise(with(mesh, 3, way, sequence_parallel), way.reduce == GradReduce::kEach ? each : end);
        }
      }
  }
}

TEST_CASE("every optimizer under one-cycle is bitwise equal across pp and ZeRO stages and close across tp and dp") {
  for (const std::string& type : optimizer_names()) {
    const MeshResult one = run_mesh(small_run(type.c_str(), {}, 4)),
                     base = run_mesh(small_run(type.c_str(), {.dp = 2, .tp = 2}, 4));
    INFO(type);
    CHECK(one.losses[3] < one.losses[0]);
    for (size_t k = 0; k < 4; ++k) CHECK(base.losses[k] == Approx(one.losses[k]).epsilon(type == "lion" ? 1e-4 : 1e-5));
    check_bitwise(run_mesh(small_run(type.c_str(), {.pp = 2, .dp = 2, .tp = 2}, 4)), base);
    for (int stage : {0, 2, 3}) {
      MeshRun run = small_run(type.c_str(), {.dp = 2, .tp = 2}, 4, stage);
      run.engine.zero.grad_reduce = stage == 0 ? GradReduce::kAuto : GradReduce::kEnd;
      run.engine.zero.persist_numel = 0;
      check_bitwise(run_mesh(run), base);
    }
  }
}

TEST_CASE("parameter groups are bitwise equal across pp and ZeRO stages and close across tp and dp") {
  for (const std::string& type : optimizer_names()) {
    const MeshResult one = run_mesh(grouped_run(type.c_str(), {}, 1));
    const MeshResult base = run_mesh(grouped_run(type.c_str(), {.dp = 2, .tp = 2}, 1));
    INFO(type);
    MeshRun plain = grouped_run(type.c_str(), {}, 1);
    plain.engine.optim.groups.clear();
    CHECK(run_mesh(plain).losses[3] != one.losses[3]);
    for (size_t k = 0; k < 4; ++k) CHECK(base.losses[k] == Approx(one.losses[k]).epsilon(type == "lion" ? 1e-4 : 1e-5));
    check_planned(base, 4);
    check_bitwise(run_mesh(grouped_run(type.c_str(), {.pp = 2, .dp = 2, .tp = 2}, 1)), base);
    for (int stage : {0, 2, 3}) check_bitwise(run_mesh(grouped_run(type.c_str(), {.dp = 2, .tp = 2}, stage)), base);
  }
}

TEST_CASE("parameter groups are bitwise equal at every ZeRO stage with stochastically rounded bf16 weights") {
  for (const std::string& type : optimizer_names()) {
    const auto with = [&](int stage) {
      MeshRun run = grouped_run(type.c_str(), {.dp = 2}, stage);
      run.engine.precision = {.level = 3, .compute_dtype = DType::kBF16, .keep_norm = false, .masters = false};
      run.engine.optim.rounding_seed = 11;
      return run_mesh(run);
    };
    INFO(type);
    const MeshResult base = with(1);
    for (int stage : {0, 2, 3}) check_bitwise(with(stage), base);
  }
}

TEST_CASE("a decay pattern disables the decay of the tensors it matches, under every layout") {
  const auto with = [](std::vector<std::string> patterns, MeshShape mesh) {
    MeshRun run = small_run("adamw", mesh, 2);
    run.engine.optim.weight_decay = 1;
    run.engine.no_decay = std::move(patterns);
    return run_mesh(run).weights;
  };
  const Logical all = with({}, {}), some = with({"embed", "^layers\\.1\\..*qkv"}, {});
  int changed = 0;
  for (const auto& [name, values] : all) {
    const bool found = name.find("embed") != std::string::npos || name == "layers.1.attn.qkv.weight";
    INFO(name);
    if (found) {
      CHECK(relative_error(some.at(name), values) > 1e-3);
      ++changed;
    } else {
      CHECK(relative_error(some.at(name), values) < 1e-3);  // its decay is unchanged, but its second gradient is not
    }
  }
  CHECK(changed == 3);  // two embeddings and one matrix
  const auto [name, error] = worst_error(with({"embed", "^layers\\.1\\..*qkv"}, {.pp = 2, .dp = 2, .tp = 2}), some);
  INFO(name);
  CHECK(error < 1e-4);
}
