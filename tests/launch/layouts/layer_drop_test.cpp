// Progressive layer drop: the dropped layers of a step are a function of (seed, step, block), independent of layout,
// schedule, ZeRO stage, recompute mode and resume. A dropped layer has no effect at all.
#include "model/layer_drop.h"

#include <algorithm>
#include <filesystem>

#include "parallel/comm/null_group.h"
#include "tests/launch/commands/deepspeed_fixture.h"
#include "tests/launch/engine_ranks.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

// Nearly full drop rate from the second step on.
constexpr LayerDrop kOften{.enabled = true, .theta = 0.2, .gamma = 10};
constexpr int64_t kLayers = 6;

MeshRun run_of(MeshShape mesh) {
  MeshRun run;
  run.engine.model = {.layers = kLayers, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 16};
  run.engine.loss_chunk = 16;
  run.engine.layer_drop = kOften;
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.engine.zero.persist_numel = 0;
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 5;
  run.every_step = run.evaluate = true;
  run.samples = synthetic_samples(48, 16, 300, 5);
  return run;
}

int left_out(int64_t step, uint64_t seed = 1234) {
  std::vector<double> keep(kLayers);
  draw_blocks(kOften, seed, step, keep);
  return static_cast<int>(std::count(keep.begin(), keep.end(), 0.));
}

void check_same(const MeshResult& a, const MeshResult& b) {
  check_bitwise(a, b);
  REQUIRE(a.steps.size() == b.steps.size());
  for (size_t k = 0; k < a.steps.size(); ++k) {
    CHECK(a.steps[k].grads == b.steps[k].grads);
    CHECK(a.steps[k].weights == b.steps[k].weights);
  }
}

// Memory that only some steps need is planned: no step exceeds the plan.
void check_within_plan(const MeshResult& r) {
  for (size_t rank = 0; rank < r.planned.size(); ++rank) {
    INFO("rank " << rank);
    const EnginePlan &plan = r.planned[rank], &real = r.measured[rank];
    CHECK(real.train.activation_bytes <= plan.train.activation_bytes);
    CHECK(real.train.gradient_bytes <= plan.train.gradient_bytes);
    CHECK(real.zero.gathered <= plan.zero.gathered);
    CHECK(real.zero.gradients <= plan.zero.gradients);
  }
}

}  // namespace

TEST_CASE("theta decays from 1 by the formula, deeper blocks are dropped more often, the first never") {
  const LayerDrop d{.enabled = true, .theta = 0.5, .gamma = 0.001};
  CHECK(theta_at(d, 0) == 1);
  CHECK(theta_at(d, 1) == Approx(0.9995).epsilon(1e-6));
  CHECK(theta_at(d, 100) == Approx(0.952419).epsilon(1e-6));
  CHECK(theta_at(d, 1000000) == 0.5);
  CHECK(drop_probability(d, 100, 0, 12) == 0);
  CHECK(drop_probability(d, 1000000, 6, 12) == 0.25);
  CHECK(drop_probability(d, 1000000, 11, 12) == Approx(11. / 24));

  std::vector<double> keep(12), gone(12), again(12);
  constexpr int kSteps = 20000;
  const LayerDrop flat{.enabled = true, .theta = 0.4, .gamma = 1e9};
  for (int64_t step = 1; step <= kSteps; ++step) {
    draw_blocks(flat, 7, step, keep);
    for (size_t i = 0; i < keep.size(); ++i) {
      const double p = drop_probability(flat, step, static_cast<int64_t>(i), 12);
      REQUIRE((keep[i] == 0 || keep[i] == 1 - p));
      gone[i] += keep[i] == 0;
    }
  }
  for (size_t i = 0; i < gone.size(); ++i) {
    const double p = 0.6 * static_cast<double>(i) / 12;
    INFO("block " << i);
    CHECK(std::abs(gone[i] / kSteps - p) <= 4 * std::sqrt(p * (1 - p) / kSteps));
  }
  draw_blocks(flat, 7, kSteps, again);
  CHECK(again == keep);  // depends on (seed, step, block) only
}

