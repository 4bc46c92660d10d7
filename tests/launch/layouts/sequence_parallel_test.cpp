// Sequence parallelism: tokens sharded over the TP ranks between tensor-parallel layers. It changes summation order and
// stored activations, so results are close to one rank; among each other such runs are bitwise identical.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "launch/engine/engine_options.h"
#include "parallel/comm/null_group.h"
#include "parallel/pipeline/preamble.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// 300: not divisible by 128 t, so padding depends on tp. With 3 sequences a microbatch, a rank's rows can begin inside
// one.
MeshRun run_of(MeshShape mesh, bool tied = true, int steps = 20) {
  MeshRun run;
  run.engine.model = {.layers = 3, .hidden = 24, .heads = 4, .ffn = 52, .vocab = 300, .seq = 8, .tied = tied};
  run.engine.loss_chunk = 10;
  run.engine.model.dropout = run.engine.model.attn_dropout = 0.1;
  run.engine.micro_batch = 3;
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "cosine", .peak = 3e-3, .min_lr = 1e-4, .warmup_steps = 3, .total_steps = 40};
  run.engine.sequence_parallel = true;
  run.mesh = mesh;
  run.global_batch = 12;
  run.steps = steps;
  run.evaluate = true;
  run.samples = synthetic_samples(60, 8, 300, 5);
  return run;
}

std::string text(const MeshShape& m) { return fmt::format("tp {} pp {} dp {}", m.tp, m.pp, m.dp); }

}  // namespace

TEST_CASE("with sequence parallelism every layout of up to 8 ranks equals one rank over 20 steps, tied and untied") {
  for (const bool tied : {true, false}) {
    const MeshResult one = run_mesh(run_of({}, tied));
    CHECK(one.losses.back() < 0.99 * one.losses.front());
    for (const MeshShape& mesh :
         {MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.dp = 2, .tp = 2}, MeshShape{.pp = 2, .tp = 2},
          MeshShape{.pp = 2, .dp = 2, .tp = 2}, MeshShape{.pp = 2, .tp = 4}, MeshShape{.pp = 4, .tp = 2},
          MeshShape{.dp = 2, .tp = 4}}) {
      INFO(text(mesh) << (tied ? " tied" : " untied"));
      const MeshResult r = run_mesh(run_of(mesh, tied));
      check_close(r, one);
      check_planned(r, 20);
    }
  }
}

TEST_CASE("sequence parallelism on one tp rank changes nothing") {
  MeshRun run = run_of({.dp = 2}, true, 3);
  const MeshResult on = run_mesh(run);
  run.engine.sequence_parallel = false;
  check_bitwise(run_mesh(run), on);
}

TEST_CASE("with sequence parallelism pipelines, schedules, ZeRO stages, buckets and overlap are bitwise equal") {
  for (const MeshShape base : {MeshShape{.tp = 2}, MeshShape{.dp = 2, .tp = 2}, MeshShape{.tp = 4}})
    for (const bool tied : {true, false}) {
      const MeshResult flat = run_mesh(run_of(base, tied, 3));
      check_bitwise(run_mesh(run_of(base, tied, 3)), flat);
      int turn = 0;  // cycles through stages, buckets and overlap
      for (int pp : {1, 2})
        for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"})
          for (const auto& [bucket, overlap] :
               {std::pair{int64_t{1}, true}, {int64_t{4000}, true}, {int64_t{1} << 30, false}}) {
            if (pp * base.world() > 4 && bucket == 4000) continue;
            MeshRun run = run_of({.pp = pp, .dp = base.dp, .tp = base.tp}, tied, 3);
            run.engine.schedule = schedule;
            run.engine.vpp = pp > 1 && schedule == std::string("interleaved") ? 2 : 1;
            run.engine.zero = {turn++ % 2, bucket, overlap};
            INFO(text(run.mesh) << ' ' << schedule << (tied ? " tied" : " untied") << " zero " << run.engine.zero.stage
                                << " bucket " << bucket << " overlap " << overlap);
            const MeshResult r = run_mesh(run);
            check_bitwise(r, flat);
            check_planned(r, run.steps);
          }
    }
}

