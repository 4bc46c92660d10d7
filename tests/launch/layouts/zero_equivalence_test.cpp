// ZeRO stages 0 to 3 do not change results: bitwise identical if gradients are reduced once a step, close if reduced
// per microbatch, under every axis, schedule and recomputation. Each run matches its planned memory and traffic.
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Setting {
  MeshShape mesh;
  const char* schedule = "1f1b";
  int vpp = 1;
  Recompute recompute = Recompute::kNone;
  bool tied = true;
  int microbatches = 3;
  double dropout = 0;
};

std::string text(const Setting& s) {
  return cat("tp ", s.mesh.tp, " pp ", s.mesh.pp, " dp ", s.mesh.dp, ' ', s.schedule, " vpp ", s.vpp, " recompute ",
             static_cast<int>(s.recompute), s.tied ? " tied" : " untied", " m ", s.microbatches, " dropout ",
             s.dropout);
}
std::string text(const ZeroOptions& z) {
  return cat("zero ", z.stage, " bucket ", z.bucket_bytes, z.overlap ? " overlap" : "", " grad_reduce ",
             static_cast<int>(z.grad_reduce), " prefetch ", z.prefetch, " persist ", z.persist_numel);
}

MeshRun run_of(const Setting& s, const ZeroOptions& zero) {
  static const auto kSamples = synthetic_samples(48, 8, 60, 11);
  MeshRun run;
  run.engine.model = {.layers = 5, .hidden = 16, .heads = 4, .ffn = 40, .vocab = 60, .seq = 8, .tied = s.tied};
  run.engine.loss_chunk = 5;  // two logit chunks a microbatch
  run.engine.recompute = s.recompute;
  run.engine.model.dropout = s.dropout;
  run.engine.sequence_parallel = s.mesh.tp > 1;
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "constant", .peak = 1e-2};
  run.engine.schedule = s.schedule;
  run.engine.vpp = s.vpp;
  run.engine.zero = zero;
  run.mesh = s.mesh;
  run.global_batch = int64_t{s.microbatches} * s.mesh.dp;
  run.steps = 3;
  run.evaluate = true;
  run.samples = kSamples;
  return run;
}

// Same batches, added in another order.
void check_reordered(const MeshResult& a, const MeshResult& b) {
  CHECK(a.losses[0] == b.losses[0]);
  CHECK(a.norms[0] == Approx(b.norms[0]).epsilon(1e-6));
  CHECK(worst_error(a.grads, b.grads).second <= 1e-5);
  for (size_t k = 0; k < a.losses.size(); ++k) CHECK(a.losses[k] == Approx(b.losses[k]).epsilon(1e-6));
  CHECK(worst_error(a.weights, b.weights).second <= 2e-4);  // Adam's first steps follow the signs of tiny gradients
  CHECK(a.eval_loss == Approx(b.eval_loss).epsilon(1e-6));
}

MeshResult checked_run(const Setting& s, const ZeroOptions& zero) {
  const MeshRun run = run_of(s, zero);
  MeshResult r = run_mesh(run);
  check_planned(r, run.steps);
  return r;
}

ZeroOptions zero(int stage, GradReduce reduce, int prefetch = 1, int64_t bucket = 1, bool overlap = true,
                 int64_t persist = 0) {
  return {stage, bucket, overlap, reduce, prefetch, persist};
}

constexpr GradReduce kEach = GradReduce::kEach, kEnd = GradReduce::kEnd;

const std::vector<Setting>& settings() {
  static const std::vector<Setting> kAll{
      {.mesh = {.dp = 2}},
      {.mesh = {.dp = 3}, .tied = false},  // shards that split parameters at odd offsets
      {.mesh = {.dp = 2}, .recompute = Recompute::kFull},
      {.mesh = {.dp = 2, .tp = 2}, .recompute = Recompute::kSelective},
      {.mesh = {.dp = 2}, .microbatches = 1},
      {.mesh = {.pp = 2, .dp = 2}},
      {.mesh = {.pp = 2, .dp = 2}, .schedule = "gpipe", .tied = false},
      {.mesh = {.pp = 2, .dp = 2}, .schedule = "zb-h1", .microbatches = 5},
      {.mesh = {.pp = 2, .dp = 2, .tp = 2}, .schedule = "zb-h1", .recompute = Recompute::kFull},
      {.mesh = {.pp = 2, .dp = 2}, .schedule = "interleaved", .vpp = 2, .microbatches = 4},
      {.mesh = {.pp = 4, .dp = 2}, .schedule = "interleaved", .vpp = 2, .recompute = Recompute::kFull},
      {.mesh = {.pp = 2, .dp = 2, .tp = 2}, .recompute = Recompute::kSelective},
      {.mesh = {.pp = 2, .dp = 2}, .schedule = "zb-h1", .recompute = Recompute::kFull, .dropout = 0.2},
  };
  return kAll;
}

}  // namespace

TEST_CASE("ZeRO stages 0 to 3 are bitwise equal when gradients are reduced at the end", "[R10]") {
  for (const Setting& s : settings()) {
    INFO(text(s));
    const MeshResult base = checked_run(s, zero(0, GradReduce::kAuto));
    for (const ZeroOptions& z : {zero(1, GradReduce::kAuto), zero(2, kEnd), zero(3, kEnd)}) {
      INFO(text(z));
      check_bitwise(checked_run(s, z), base);
    }
  }
}