TEST_CASE("a dropped block has no effect, and the branches of a kept one are divided by its probability") {
  EngineOptions whole;
  whole.model = {.layers = 4, .hidden = 24, .heads = 4, .ffn = 60, .vocab = 300, .seq = 16};
  whole.micro_batch = 2;
  whole.microbatches = 2;
  EngineOptions small = whole;
  small.model.layers = 2;
  whole.layer_drop = {.enabled = true, .theta = 0.5, .gamma = 0.001};  // so that memory is planned for it
  // Blocks 0 and 2 of four are the blocks of the small model, where the second one's output projections are doubled.
  std::map<std::string, std::vector<float>> all, two;
  double with_all = 0, with_two = 0, eval_all = 0, norm_all = 0;
  whole.lr = small.lr = {.type = "constant", .peak = 1e-30};
  on_engines(whole, {}, [&](EngineRank& r) {
    r.engine.set_layer_keep(std::vector<double>{1, 0, 0.5, 0});
    for (Parameter* p : r.engine.store().parameters())
      all[p->name].assign(p->value.as<float>(), p->value.as<float>() + p->value.numel());
    const StepResult s = r.step(0);
    with_all = s.loss, norm_all = s.grad_norm;
    GT_CHECK(s.blocks == 2, s.blocks, " blocks ran");
    for (Parameter* p : r.engine.store().parameters())
      if (p->name.find("layers.1.") == 0 || p->name.find("layers.3.") == 0)
        for (int64_t i = 0; i < p->grad.numel(); ++i) GT_CHECK(p->grad.as<float>()[i] == 0, p->name, " has a gradient");
    eval_all = r.evaluate(0, 2) / static_cast<double>(r.targets(2));
  });
  on_engines(small, {}, [&](EngineRank& r) {
    for (Parameter* p : r.engine.store().parameters()) {
      std::string name = p->name;
      const bool second = name.rfind("layers.1.", 0) == 0;
      if (second) name[7] = '2';
      const bool back = name.find("attn.out") != std::string::npos || name.find("mlp.down") != std::string::npos;
      const std::vector<float>& from = all.at(name);
      GT_CHECK(static_cast<int64_t>(from.size()) == p->value.numel(), name);
      for (size_t i = 0; i < from.size(); ++i) p->value.as<float>()[i] = from[i] * (second && back ? 2 : 1);
    }
    r.engine.store().refresh_from_masters();
    with_two = r.step(0).loss;
  });
  CHECK(with_all == Approx(with_two).epsilon(1e-6));
  CHECK(norm_all > 0);
  CHECK(std::abs(eval_all - with_all) > 1e-5);  // evaluation runs all four blocks undropped and unscaled
}

TEST_CASE("with layer drop pipelines, schedules, ZeRO and recomputation are bitwise equal to a flat run") {
  int most = 0;
  for (int64_t step = 1; step < 5; ++step) most = std::max(most, left_out(step));
  REQUIRE(most >= 3);  // some stage is empty
  struct Way {
    int pp, vpp, zero;
    const char* schedule;
    Recompute recompute;
    GradReduce reduce = GradReduce::kEnd;
  };
  const Way ways[] = {{1, 1, 3, "1f1b", Recompute::kFull},        {1, 1, 1, "1f1b", Recompute::kSelective},
                      {2, 1, 0, "1f1b", Recompute::kNone},        {2, 1, 3, "gpipe", Recompute::kFull},
                      {2, 2, 3, "interleaved", Recompute::kNone}, {2, 2, 1, "interleaved", Recompute::kFull},
                      {4, 1, 3, "zb-h1", Recompute::kSelective},  {2, 1, 2, "zb-h1", Recompute::kFull},
                      {4, 1, 1, "1f1b", Recompute::kSelective}};
  for (const MeshShape base : {MeshShape{}, MeshShape{.dp = 2, .tp = 2}}) {
    if (kSanitized && base.dp == 1) continue;
    const MeshResult flat = run_mesh(run_of(base));
    for (const Way& w : ways) {
      INFO("tp " << base.tp << " dp " << base.dp << " pp " << w.pp << " " << w.schedule << " zero " << w.zero
                 << " recompute " << static_cast<int>(w.recompute));
      MeshRun run = run_of({.pp = w.pp, .dp = base.dp, .tp = base.tp});
      run.engine.schedule = w.schedule;
      run.engine.vpp = w.vpp;
      run.engine.zero.stage = w.zero;
      run.engine.zero.grad_reduce = w.reduce;
      run.engine.recompute = w.recompute;
      const MeshResult r = run_mesh(run);
      check_same(r, flat);
      check_within_plan(r);
    }
  }
}

