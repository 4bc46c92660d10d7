// Dropout masks depend on samples and modules, not on ranks or time: every layout, schedule, recompute mode and resume
// uses the masks of one rank. Evaluation uses none.
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun run_of(MeshShape mesh, double p = 0.1, double attention = 0.1) {
  MeshRun run;
  run.engine.model = {.layers = 5, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 16};
  run.engine.model.dropout = p;
  run.engine.model.attn_dropout = attention;
  run.engine.loss_chunk = 16;
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 4;
  run.evaluate = true;
  run.samples = synthetic_samples(40, 16, 300, 5);
  return run;
}

}  // namespace

TEST_CASE("with dropout every kind of layout and microbatch stays close to one rank") {
  const MeshResult one = run_mesh(run_of({}));
  for (const MeshShape& mesh : {MeshShape{.dp = 2}, MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.pp = 4},
                                MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (int64_t micro : {1, 2}) {
      INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp << " micro_batch " << micro);
      MeshRun run = run_of(mesh);
      run.engine.micro_batch = micro;
      const MeshResult r = run_mesh(run);
      check_close(r, one);
      check_planned(r, run.steps);
    }
}

TEST_CASE("with dropout pipelines, schedules and recomputation are bitwise equal to a flat run without recomputation") {
  struct Way {
    int pp, vpp;
    const char* schedule;
    Recompute recompute;
  };
  const Way ways[] = {{1, 1, "1f1b", Recompute::kFull},        {1, 1, "1f1b", Recompute::kSelective},
                      {1, 1, "zb-h1", Recompute::kNone},       {2, 1, "1f1b", Recompute::kNone},
                      {2, 1, "gpipe", Recompute::kFull},       {2, 2, "interleaved", Recompute::kNone},
                      {2, 2, "interleaved", Recompute::kFull}, {2, 1, "zb-h1", Recompute::kSelective},
                      {2, 1, "zb-h1", Recompute::kFull},       {4, 1, "1f1b", Recompute::kSelective}};
  for (const MeshShape base : {MeshShape{}, MeshShape{.dp = 2, .tp = 2}}) {
    const MeshResult flat = run_mesh(run_of(base));
    for (const Way& w : ways) {
      INFO("tp " << base.tp << " dp " << base.dp << " pp " << w.pp << " " << w.schedule << " recompute "
                 << static_cast<int>(w.recompute));
      MeshRun run = run_of({.pp = w.pp, .dp = base.dp, .tp = base.tp});
      run.engine.schedule = w.schedule;
      run.engine.vpp = w.vpp;
      run.engine.recompute = w.recompute;
      const MeshResult r = run_mesh(run);
      check_bitwise(r, flat);
      check_planned(r, run.steps);
    }
  }
}

TEST_CASE("both rates act on training, another seed drops other elements, and evaluation drops nothing") {
  MeshRun run = run_of({}, 0, 0);
  run.engine.lr.peak = 1e-30;  // the weights do not change
  const MeshResult plain = run_mesh(run);
  for (const auto& [p, attention] : {std::pair{0.1, 0.0}, std::pair{0.0, 0.1}}) {
    INFO("dropout " << p << " attn_dropout " << attention);
    MeshRun with = run;
    with.engine.model.dropout = p;
    with.engine.model.attn_dropout = attention;
    const MeshResult r = run_mesh(with);
    for (size_t k = 0; k < r.losses.size(); ++k) CHECK(r.losses[k] != plain.losses[k]);
    CHECK(r.eval_loss == Approx(plain.eval_loss).epsilon(1e-9));
    Logical weights = plain.weights;  // equal for every seed
    with.weights = &weights;
    const MeshResult first = run_mesh(with);
    with.engine.seed += 1;
    CHECK(run_mesh(with).losses != first.losses);
  }
}

TEST_CASE("a run with dropout that is killed and resumed is bitwise the uninterrupted run") {
  TempDir dir;
  const std::string run =
      "--model.layers 3 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --model.dropout 0.1 "
      "--model.attn_dropout 0.1 --pp 2 --launch.ranks threads --checkpoint.every 4 --schedule.type linear "
      "--train.steps 8 ";
  REQUIRE(gpttrain(run + "--log.name whole", dir.path()).code == 0);
  const Outcome part = gpttrain(run + "--log.name parts", dir.path(), 120, [&](int pid) {
    for (int i = 0; i < 1000 && !std::filesystem::exists(dir / "runs/parts/checkpoints/step-000000004"); ++i)
      usleep(5000);
    kill(-pid, SIGKILL);
  });
  CHECK(part.code == 128 + SIGKILL);
  const Outcome rest = gpttrain(run + "--log.name parts --parallel.recompute full", dir.path());
  INFO(rest.out);
  REQUIRE(rest.code == 0);
  for (const char* key : {"loss", "grad_norm"}) {
    const std::vector<double> whole = logged(dir / "runs/whole", key), parts = logged(dir / "runs/parts", key);
    REQUIRE(whole.size() == 8);
    REQUIRE(parts.size() >= 4);
    CHECK(std::equal(whole.end() - 4, whole.end(), parts.end() - 4));
  }
}
