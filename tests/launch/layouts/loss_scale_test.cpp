// Loss scaling through engine and trainer, in FP32. Power-of-two scales are bitwise neutral, and an overflow on any
// rank skips the step on all. Too many skips end the run with a cause; a resume restores the scale.
#include <algorithm>
#include <cmath>
#include <limits>

#include "launch/tools/verify/mesh_run.h"
#include "launch/train/fault/skip_watch.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun small(MeshShape mesh) {
  MeshRun run;
  run.engine.model = {.layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocab = 300, .seq = 16};
  run.engine.lr = {.type = "constant", .peak = 1e-2, .total_steps = 30};
  run.engine.micro_batch = 1;
  run.engine.threads = 1;
  if (mesh.pp == 2) run.engine.partition = "1,1";
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 3;
  run.samples = synthetic_samples(24, 16, 300, 3);
  return run;
}

constexpr MeshShape kEight{.pp = 2, .dp = 2, .tp = 2};

// A backend whose norms corrupt the first gradient that they write, their own or that of the preceding row bias, on the
// selected thread.
thread_local bool spoils_norms = false, spoils_sums = false;
void spoilt_norm_grad(const LayerNormGrad& a, Stream s) {
  cpu_backend().ops->layer_norm_grad(a, s);
  if (spoils_norms && a.dgamma) a.dgamma.as<float>()[0] = std::numeric_limits<float>::infinity();
  if (spoils_sums && a.dbias) a.dbias.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
}
const Backend& spoiling_backend() {
  static const OpTable table = [] {
    OpTable t = *cpu_backend().ops;
    t.layer_norm_grad = spoilt_norm_grad;
    return t;
  }();
  static const Backend backend = [] {
    Backend b = cpu_backend();
    b.ops = &table;
    return b;
  }();
  return backend;
}

const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --optim.lr 3e-3 --device.kind cpu --log.tensorboard false ";

}  // namespace

TEST_CASE("a power-of-two loss scale leaves FP32 training bitwise identical on any layout") {
  for (const MeshShape mesh : {MeshShape{}, {.dp = 2}, {.tp = 2}, kEight})
    for (int stage : {0, 2}) {
      MeshRun run = small(mesh);
      run.engine.zero.stage = stage;
      const MeshResult plain = run_mesh(run);
      run.engine.loss_scale.init = 0x1p14;
      const MeshResult scaled = run_mesh(run);
      CHECK(plain.losses == scaled.losses);
      CHECK(plain.norms == scaled.norms);
      CHECK(plain.weights == scaled.weights);
      CHECK(plain.state == scaled.state);
    }
}

// fp16 activation gradients are scaled by loss scale × gradient of the global mean, in every layout.
TEST_CASE("overflowing steps do not depend on micro_batch, accumulation or data-parallel ranks") {
  struct Layout {
    int64_t micro;
    int dp;
    DType reduce;
  };
  const auto skips = [](const Layout& l, double scale, bool means) {
    MeshRun run = small({.dp = l.dp});
    run.engine.micro_batch = l.micro;
    run.engine.mean_of_microbatches = means;
    run.engine.precision.level = 2;
    run.engine.precision.compute_dtype = DType::kF16;
    run.engine.zero.reduce = l.reduce;
    run.engine.loss_scale = {.dynamic = true, .init = scale, .window = 2, .delta = 0, .hysteresis = 1};
    run.steps = 8;
    std::vector<double> scales;
    MeshHooks hooks;
    hooks.after_step = [&](Engine& engine, int) {
      if (engine.mesh().rank() == 0) scales.push_back(engine.loss_scaler().scale());
    };
    run.hooks = &hooks;
    run_mesh(run);
    return scales;
  };
  // From a scale that overflows to one that does not: all layouts decrease it equally.
  const auto check = [&](double high, const Layout& first, std::initializer_list<Layout> others) {
    const std::vector<double> scales = skips(first, high, false);
    REQUIRE(scales.size() == 8);
    CHECK(scales.front() < high);
    CHECK(std::is_sorted(scales.rbegin(), scales.rend()) == false);  // it grows again
    for (const Layout& l : others)
      for (const bool means : {false, true}) {
        INFO("micro_batch " << l.micro << " dp " << l.dp << (means ? " mean of means" : ""));
        CHECK(skips(l, high, means) == scales);
      }
  };
  check(0x1p24, {1, 1, DType::kF32},
        {{2, 1, DType::kF32}, {8, 1, DType::kF32}, {1, 4, DType::kF32}, {2, 2, DType::kF32}});
  check(0x1p24, {1, 2, DType::kF16}, {{4, 2, DType::kF16}, {1, 8, DType::kF16}, {2, 4, DType::kF16}});
}

TEST_CASE("an overflow on any one of eight ranks, replicas included, skips the step on all of them") {
  const MeshResult clean = run_mesh([] {
    MeshRun run = small(kEight);
    run.steps = 1;
    return run;
  }());
  for (bool norms : {true, false})
    for (int who = 0; who < 8; ++who) {
      INFO((norms ? "norm" : "bias") << " gradient of rank " << who);
      MeshRun run = small(kEight);
      run.steps = 2;
      // norms and row biases are then replicated, and only one replica counts in the global norm
      run.engine.sequence_parallel = false;
      run.engine.loss_scale = {.dynamic = true, .init = 0x1p14, .window = 1, .delta = 0, .hysteresis = 1};
      std::vector<int64_t> applied(8);
      std::vector<double> scales(8);
      MeshHooks hooks;
      hooks.backend = &spoiling_backend();
      hooks.batch = [&](const Mesh& mesh, MicroBatch& mb) {  // of the second step
        const bool spoils = mesh.rank() == who && mb.first_sample >= run.global_batch;
        (norms ? spoils_norms : spoils_sums) = spoils;
      };
      hooks.after_step = [&](Engine& engine, int) {
        applied[static_cast<size_t>(engine.mesh().rank())] = engine.applied_steps();
        scales[static_cast<size_t>(engine.mesh().rank())] = engine.loss_scaler().scale();
      };
      run.hooks = &hooks;
      const MeshResult got = run_mesh(run);
      CHECK(applied == std::vector<int64_t>(8, 1));
      CHECK(scales == std::vector<double>(8, 0x1p14));  // doubled by the first step, halved by the second
      CHECK(got.losses[0] == clean.losses[0]);
      CHECK(got.weights == clean.weights);  // of the first step
      CHECK(got.state == clean.state);
    }
}

