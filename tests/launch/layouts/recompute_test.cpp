// Recomputation is bitwise neutral; it saves exactly the predicted bytes and costs exactly the predicted operations.
#include <map>

#include "kernels/core/memory.h"
#include "launch/engine/engine_options.h"
#include "parallel/comm/null_group.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct Mode {
  Recompute how;
  int64_t layers;
};
std::string text(Mode m) {
  const char* names[] = {"none", "selective", "full"};
  return cat(names[static_cast<int>(m.how)], " of the first ", m.layers, " blocks (0: all)");
}

const std::vector<Mode> kModes{{Recompute::kFull, 0},      {Recompute::kFull, 1},      {Recompute::kFull, 2},
                               {Recompute::kSelective, 0}, {Recompute::kSelective, 1}, {Recompute::kSelective, 2}};

MeshRun run_of(MeshShape mesh, bool tied) {
  MeshRun run;
  // 92 and 300: rows that no vector width divides, and padding that depends on tp.
  run.engine.model = {.layers = 5, .hidden = 32, .heads = 4, .ffn = 92, .vocab = 300, .seq = 16, .tied = tied};
  run.engine.loss_chunk = 16;
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 4;
  run.evaluate = true;
  run.samples = synthetic_samples(32, 16, 300, 5);
  return run;
}

MeshRun with(MeshRun run, Mode mode) {
  run.engine.recompute = mode.how;
  run.engine.recompute_layers = mode.layers;
  return run;
}

void check_modes(MeshShape mesh, const std::vector<std::string>& schedules) {
  for (bool tied : {true, false}) {
    const MeshResult none = run_mesh(run_of(mesh, tied));
    REQUIRE(none.losses.back() < none.losses.front());
    for (const std::string& schedule : schedules) {
      MeshRun run = run_of(mesh, tied);
      run.engine.schedule = schedule;
      const MeshResult same = run_mesh(run);
      for (const Mode& mode : kModes) {
        INFO(schedule << (tied ? " tied " : " untied ") << text(mode));
        const MeshResult r = run_mesh(with(run, mode));
        check_bitwise(r, none);
        check_planned(r, run.steps);
        for (size_t rank = 0; rank < r.measured.size(); ++rank)
          CHECK(r.measured[rank].train.activation_bytes < same.measured[rank].train.activation_bytes);
      }
    }
  }
}

// Counts the op calls of one step or evaluation of every rank on a backend that computes nothing.
struct Count {
  static inline int64_t gemm = 0, attention = 0;
  static inline std::map<std::string, int64_t> calls;
  template <class A>
  static void before(const char* name, const A& a) {
    ++calls[name];
    if constexpr (std::is_same_v<A, Gemm>)
      gemm += 2 * a.out.numel() * (a.trans_a ? a.a.shape.rows() : a.a.shape.cols());
    if constexpr (std::is_same_v<A, Attention>)
      attention += 2 * a.spec.batch * a.spec.heads * a.spec.queries * a.spec.keys * a.spec.head_dim;
    if constexpr (std::is_same_v<A, AttentionGrad>)
      attention += 4 * a.spec.batch * a.spec.heads * a.spec.queries * a.spec.keys * a.spec.head_dim;
  }
};

struct Cost {
  int64_t gemm, attention;
  std::map<std::string, int64_t> calls;
};

Cost cost(const EngineOptions& o, MeshShape shape, bool train) {
  Count::gemm = Count::attention = 0;
  Count::calls.clear();
  Backend backend = null_backend();
  backend.ops = &decorate<Count>(*null_backend().ops);
  for (int rank = 0; rank < shape.world(); ++rank) {
    NullFactory factory(rank, shape.world());
    const Mesh mesh(shape, factory);
    const Stream stream{{backend.kind, 0}, nullptr};
    EnginePlan plan;
    plan.train = plan.eval = {int64_t{1} << 32, int64_t{1} << 32, 0};
    Engine engine(o, mesh, backend, stream, plan);
    const Buffer tokens(o.micro_batch * o.model.seq * 4, stream.device, *backend.device);
    MicroBatch mb;
    mb.batch = o.micro_batch;
    mb.seq = o.model.seq;
    mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32);
    const std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches), mb);
    if (train)
      engine.step(batch, 1);
    else
      engine.evaluate(batch);
  }
  return {Count::gemm, Count::attention, Count::calls};
}