TEST_CASE("with layer drop every kind of layout and microbatch stays close to one rank") {
  const MeshResult one = run_mesh(run_of({}));
  for (const MeshShape& mesh : {MeshShape{.dp = 2}, MeshShape{.tp = 4}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (const int zero : {1, 2, 3}) {
      INFO("tp " << mesh.tp << " pp " << mesh.pp << " dp " << mesh.dp << " zero " << zero);
      MeshRun run = run_of(mesh);
      run.follow = &one.steps;
      run.engine.zero.stage = zero;
      run.engine.zero.grad_reduce = zero > 1 ? GradReduce::kEach : GradReduce::kAuto;
      run.engine.sequence_parallel = mesh.tp == 4;
      run.engine.micro_batch = mesh.dp;
      const MeshResult r = run_mesh(run);
      check_close(r, one);
      check_within_plan(r);
      for (size_t k = 0; k < one.steps.size(); ++k) {
        const auto [name, error] = worst_error(r.steps[k].grads, one.steps[k].grads);
        INFO("step " << k << ", worst gradient: " << name);
        CHECK(error <= 1e-5);
      }
    }
}

TEST_CASE("memory is planned for any set of dropped layers, on every rank of any layout") {
  const std::vector<MeshShape> shapes{{}, {.dp = 2}, {.pp = 2, .dp = 2}, {.pp = 3, .dp = 4, .tp = 2}};
  for (const MeshShape& shape : shapes)
    for (const int stage : {1, 2, 3})
      for (const char* schedule : {"1f1b", "zb-h1", "interleaved"})
        for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
          for (const int64_t again : {0, 2})
            for (const int prefetch : {1, 3}) {
              if (shape.pp == 1 && std::string(schedule) == "interleaved") continue;
              if ((again > 0 && how == Recompute::kNone) || (prefetch > 1 && stage < 3)) continue;
              EngineOptions o;
              o.model = {.layers = 12, .hidden = 16, .heads = 4, .ffn = 32, .vocab = 60, .seq = 8};
              o.recompute = how;
              o.recompute_layers = again;
              o.layer_drop = {true, 0, 5};
              o.zero.stage = stage;
              o.zero.persist_numel = 0;
              o.zero.prefetch = prefetch;
              o.zero.bucket_bytes = again > 0 ? 1 : 20000;
              o.zero.grad_reduce = stage > 1 ? GradReduce::kEach : GradReduce::kEnd;
              o.schedule = schedule;
              o.vpp = o.schedule == "interleaved" ? 2 : 1;
              o.micro_batch = 2;
              o.microbatches = 5;
              o.evaluates = false;
              for (int rank = 0; rank < shape.world(); rank += shape.tp * shape.dp) {
                INFO("pp " << shape.pp << " dp " << shape.dp << " tp " << shape.tp << " zero " << stage << ' '
                           << schedule << " recompute " << static_cast<int>(how) << ' ' << again << " prefetch "
                           << prefetch << " rank " << rank);
                NullFactory nobody(rank, shape.world());
                const Mesh mesh(shape, nobody);
                const Stream stream{{DeviceKind::kNull, 0}, nullptr};
                Engine engine(o, mesh, null_backend(), stream, plan_memory(o, shape, rank));
                const Buffer tokens(2 * 8 * 4, stream.device, *null_backend().device);
                MicroBatch mb;
                mb.batch = 2, mb.seq = 8;
                mb.tokens = mb.targets = tokens.tensor({2, 8}, DType::kI32);
                const std::vector<MicroBatch> batch(5, mb);
                for (int k = 0; k < 12; ++k) {
                  engine.set_applied_steps(1 + k);
                  REQUIRE_NOTHROW(engine.step(batch, 80));
                }
              }
            }
}

TEST_CASE("memory is planned for blocks that have not run yet and have no FP8 scales") {
  constexpr int kSteps = 24;
  constexpr uint32_t kRangesOfBlock = 8;
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.pp = 2}})
    for (const char* schedule : {"1f1b", "zb-h1"})
      for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
        for (const double dropout : {0.0, 0.1}) {
          EngineOptions o;
          o.model = {.layers = 8, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 60, .seq = 16};
          o.model.dropout = dropout;
          o.recompute = how;
          o.recompute_layers = how == Recompute::kNone ? 0 : 2;
          o.precision = {.level = 2, .fp8 = Fp8Recipe::kDelayed};
          o.layer_drop = {true, 0, 5};
          o.schedule = schedule;
          o.micro_batch = 2;
          o.microbatches = 5;
          o.evaluates = false;
          NullFactory nobody(0, shape.world());
          const Mesh mesh(shape, nobody);
          const Stream stream{{DeviceKind::kNull, 0}, nullptr};
          Engine engine(o, mesh, null_backend(), stream, plan_memory(o, shape, 0));
          const Buffer tokens(2 * 16 * 4, stream.device, *null_backend().device);
          MicroBatch mb;
          mb.batch = 2, mb.seq = 16;
          mb.tokens = mb.targets = tokens.tensor({2, 16}, DType::kI32);
          const std::vector<MicroBatch> batch(5, mb);
          // random subset of blocks with known scales in every step: more orders than real runs have
          uint32_t draw = 1;
          for (int k = 0; k < kSteps; ++k) {
            INFO("pp " << shape.pp << ' ' << schedule << " recompute " << static_cast<int>(how) << " dropout "
                       << dropout << " step " << k);
            draw = draw * 1664525u + 1013904223u;
            for (ModelStage* stage : engine.stages()) {
              const std::vector<Fp8State*> ranges = stage->fp8_states();
              for (uint32_t i = 0; i < ranges.size(); ++i)
                ranges[i]->scale.has_history = k == 0 || (draw >> (8 + i / kRangesOfBlock) & 1u) != 0;
            }
            engine.set_applied_steps(1 + k);
            REQUIRE_NOTHROW(engine.step(batch, 160));
          }
        }
}