TEST_CASE("an overflow skips the step of every optimizer, of parameter groups with rates of their own too") {
  for (const std::string& type : optimizer_names())
    for (const int zero : {0, 2}) {
      INFO(type << ", zero " << zero);
      const auto run_of = [&](int steps) {
        MeshRun run = small(kEight);
        run.steps = steps;
        run.engine.zero.stage = zero;
        run.engine.optim = {.type = type, .weight_decay = 0.1f, .momentum = 0.9f};
        run.engine.optim.groups = {{.match = "mlp", .lr_scale = 0.5}, {.match = "qkv|embed", .weight_decay = 0.3f}};
        run.engine.loss_scale = {.dynamic = true, .init = 0x1p14, .window = 1, .delta = 0, .hysteresis = 1};
        return run;
      };
      const MeshResult clean = run_mesh(run_of(1));
      MeshRun run = run_of(2);
      std::vector<int64_t> applied(8);
      MeshHooks hooks;
      hooks.backend = &spoiling_backend();
      hooks.batch = [&](const Mesh& mesh, MicroBatch& mb) {  // of the second step
        spoils_norms = mesh.rank() == 5 && mb.first_sample >= run.global_batch;
        spoils_sums = false;
      };
      hooks.after_step = [&](Engine& engine, int) {
        applied[static_cast<size_t>(engine.mesh().rank())] = engine.applied_steps();
      };
      run.hooks = &hooks;
      const MeshResult got = run_mesh(run);
      CHECK(applied == std::vector<int64_t>(8, 1));
      CHECK(got.weights == clean.weights);
      CHECK(got.state == clean.state);
    }
}

TEST_CASE(
    "too many skipped steps in a row end the run on all ranks and name the first non-finite gradient of the backward") {
  MeshRun run = small(kEight);
  run.steps = 4;
  run.engine.loss_scale.init = 64;
  MeshHooks hooks;
  hooks.backend = &spoiling_backend();
  hooks.batch = [&](const Mesh& mesh, MicroBatch&) { spoils_norms = mesh.rank() == 3; };
  std::vector<std::unique_ptr<SkipWatch>> watches;
  for (int r = 0; r < 8; ++r) watches.push_back(std::make_unique<SkipWatch>(3, 1));  // one skip before a resume
  std::vector<std::string> ends(8);
  std::vector<Exit> codes(8, Exit::kOk);
  hooks.after_step = [&](Engine& engine, int step) {
    const auto rank = static_cast<size_t>(engine.mesh().rank());
    StepResult r;
    r.skipped = r.overflow = true;
    r.loss = 5.5;
    r.loss_scale = engine.loss_scaler().scale() / (step + 1);
    try {
      watches[rank]->after(r, step + 8, engine);
    } catch (const Error& e) {
      codes[rank] = e.code();
      ends[rank] = e.what();
    }
  };
  run.hooks = &hooks;
  run.steps = 2;
  run_mesh(run);
  CHECK(codes == std::vector<Exit>(8, Exit::kNumerical));
  std::string message;  // printed by one rank
  for (const std::string& end : ends) message += end;
  CHECK_THAT(message, Catch::StartsWith("step 9: 3 consecutive steps had non-finite gradients"));
  CHECK_THAT(message, Catch::Contains("first non-finite gradient in backward order: layers.0.norm2.weight (rank ") &&
                          Catch::Contains(": pp 0, dp ") && Catch::Contains(", tp 1)"));
  CHECK_THAT(message, Catch::Contains("the loss of this step is 5.5; last loss scales 64 32."));
}

TEST_CASE("the loss scale is in the log and in the checkpoint, and resumes from there") {
  TempDir dir;
  const std::string run = kTiny +
                          "--dp 2 --launch.ranks threads --train.steps 12 --checkpoint.every 3 "
                          "--precision.loss_scale dynamic --precision.loss_scale_init 1024 "
                          "--precision.loss_scale_window 2 ";
  const Outcome whole = gpttrain(run + "--log.name whole", dir.path());
  INFO(whole.out);
  REQUIRE(whole.code == 0);
  const auto scales = logged(dir / "runs/whole", "loss_scale");
  CHECK(scales == std::vector<double>{1024, 1024, 1024, 2048, 2048, 4096, 4096, 8192, 8192, 16384, 16384, 32768});
  CHECK(whole.prints("scale 1024"));
  REQUIRE(shell("mkdir -p runs/part && cp -r runs/whole/checkpoints runs/part/", dir.path()).code == 0);
  const Outcome rest = gpttrain(run + "--log.name part --checkpoint.resume 6", dir.path());
  INFO(rest.out);
  REQUIRE(rest.code == 0);
  for (const char* key : {"loss", "loss_scale", "lr", "grad_norm", "skipped"}) {
    const auto all = logged(dir / "runs/whole", key);
    CHECK(logged(dir / "runs/part", key) == std::vector<double>(all.begin() + 6, all.end()));
  }
}