EngineOptions engine_of(Mode mode) {
  EngineOptions o;
  o.model = {.layers = 5, .hidden = 32, .heads = 4, .ffn = 96, .vocab = 1000, .seq = 16};
  o.loss_chunk = 64;
  o.recompute = mode.how;
  o.recompute_layers = mode.layers;
  o.micro_batch = 4;
  o.microbatches = 3;
  return o;
}

constexpr Mode kNone{Recompute::kNone, 0};

}  // namespace

TEST_CASE("recomputation is bitwise equal to none on one rank, and its memory is as planned") {
  check_modes({}, {"1f1b"});
}

TEST_CASE("recomputation is bitwise equal to none under tensor parallelism, and its memory is as planned") {
  check_modes({.tp = 2}, {"1f1b"});
}

TEST_CASE("recomputation is bitwise equal to none in pipelines with data parallelism, and its memory is as planned") {
  check_modes({.pp = 2, .dp = 2}, {"1f1b", "gpipe"});
}

TEST_CASE("recomputation is bitwise equal to none with several chunks per rank and with deferred weight gradients") {
  for (const char* schedule : {"interleaved", "zb-h1"})
    for (bool tied : {true, false}) {
      MeshRun run = run_of({.pp = 2, .dp = 1, .tp = 2}, tied);
      run.engine.schedule = schedule;
      run.engine.vpp = schedule == std::string("interleaved") ? 2 : 1;
      const MeshResult none = run_mesh(run);
      for (const Mode& mode : kModes) {
        INFO(schedule << (tied ? " tied " : " untied ") << text(mode));
        const MeshResult r = run_mesh(with(run, mode));
        check_bitwise(r, none);
        check_planned(r, run.steps);
      }
    }
}

TEST_CASE("a stage with more ranks and microbatches than blocks recomputes the blocks it has") {
  MeshRun run = run_of({.pp = 4, .tp = 2}, true);
  run.engine.partition = "0,3,2,0";  // stages with only the embedding, and only norm and head
  const MeshResult none = run_mesh(run);
  for (const Mode& mode : {Mode{Recompute::kFull, 0}, Mode{Recompute::kFull, 3}, Mode{Recompute::kSelective, 3}}) {
    INFO(text(mode));
    const MeshResult r = run_mesh(with(run, mode));
    check_bitwise(r, none);
    check_planned(r, run.steps);
  }
}

TEST_CASE("a recomputed block keeps one tensor, and a selective one all but two norms and a GELU") {
  const MeshShape one;
  const auto activations = [&](EngineOptions o) { return plan_memory(o, one, 0).train.activation_bytes; };
  EngineOptions longer = engine_of(kNone);
  ++longer.model.layers;
  const EngineOptions o = engine_of(kNone);
  const int64_t none = activations(o), block = activations(longer) - none;
  const int64_t rows = o.micro_batch * o.model.seq;
  const int64_t stream = align_up(rows * o.model.hidden * 4), inner = align_up(rows * o.model.ffn * 4);
  REQUIRE(block > 10 * stream);
  for (int64_t k : {1, 2, 3, 5}) {
    INFO(k);
    CHECK(activations(engine_of({Recompute::kFull, k})) == none - k * (block - stream));
    CHECK(activations(engine_of({Recompute::kSelective, k})) == none - k * (2 * stream + inner));
  }
  for (Recompute how : {Recompute::kFull, Recompute::kSelective}) {
    CHECK(activations(engine_of({how, 0})) == activations(engine_of({how, 5})));
    CHECK(plan_memory(engine_of({how, 0}), one, 0).memory.total() < plan_memory(o, one, 0).memory.total());
  }
}

