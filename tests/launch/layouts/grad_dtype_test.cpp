// Gradients stored and accumulated in bf16 (precision.grad_dtype): layouts that are bitwise identical, 16-bit error
// bounds otherwise, half the memory, the effect on the loss curve, and whole runs.
#include "launch/config/config_precision.h"
#include "launch/tools/verify/mesh_run.h"
#include "launch/tools/verify/verifier.h"
#include "tests/launch/process.h"
#include "tests/launch/small_amp_run.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Level {
  const char* name;
  Precision precision;
  bool scaled = false;
};
const std::vector<Level> kLevels{{"O0", {}},
                                 {"O1 bf16", {.level = 1}},
                                 {"O2 bf16", {.level = 2}},
                                 {"O2 fp16", {.level = 2, .compute_dtype = DType::kF16}, true},
                                 {"O3 bf16", {.level = 3, .keep_norm = false, .masters = false}}};

MeshRun small(MeshShape mesh, const Level& level, DType grad = DType::kBF16) {
  MeshRun run = small_amp_run(mesh, level.precision, level.scaled);
  run.engine.zero.grad = grad;
  return run;
}

}  // namespace

TEST_CASE("bf16 gradients: pipelines, schedules, ZeRO stages and recomputation are bitwise identical") {
  for (const Level& level : kLevels) {
    const MeshResult reference = run_mesh(small({.dp = 2}, level));
    INFO(level.name);
    CHECK(reference.losses.back() < reference.losses.front());
    CHECK(reference.losses != run_mesh(small({.dp = 2}, level, DType::kF32)).losses);
    for (int stage = 0; stage <= 3; ++stage)
      for (int pp : {1, 2}) {
        MeshRun run = small({.pp = pp, .dp = 2}, level);
        run.engine.zero.stage = stage;
        run.engine.zero.grad_reduce = GradReduce::kEnd;
        run.engine.zero.persist_numel = 0;
        if (pp == 2) run.engine.schedule = stage == 1 ? "zb-h1" : stage == 2 ? "gpipe" : "1f1b";
        if (stage >= 2) run.engine.recompute = pp == 2 ? Recompute::kFull : Recompute::kSelective;
        INFO("zero " << stage << " pp " << pp);
        check_same(run_mesh(run), reference);
      }
  }
}

TEST_CASE("bf16 gradients: reduced after each microbatch, stages 2 and 3 and every schedule are bitwise identical") {
  const auto each = [](int stage, int pp, DType reduce) {
    MeshRun run = small({.pp = pp, .dp = 2}, kLevels[2]);
    run.engine.zero.stage = stage;
    run.engine.zero.grad_reduce = GradReduce::kEach;
    run.engine.zero.reduce = reduce;
    run.engine.zero.persist_numel = 0;
    if (pp == 2) run.engine.schedule = stage == 2 ? "zb-h1" : "1f1b";
    return run_mesh(run);
  };
  for (const DType reduce : {DType::kF32, DType::kBF16}) {
    INFO("added up in " << name_of(reduce));
    const MeshResult reference = each(2, 1, reduce);
    for (const auto& [stage, pp] : {std::pair{3, 1}, {2, 2}, {3, 2}}) check_same(each(stage, pp, reduce), reference);
  }
}

TEST_CASE("bf16 gradients: the optimizer reads bf16, stored in half the bytes, at every ZeRO stage") {
  EngineOptions o = small({}, kLevels[2]).engine;
  o.model = {.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 512, .seq = 16};
  o.microbatches = 2;
  for (int stage : {0, 1, 2, 3}) {
    INFO("zero " << stage);
    const auto plan = [&](DType grad, DType reduce) {
      o.zero = {.stage = stage, .bucket_bytes = 1 << 14, .persist_numel = 0, .grad = grad, .reduce = reduce};
      return plan_memory(o, {.dp = 4}, 0).memory;
    };
    const MemoryReport full = plan(DType::kF32, DType::kF32), bf16 = plan(DType::kBF16, DType::kBF16);
    const auto whole = static_cast<double>(full.gradients);
    CHECK(static_cast<double>(bf16.gradients) == Approx(whole / 2).epsilon(0.01));
    CHECK(bf16.weights == full.weights);
    CHECK(bf16.optimizer == full.optimizer);
    // Gradients reduced as FP32 need an extra buffer while in flight: one bucket.
    const MemoryReport sent_wide = plan(DType::kBF16, DType::kF32);
    CHECK(sent_wide.gradients <= bf16.gradients + 2 * o.zero.bucket_bytes);
  }
  const auto alone = [&](DType grad) {
    o.zero = {.grad = grad};
    return static_cast<double>(plan_memory(o, {}, 0).memory.gradients);
  };
  CHECK(alone(DType::kBF16) == Approx(alone(DType::kF32) / 2).epsilon(0.01));
}