TEST_CASE("with sequence parallelism recomputation is bitwise equal to none and saves memory") {
  for (const MeshShape mesh : {MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (const char* schedule : {"1f1b", "zb-h1", "interleaved"}) {
      MeshRun run = run_of(mesh, true, 3);
      if (mesh.pp == 1 && schedule == std::string("interleaved")) continue;
      run.engine.schedule = schedule;
      run.engine.vpp = schedule == std::string("interleaved") ? 2 : 1;
      const MeshResult none = run_mesh(run);
      for (const Recompute how : {Recompute::kSelective, Recompute::kFull})
        for (const int64_t layers : {0, 1}) {
          INFO(text(mesh) << ' ' << schedule << " recompute " << static_cast<int>(how) << " layers " << layers);
          run.engine.recompute = how;
          run.engine.recompute_layers = layers;
          const MeshResult r = run_mesh(run);
          check_bitwise(r, none);
          check_planned(r, run.steps);
          if (schedule == std::string("1f1b"))
            for (size_t rank = 0; rank < r.measured.size(); ++rank)
              CHECK(r.measured[rank].train.activation_bytes < none.measured[rank].train.activation_bytes);
        }
    }
}

TEST_CASE("gradients of every class of parameter under sequence parallelism equal finite differences") {
  MeshRun run = run_of({.dp = 2, .tp = 2}, false, 1);
  run.evaluate = false;
  const MeshResult start = run_mesh([&] {
    MeshRun r = run;
    r.engine.lr.peak = 0;  // one step that changes nothing but fills `weights`
    r.engine.optim.weight_decay = 0;
    return r;
  }());
  run.weights = &start.weights;
  const Logical grads = run_mesh(run).grads;
  for (const auto& [name, value] : start.weights) {
    // Along the gradient itself: the derivative is its norm, far above the noise of FP32 losses.
    const std::vector<float>& g = grads.at(name);
    double norm = 0;
    for (const float x : g) norm += double{x} * x;
    norm = std::sqrt(norm);
    INFO(name << " of gradient norm " << norm);
    REQUIRE(norm > 1e-6);
    const double step = std::min(0.02 / norm, 0.01);  // small against the weights, large against the noise
    double loss[2];
    for (const int side : {0, 1}) {
      Logical moved = start.weights;
      for (size_t i = 0; i < g.size(); ++i)
        moved[name][i] = static_cast<float>(value[i] + (side == 0 ? -step : step) * g[i] / norm);
      run.weights = &moved;
      loss[side] = run_mesh(run).losses[0];
    }
    CHECK((loss[1] - loss[0]) / (2 * step) == Approx(norm).epsilon(0.02));
  }
}

namespace {

EngineOptions engine_of(bool sequence_parallel) {
  EngineOptions o;
  o.model = {.layers = 4, .hidden = 32, .heads = 4, .ffn = 96, .vocab = 300, .seq = 16};
  o.loss_chunk = 64;
  o.micro_batch = 4;
  o.microbatches = 3;
  o.sequence_parallel = sequence_parallel;
  return o;
}

struct Traffic {
  CommCounters tp, pp;
};

// Traffic of one rank in a training step, or in an evaluation of as many microbatches.
Traffic traffic(const EngineOptions& o, MeshShape shape, int rank, bool train) {
  NullFactory factory(rank, shape.world());
  const Mesh mesh(shape, factory);
  const Stream stream{{DeviceKind::kNull, 0}, nullptr};
  EnginePlan plan;
  plan.train = plan.eval = {int64_t{1} << 32, int64_t{1} << 32, 0};
  Engine engine(o, mesh, null_backend(), stream, plan);
  const Buffer tokens(o.micro_batch * o.model.seq * 4, stream.device, *null_backend().device);
  MicroBatch mb;
  mb.batch = o.micro_batch;
  mb.seq = o.model.seq;
  mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32);
  const std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches), mb);
  if (train)
    engine.step(batch, 1);
  else
    engine.evaluate(batch);
  return {mesh.group(Axis::kTp).counters(), mesh.group(Axis::kPp).counters()};
}

// Bytes sent by one all-gather or reduce-scatter of a microbatch's activations: (t - 1) / t of them.
int64_t share(const EngineOptions& o, int tp) {
  return o.micro_batch * o.model.seq * o.model.hidden * 4 * (tp - 1) / tp;
}

}  // namespace

TEST_CASE("a layer sends the bytes of the formula: 8 (t-1)/t n E, and 2 more where column inputs are gathered again") {
  for (const int tp : {2, 4})
    for (const bool sp : {false, true})
      for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        EngineOptions o = engine_of(sp);
        o.recompute = how;
        o.microbatches = 1;
        const MeshShape shape{.tp = tp};
        INFO("tp " << tp << " sequence parallel " << sp << " recompute " << static_cast<int>(how));
        const CommCounters four = traffic(o, shape, tp - 1, true).tp;
        ++o.model.layers;
        const CommCounters five = traffic(o, shape, tp - 1, true).tp;
        const int64_t n = share(o, tp), forward_again = how == Recompute::kFull ? 1 : 0;
        // All-reduce of the layer's partial gradients: two norms and two row biases, once a step.
        const int64_t partial = sp ? 2 * (4 + 2) * o.model.hidden * 4 * (tp - 1) / tp : 0;
        CHECK(five.bytes(CommOp::kAllReduce) - four.bytes(CommOp::kAllReduce) ==
              (sp ? 0 : (8 + 4 * forward_again) * n) + partial);
        CHECK(five.bytes(CommOp::kAllGather) - four.bytes(CommOp::kAllGather) ==
              (sp ? (6 + 2 * forward_again) * n : 0));
        CHECK(five.bytes(CommOp::kReduceScatter) - four.bytes(CommOp::kReduceScatter) ==
              (sp ? (4 + 2 * forward_again) * n : 0));
        CHECK(five.bytes(CommOp::kBroadcast) + five.bytes(CommOp::kSend) == 0);
      }
}

