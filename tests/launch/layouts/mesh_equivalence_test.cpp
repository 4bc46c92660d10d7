// Layout independence: every tp x pp x dp of up to 8 ranks against one rank.
#include <optional>

#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun small_run(MeshShape mesh, int steps = 20) {
  MeshRun run;
  run.engine.model = {
      .layers = 5, .hidden = 32, .heads = 8, .ffn = 96, .vocab = 300, .seq = 16};  // 300: padding depends on tp
  run.engine.loss_chunk = 16;                                                      // several logit chunks a microbatch
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "cosine", .peak = 3e-3, .min_lr = 1e-4, .warmup_steps = 3, .total_steps = 40};
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = steps;
  run.samples = synthetic_samples(8 * 20, 16, 300, 5);
  return run;
}

const std::vector<MeshShape>& layouts() {
  static const std::vector<MeshShape> kAll = [] {
    std::vector<MeshShape> out;
    for (int tp : {1, 2, 4, 8})
      for (int pp : {1, 2, 4, 8})
        for (int dp : {1, 2, 4, 8})
          if (tp * pp * dp <= 8) out.push_back({.pp = pp, .dp = dp, .tp = tp});
    return out;
  }();
  return kAll;
}

}  // namespace

TEST_CASE("every layout up to 8 ranks equals one rank over 20 steps") {
  REQUIRE(layouts().size() == 20);
  const MeshResult one = run_mesh(small_run({}));
  CHECK(one.losses.back() < 0.97 * one.losses.front());  // the model learns
  for (const MeshShape& mesh : layouts()) {
    INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp);
    check_close(run_mesh(small_run(mesh)), one);
  }
}

TEST_CASE("the same layout twice is bitwise equal", "[R10]") {
  const MeshShape mesh{.pp = 2, .dp = 2, .tp = 2};
  check_bitwise(run_mesh(small_run(mesh, 5)), run_mesh(small_run(mesh, 5)));
}

TEST_CASE("layouts that differ only in pp or schedule are bitwise equal", "[R10]") {
  for (const MeshShape base : {MeshShape{.dp = 1, .tp = 1}, MeshShape{.dp = 2, .tp = 1}, MeshShape{.dp = 1, .tp = 2}}) {
    const MeshResult flat = run_mesh(small_run(base, 3));
    for (int pp : {2, 4})
      for (const char* schedule : {"1f1b", "gpipe"}) {
        INFO("tp " << base.tp << " dp " << base.dp << " pp " << pp << " " << schedule);
        MeshRun run = small_run({.pp = pp, .dp = base.dp, .tp = base.tp}, 3);
        run.engine.schedule = schedule;
        check_bitwise(run_mesh(run), flat);
      }
  }
}

// Then the tied head of one rank adds to the embedding's gradient, where two stages add complete sums.
TEST_CASE("with one microbatch a step layouts that differ in pp are bitwise equal", "[R10]") {
  for (const int tp : {1, 2}) {
    MeshRun run = small_run({.tp = tp}, 4);
    run.engine.micro_batch = 8;
    const MeshResult flat = run_mesh(run);
    run.mesh.pp = 2;
    check_bitwise(run_mesh(run), flat);
  }
}

// The guarantees of README.md about ZeRO. Gradients reduced once a step are added in the same order by every stage.
// Reduced per microbatch (the default of stage 3, and of stage 2 without a pipeline), the order differs, but is equal
// for both stages. With one microbatch a step the orders coincide.
TEST_CASE("ZeRO stages 0 to 3 are bitwise equal, by default up to the order in which microbatches are added", "[R10]") {
  for (const MeshShape mesh : {MeshShape{.dp = 2}, MeshShape{.pp = 2, .dp = 2}, MeshShape{.dp = 2, .tp = 2}}) {
    const MeshResult base = run_mesh(small_run(mesh, 4));
    std::optional<MeshResult> each;
    for (int stage : {0, 1, 2, 3})
      for (const GradReduce reduce : {GradReduce::kAuto, GradReduce::kEnd}) {
        INFO("tp " << mesh.tp << " pp " << mesh.pp << " zero " << stage << " reduce " << static_cast<int>(reduce));
        MeshRun run = small_run(mesh, 4);
        run.engine.zero = {.stage = stage, .grad_reduce = reduce, .persist_numel = 0};
        const MeshResult r = run_mesh(run);
        if (grad_reduce_of(run.engine.zero, mesh.pp, 4) == GradReduce::kEnd) {
          check_bitwise(r, base);
          continue;
        }
        check_close(r, base);
        CHECK(r.losses[0] == base.losses[0]);
        CHECK(r.grads != base.grads);  // otherwise README.md promises too little
        if (each) check_bitwise(r, *each);
        each = r;
      }
    CHECK(each);
    MeshRun one = small_run(mesh, 4);
    one.engine.micro_batch = 4;  // one microbatch a step and rank
    const MeshResult whole = run_mesh(one);
    for (int stage : {0, 2, 3}) {
      one.engine.zero = {.stage = stage, .persist_numel = 0};
      check_bitwise(run_mesh(one), whole);
    }
  }
}

TEST_CASE("bucket size, overlap and partition are bitwise equal", "[R10]") {
  const MeshShape mesh{.pp = 2, .dp = 2, .tp = 1};
  const MeshResult base = run_mesh(small_run(mesh, 4));
  for (int stage : {0, 1})
    for (int64_t bucket : {int64_t{1}, int64_t{20000}, int64_t{1} << 30})
      for (bool overlap : {false, true}) {
        INFO("zero " << stage << " bucket " << bucket << " overlap " << overlap);
        MeshRun run = small_run(mesh, 4);
        run.engine.zero = {stage, bucket, overlap};
        check_bitwise(run_mesh(run), base);
      }
  MeshRun run = small_run(mesh, 4);
  run.engine.partition = "4,1";
  check_bitwise(run_mesh(run), base);
}

TEST_CASE("an untied head, more data-parallel ranks and other microbatch sizes stay close to one rank") {
  MeshRun one = small_run({}, 6);
  one.engine.model.tied = false;
  const MeshResult reference = run_mesh(one);
  CHECK(reference.grads.count("head.weight") == 1);
  for (int64_t micro : {int64_t{1}, int64_t{2}, int64_t{4}}) {
    MeshRun run = small_run({.pp = 2, .dp = 2, .tp = 2}, 6);
    run.engine.model.tied = false;
    run.engine.micro_batch = micro;
    INFO("micro_batch " << micro);
    check_close(run_mesh(run), reference);
  }
}