TEST_CASE("gradients reduced every microbatch are close, and bitwise equal between stages 2 and 3", "[R10]") {
  for (const Setting& s : settings()) {
    INFO(text(s));
    const MeshResult base = checked_run(s, zero(1, GradReduce::kAuto));
    const MeshResult two = checked_run(s, zero(2, kEach));
    check_reordered(two, base);
    if (s.microbatches == 1) check_bitwise(two, base);  // nothing to reorder
    check_bitwise(checked_run(s, zero(3, kEach)), two);
  }
}

TEST_CASE("overlap, bucket size, prefetch and unsharded units are bitwise identical") {
  constexpr int64_t kHuge = int64_t{1} << 30;
  for (const Setting& s : {Setting{.mesh = {.dp = 4}}, Setting{.mesh = {.pp = 2, .dp = 2}, .schedule = "zb-h1"}})
    for (GradReduce reduce : {kEach, kEnd}) {
      INFO(text(s));
      const MeshResult base = checked_run(s, zero(3, reduce));
      for (const ZeroOptions& z :
           {zero(3, reduce, 0), zero(3, reduce, 2), zero(3, reduce, 64), zero(3, reduce, 1, 20000),
            zero(3, reduce, 2, kHuge), zero(3, reduce, 0, 1, false), zero(3, reduce, 2, 20000, false),
            zero(3, reduce, 1, 1, true, 100), zero(3, reduce, 1, 1, true, 2000), zero(3, reduce, 1, 1, true, kHuge),
            zero(2, reduce, 1, 20000), zero(2, reduce, 1, kHuge, false), zero(2, reduce, 1, 1, false)}) {
        INFO(text(z));
        check_bitwise(checked_run(s, z), base);
      }
    }
}

TEST_CASE("with gradients reduced every microbatch, pipelines and schedules are bitwise equal to one pipeline rank") {
  for (bool tied : {true, false}) {
    const MeshResult flat = checked_run({.mesh = {.dp = 2}, .tied = tied, .microbatches = 4}, zero(2, kEach));
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "interleaved"})
      for (int stage : {2, 3}) {
        INFO(schedule << (tied ? " tied" : " untied") << " zero " << stage);
        const int vpp = schedule == std::string("interleaved") ? 2 : 1;
        check_bitwise(
            checked_run({.mesh = {.pp = 2, .dp = 2}, .schedule = schedule, .vpp = vpp, .tied = tied, .microbatches = 4},
                        zero(stage, kEach)),
            flat);
      }
  }
}

TEST_CASE("with one data-parallel rank every stage is the same run") {
  const Setting s{.mesh = {.pp = 2, .tp = 2}};
  const MeshResult base = checked_run(s, zero(0, GradReduce::kAuto));
  for (const ZeroOptions& z : {zero(1, GradReduce::kAuto), zero(2, kEach), zero(3, kEach), zero(3, kEnd)}) {
    INFO(text(z));
    const MeshResult r = checked_run(s, z);
    check_bitwise(r, base);
    for (size_t rank = 0; rank < r.measured.size(); ++rank) {
      CHECK(r.measured[rank].memory.total() == base.measured[rank].memory.total());
      CHECK(r.ranks[rank].data_parallel.total() == 0);
    }
  }
}

TEST_CASE("a run of the binary resumes under other ZeRO stages bitwise") {
  TempDir dir;
  const std::string tiny =
      "train --model.layers 3 --model.hidden 16 --model.heads 2 --model.vocab 60 --model.seq 8 --data.train mock "
      "--train.micro_batch 1 --train.global_batch 4 --schedule.type constant --device.kind cpu "
      "--log.tensorboard false --launch.ranks threads --dp 2 --zero.grad_reduce end --train.eval_every 3 "
      "--train.eval_steps 1 ";
  const auto train = [&](const std::string& flags, const std::string& text) {
    const Outcome o = gpttrain(tiny + flags, dir.path());
    INFO(o.out);
    REQUIRE(o.code == 0);
    CHECK(o.prints(text));
  };
  train("--log.name one --train.steps 9", "stage 1: a rank holds ");
  train("--log.name x --zero 3 --zero.persist_numel 0 --zero.offload optimizer --train.steps 3",
        "zero.offload has no effect");
  train("--log.name x --zero 0 --train.steps 6", "stage 0: a rank holds ");
  train("--log.name x --zero 2 --pp 2 --train.steps 9", "with zero.grad_reduce each: a rank holds ");
  for (const char* key : {"loss", "grad_norm"}) CHECK(logged(dir / "runs/x", key) == logged(dir / "runs/one", key));
  CHECK(logged(dir / "runs/x", "loss").size() == 9);
  const Outcome eval = gpttrain("eval --load runs/x --steps 2", dir.path());
  INFO(eval.out);
  CHECK(eval.code == 0);
}

TEST_CASE("gradients are reduced every microbatch unless a pipeline makes that expensive") {
  const auto mode = [](int stage, int pp, int m, GradReduce requested = GradReduce::kAuto) {
    return grad_reduce_of({.stage = stage, .grad_reduce = requested}, pp, m);
  };
  for (int stage : {0, 1}) CHECK(mode(stage, 1, 4) == kEnd);
  CHECK(mode(2, 1, 4) == kEach);
  CHECK(mode(2, 2, 4) == kEnd);
  CHECK(mode(2, 2, 1) == kEach);  // same traffic, less memory
  CHECK(mode(3, 1, 4) == kEach);
  CHECK(mode(3, 2, 4) == kEach);
  CHECK(mode(2, 1, 4, kEnd) == kEnd);
  CHECK(mode(2, 4, 4, kEach) == kEach);
}
