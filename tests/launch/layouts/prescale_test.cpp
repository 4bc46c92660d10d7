// Dividing gradients before or after the data-parallel reduction: equal up to rounding in FP32; with a 16-bit reduction
// dtype, the range of the sum decides.
#include "tests/launch/engine_ranks.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun run_of(MeshShape mesh, double before) {
  MeshRun run;
  run.engine.model = {.layers = 2, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 16};
  run.engine.zero.scale_before = before;
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 3;
  run.samples = synthetic_samples(24, 16, 300, 5);
  return run;
}

}  // namespace

TEST_CASE("a power-of-two factor before the sum leaves FP32 bitwise identical, any other one changes only rounding") {
  for (const MeshShape& mesh : {MeshShape{.dp = 4}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (const int stage : {0, 1, 2, 3}) {
      INFO("pp " << mesh.pp << " dp " << mesh.dp << " zero " << stage);
      MeshRun run = run_of(mesh, 1);
      run.engine.zero.stage = stage;
      const MeshResult after = run_mesh(run);
      run.engine.zero.scale_before = 1. / mesh.dp;  // prescale
      check_bitwise(run_mesh(run), after);
      run.engine.zero.scale_before = 1 / 3.;
      const MeshResult thirds = run_mesh(run);
      CHECK(thirds.grads != after.grads);
      check_close(thirds, after);
    }
}

TEST_CASE("gradients that are summed over data-parallel ranks are dp times their mean") {
  for (const bool means : {false, true}) {
    MeshRun run = run_of({.dp = 4}, 1);
    run.steps = 1;
    run.engine.mean_of_microbatches = means;
    const MeshResult mean = run_mesh(run);
    run.engine.grad_sum = true;
    const MeshResult sum = run_mesh(run);
    CHECK(sum.losses == mean.losses);
    CHECK(sum.norms[0] == 4 * mean.norms[0]);
  }
}

TEST_CASE("one data-parallel rank has nothing to reduce, whatever the factor") {
  check_bitwise(run_mesh(run_of({}, 1 / 3.)), run_mesh(run_of({}, 1)));
}

TEST_CASE("a sum that overflows fp16 does not when gradients are divided first, and small ones underflow") {
  const auto step = [](double before, double loss_scale) {
    EngineOptions o;
    o.model = {.layers = 1, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 16};
    o.zero.reduce = DType::kF16;
    o.zero.scale_before = before;
    o.loss_scale.init = loss_scale;
    o.microbatches = 1;
    bool skipped = false;
    double norm = 0;
    on_engines(o, {.dp = 4}, [&](EngineRank& r) {
      const StepResult s = r.step(0);
      if (r.mesh.rank() == 0) skipped = s.skipped, norm = s.grad_norm;
    });
    return std::pair(skipped, norm);
  };
  // The largest power-of-two loss scale without overflow when gradients are not predivided.
  double scale = 1;
  while (scale < 1e12 && !step(1, scale * 2).first) scale *= 2;
  REQUIRE(scale < 1e12);
  CHECK(step(1, scale * 2).first);
  const auto [skipped, norm] = step(0.25, scale * 2);
  CHECK_FALSE(skipped);
  CHECK(norm == Approx(step(1, 1024).second).epsilon(1e-2));
  // Conversely, a factor of 2^-24 flushes nearly everything: fp16's smallest subnormal is 2^-24.
  CHECK(step(0x1p-24, 1).second < 0.9 * step(1, 1).second);
}