TEST_CASE("a whole step and an evaluation send the sum of their layers' formulas") {
  for (const int tp : {2, 4})
    for (const bool sp : {false, true}) {
      const EngineOptions o = engine_of(sp);
      const TransformerConfig& c = o.model;
      const int64_t n = share(o, tp), m = o.microbatches, rows = o.micro_batch * c.seq;
      const int64_t stats = rows * 3 * 4 * (tp - 1);  // of the cross-entropy: three floats per token from every rank
      // Position embedding, norms, row biases.
      const int64_t partial = (c.seq + 6 * c.layers + 2) * c.hidden * 4 * 2 * (tp - 1) / tp;
      INFO("tp " << tp << " sequence parallel " << sp);
      const CommCounters step = traffic(o, {.tp = tp}, 0, true).tp, eval = traffic(o, {.tp = tp}, 0, false).tp;
      if (sp) {
        // Embedding: reduce-scatter, all-gather in the backward; head: all-gather, reduce-scatter in the backward.
        CHECK(step.bytes(CommOp::kAllReduce) == partial);
        CHECK(step.bytes(CommOp::kAllGather) == m * ((6 * c.layers + 2) * n + stats));
        CHECK(step.bytes(CommOp::kReduceScatter) == m * (4 * c.layers + 2) * n);
        CHECK(eval.bytes(CommOp::kAllReduce) == 0);
        CHECK(eval.bytes(CommOp::kAllGather) == m * ((2 * c.layers + 1) * n + stats));
        CHECK(eval.bytes(CommOp::kReduceScatter) == m * (2 * c.layers + 1) * n);
      } else {  // embedding forward, head backward
        CHECK(step.bytes(CommOp::kAllReduce) == m * (8 * c.layers + 4) * n);
        CHECK(step.bytes(CommOp::kAllGather) == m * stats);
        CHECK(step.bytes(CommOp::kReduceScatter) == 0);
        CHECK(eval.bytes(CommOp::kAllReduce) == m * (4 * c.layers + 2) * n);
        CHECK(eval.bytes(CommOp::kAllGather) == m * stats);
      }
    }
}

TEST_CASE("stage boundaries send 1/t of the activations to each TP rank, gathered where all need all") {
  for (const int tp : {1, 2, 4})
    for (const bool sp : {false, true}) {
      const EngineOptions o = engine_of(sp);
      const MeshShape shape{.pp = 3, .tp = tp};
      const int64_t n = o.micro_batch * o.model.seq * o.model.hidden * 4, m = o.microbatches;
      CommCounters tp_total, flat = traffic(o, {.tp = tp}, 0, true).tp;
      for (int rank = 0; rank < shape.world(); ++rank) {
        INFO(shape.coordinates(rank) << " sequence parallel " << sp);
        const Traffic t = traffic(o, shape, rank, true);
        const bool inner = rank / tp == 1;
        CHECK(t.pp.bytes(CommOp::kSend) == m * (inner ? 2 : 1) * (n / tp + BoundaryOptions().preamble_bytes()));
        if (rank % tp == 0) tp_total.add(t.tp);
      }
      // One all-gather per message: two boundaries, forward and backward.
      CHECK(tp_total.bytes(CommOp::kAllGather) - flat.bytes(CommOp::kAllGather) == (sp ? 0 : m * 4 * share(o, tp)));
    }
}

TEST_CASE("a block stores 1/t of its token-wise activations") {
  for (const int tp : {2, 4}) {
    INFO("tp " << tp);
    const auto block = [&](bool sp) {
      EngineOptions o = engine_of(sp);
      const int64_t four = plan_memory(o, {.tp = tp}, 0).train.activation_bytes;
      ++o.model.layers;
      return plan_memory(o, {.tp = tp}, 0).train.activation_bytes - four;
    };
    const EngineOptions o = engine_of(true);
    const int64_t rows = o.micro_batch * o.model.seq, stream = rows * o.model.hidden * 4, part = stream / tp,
                  stats = align_up(rows * 4), part_stats = align_up(rows / tp * 4);
    // Sum and output of two norms with their mean and deviation, and the outputs of both row-parallel layers.
    CHECK(block(false) - block(true) == 6 * (stream - part) + 4 * (stats - part_stats));
  }
}

TEST_CASE("the config's sequence parallelism reaches the engine: on with tp, unless disabled or not divisible") {
  const auto options = [](std::vector<std::string> flags) {
    const Config c = load_config({.flags = std::move(flags)}).config;
    return engine_options(c, 1).sequence_parallel;
  };
  CHECK_FALSE(options({}));
  CHECK(options({"--tp", "2"}));
  CHECK_FALSE(options({"--tp", "2", "--parallel.sequence_parallel", "false"}));
  CHECK(options({"--tp", "2", "--parallel.sequence_parallel", "true"}));
  CHECK(options({"--tp", "2", "--parallel.sequence_parallel"}));
  CHECK(options({"--tp", "2", "--sequence-parallel"}));
  CHECK_FALSE(options({"--parallel.sequence_parallel", "true"}));  // one rank: silently off
  CHECK_FALSE(options({"--tp", "4", "--model.seq", "1022"}));
}