TEST_CASE("an evaluation takes the activations of one block, however many there are") {
  for (const Mode& mode : {kNone, Mode{Recompute::kFull, 0}}) {
    const auto activations = [&](int64_t layers) {
      EngineOptions o = engine_of(mode);
      o.evaluates = true;
      o.model.layers = layers;
      return plan_memory(o, MeshShape{}, 0).eval.activation_bytes;
    };
    REQUIRE(activations(1) > 0);
    CHECK(activations(2) == activations(1));
    CHECK(activations(9) == activations(2));
  }
}

TEST_CASE("a recomputed block costs one more forward, and a selective one two norms and a GELU") {
  for (const MeshShape& shape : {MeshShape{}, MeshShape{.tp = 2}, MeshShape{.pp = 2, .dp = 2}, MeshShape{.pp = 4}}) {
    const EngineOptions o = engine_of(kNone);
    const TransformerConfig& c = o.model;
    const int64_t n = o.micro_batch * c.seq * o.microbatches * shape.dp;
    const int64_t ranks = int64_t{o.microbatches} * shape.dp * shape.tp;  // ranks that run a block, times microbatches
    const std::vector<int> bounds = stage_boundaries(o, shape.pp);
    const Cost none = cost(o, shape, true), evaluation = cost(o, shape, false);
    for (int64_t k : {0, 1, 2}) {
      INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp << " k " << k);
      int64_t blocks = 0;
      for (int s = 0; s < shape.pp; ++s) {
        const int64_t begin = std::max(bounds[static_cast<size_t>(s)], 1);
        const int64_t end = std::min<int64_t>(bounds[static_cast<size_t>(s) + 1], c.layers + 1);
        const int64_t here = std::max<int64_t>(0, end - begin);
        blocks += k == 0 ? here : std::min(k, here);
      }
      REQUIRE(blocks > 0);
      const Cost full = cost(engine_of({Recompute::kFull, k}), shape, true);
      CHECK(full.gemm - none.gemm == 2 * n * blocks * (4 * c.hidden * c.hidden + 2 * c.hidden * c.ffn));
      CHECK(full.attention - none.attention == 2 * n * blocks * c.hidden * c.seq);
      Cost expected = none;
      expected.calls["layer_norm"] += 2 * blocks * ranks;
      expected.calls["gelu"] += blocks * ranks;
      const Cost selective = cost(engine_of({Recompute::kSelective, k}), shape, true);
      CHECK(selective.gemm == none.gemm);
      CHECK(selective.attention == none.attention);
      CHECK(selective.calls == expected.calls);
      for (Recompute how : {Recompute::kFull, Recompute::kSelective}) {
        const Cost eval = cost(engine_of({how, k}), shape, false);
        CHECK(eval.gemm == evaluation.gemm);
        CHECK(eval.attention == evaluation.attention);
      }
    }
  }
}

TEST_CASE("the config's recomputation reaches the engine") {
  const auto options = [](std::vector<std::string> flags) {
    return engine_options(load_config({.flags = std::move(flags)}).config, 1);
  };
  CHECK(options({}).recompute == Recompute::kNone);
  CHECK(options({"--parallel.recompute", "selective"}).recompute == Recompute::kSelective);
  const EngineOptions full = options({"--parallel.recompute", "full", "--parallel.recompute_layers", "3"});
  CHECK(full.recompute == Recompute::kFull);
  CHECK(full.recompute_layers == 3);
  const EngineOptions megatron = options({"--recompute-granularity", "full", "--recompute-num-layers", "2"});
  CHECK(megatron.recompute == Recompute::kFull);
  CHECK(megatron.recompute_layers == 2);
}