TEST_CASE("a run with layer drop that is stopped and resumed in another layout is bitwise the uninterrupted run") {
  TempDir dir;
  const std::string run =
      "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
      "--train.global_batch 4 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --train.pld "
      "--train.pld_theta 0.3 --train.pld_gamma 1 --launch.ranks threads --checkpoint.every 4 --schedule.type constant "
      "--train.eval_every 4 --train.eval_steps 1 ";
  const Outcome whole = gpttrain(run + "--log.name whole --train.steps 8", dir.path());
  INFO(whole.out);
  REQUIRE(whole.code == 0);
  CHECK(whole.prints("layer drop"));
  REQUIRE(gpttrain(run + "--log.name parts --train.steps 4", dir.path()).code == 0);
  const Outcome rest = gpttrain(run + "--log.name parts --train.steps 8 --pp 2 --parallel.recompute full", dir.path());
  INFO(rest.out);
  REQUIRE(rest.code == 0);
  for (const char* key : {"loss", "grad_norm"})
    CHECK(logged(dir / "runs/whole", key) == logged(dir / "runs/parts", key));
  CHECK(logged(dir / "runs/whole", "loss", "eval") == logged(dir / "runs/parts", "loss", "eval"));
}

TEST_CASE("gpttrain verify compares layouts with layer drop, growing sequences and early division with one rank") {
  TempDir dir;
  const Outcome r = gpttrain(
      "verify --model.layers 4 --model.hidden 16 --model.heads 4 --model.vocab 60 --model.seq 32 --train.micro_batch 2 "
      "--train.grad_accum 3 --device.kind cpu --train.pld --data.curriculum fixed_linear --zero.prescale --tp 2 --pp 2 "
      "--dp 2 --zero.stage 3",
      dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("train.pld_theta 0.5 -> 0.3"));
}

TEST_CASE("DeepSpeed's progressive_layer_drop becomes train.pld") {
  const std::vector<std::string> batch{"--train.global_batch", "8"};
  const LoadedConfig on = load_deepspeed(
      {.json = R"({"progressive_layer_drop": {"enabled": true, "theta": 0.6, "gamma": 0.01}})", .flags = batch});
  CHECK(on.config.train.layer_drop.enabled);
  CHECK(on.config.train.layer_drop.theta == 0.6);
  CHECK(on.config.train.layer_drop.gamma == 0.01);
  CHECK_THAT(joined_notes(on), Contains("progressive_layer_drop.enabled true -> train.pld true"));
  const LoadedConfig standard =
      load_deepspeed({.json = R"({"progressive_layer_drop": {"enabled": true}})", .flags = batch});
  CHECK(standard.config.train.layer_drop.theta == 0.5);
  CHECK(standard.config.train.layer_drop.gamma == 0.001);
  const LoadedConfig off =
      load_deepspeed({.json = R"({"progressive_layer_drop": {"enabled": false, "theta": 0.6}})", .flags = batch});
  CHECK_FALSE(off.config.train.layer_drop.enabled);
  CHECK_THAT(joined_notes(off), Contains("progressive_layer_drop.theta 0.6: no effect"));
}