TEST_CASE("bf16 gradients: layouts are close to one rank at every level") {
  Verifier verifier({.steps = 3});
  const std::string base =
      "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --train.micro_batch 2 "
      "--train.grad_accum 4 --schedule.type constant --optim.lr 1e-3 --precision.grad_dtype bf16 ";
  for (const std::string amp : {"--amp O0", "--amp O1", "--amp O2", "--amp O2 --precision.dtype fp16",
                                "--amp O2 --precision.reduce_dtype bf16"})
    for (const std::string layout :
         {"--tp 2", "--tp 2 --pp 2 --dp 2 --zero 2 --parallel.schedule zb-h1", "--dp 4 --zero 3 --optim.type lamb",
          "--pp 2 --vpp 2 --parallel.schedule interleaved"}) {
      ConfigSource source;
      std::istringstream words(base + amp + " " + layout);
      for (std::string w; words >> w;) source.flags.push_back(w);
      INFO(amp << ' ' << layout);
      const VerifyResult v = verifier.check(load_config(source).config);
      const Difference* d = v.bad();
      INFO((d ? d->name + " " + std::to_string(d->error) + " step " + std::to_string(d->step) : "equal"));
      CHECK(d == nullptr);
    }
}

TEST_CASE("bf16 gradients: 60 steps of 8 microbatches end where those of FP32 gradients end, within 2 %") {
  for (const Level& level : {kLevels[0], kLevels[2]}) {
    const auto last = [&](DType grad) {
      MeshRun run = small({}, level, grad);
      run.engine.model.dropout = 0;
      run.engine.lr.peak = 3e-3;
      run.steps = 60;
      run.samples = synthetic_samples(8, 16, 300, 3);  // repeated: learnable
      for (int k = 1; k < run.steps; ++k)
        for (int i = 0; i < 8; ++i) run.samples.push_back(run.samples[static_cast<size_t>(i)]);
      const MeshResult r = run_mesh(run);
      CHECK(r.losses.back() < 0.5 * r.losses.front());
      return r.losses.back();
    };
    const double full = last(DType::kF32), bf16 = last(DType::kBF16);
    INFO(level.name << ": FP32 " << full << ", bf16 " << bf16);
    CHECK(bf16 == Approx(full).epsilon(0.02));
  }
}

namespace {
const std::string kTiny =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--optim.lr 3e-3 --device.kind cpu --log.tensorboard false --launch.ranks threads ";
}

TEST_CASE("bf16 gradients: a run reports their memory, saves none, and a resume may change their type") {
  TempDir dir;
  const std::string run = kTiny +
                          "--train.global_batch 8 --train.micro_batch 1 --dp 2 --pp 2 --amp O2 "
                          "--train.steps 6 --checkpoint.every 3 ";
  const Outcome whole = gpttrain(run + "--precision.grad_dtype bf16 --log.name whole", dir.path());
  INFO(whole.out);
  REQUIRE(whole.code == 0);
  CHECK(
      whole.prints("precision.grad_dtype bf16 halves the memory of gradients and keeps 8 significant bits: "
                   "of a sum over the 4 microbatches"));
  CHECK(whole.prints("FP32 masters, gradients bf16, loss scale 1"));
  CHECK_FALSE(must("ckpt inspect runs/whole/checkpoints/step-000000003", dir).prints("grad/"));
  const auto losses = logged(dir / "runs/whole", "loss");
  const auto resumed = [&](const std::string& name, const std::string& flags) {
    REQUIRE(shell("mkdir -p runs/" + name + " && cp -r runs/whole/checkpoints runs/" + name, dir.path()).code == 0);
    must(run + flags + " --checkpoint.resume 3 --log.name " + name, dir);
    return logged(dir / ("runs/" + name), "loss");
  };
  const std::vector<double> tail(losses.begin() + 3, losses.end());
  CHECK(resumed("same", "--precision.grad_dtype bf16 --zero 3 --zero.grad_reduce end --zero.persist_numel 0") == tail);
  const auto other = resumed("other", "--checkpoint.allow_change precision");
  REQUIRE(other.size() == 3);
  for (size_t k = 0; k < 3; ++k) CHECK(other[k] == Approx(tail[k]).epsilon(0.01));
}

TEST_CASE("bf16 gradients: fp16 that overflows finds its scale, and an injected infinity is skipped") {
  TempDir dir;
  const std::string run = kTiny +
                          "--train.global_batch 8 --train.micro_batch 1 --dp 2 --amp O2 --train.steps 10 "
                          "--precision.grad_dtype bf16 --checkpoint.every 0 ";
  must(run + "--precision.dtype fp16 --precision.loss_scale_init 16777216 --log.name scaled", dir);
  const auto skipped = logged(dir / "runs/scaled", "skipped");
  CHECK(skipped.front() == 1);
  CHECK(skipped.back() < 10);
  must(run + "--fault.inject 'inf@grad:step=4,param=layers.1.norm1.weight' --log.name injected", dir);
  CHECK(logged(dir / "runs/injected", "skipped").back() == 1);
}

TEST_CASE("bf16 gradients: a DeepSpeed file enables them") {
  TempDir dir;
  write_file(dir / "ds.json", R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
    "data_types": {"grad_accum_dtype": "bf16"}, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})");
  const std::string flags = "--dp 2 --train.steps 3 --checkpoint.every 0 --deepspeed_config ds.json --log.name ds";
  const Outcome r = must(kTiny + flags, dir);
  INFO(r.out);
  CHECK(r.prints("data_types.grad_accum_dtype bf16 -> precision.grad_dtype bf16"));
  CHECK(r.prints("gradients bf16"));
  CHECK(logged(dir / "runs/ds", "loss").size() == 3);
}
