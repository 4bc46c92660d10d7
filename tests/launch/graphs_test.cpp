// Which work of a training step is replayed as graphs, by layout: over a device that computes nothing but says that it
// has graphs. That replayed work is the same work: tests/kernels/replay_test.cpp and tests/cuda/graphs.sh.
#include <algorithm>

#include "kernels/core/host.h"
#include "kernels/replay.h"
#include "launch/train/engine.h"
#include "parallel/comm/null_group.h"
#include "tests/support/heap/count_allocations.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

const Backend& null_with_graphs() {
  static const DeviceApi device = [] {
    DeviceApi d = *null_backend().device;
    d.capture = [](Stream, void (*queue)(void*), void* what, std::string*) -> Graph {
      static int some;
      return queue(what), &some;
    };
    d.launch = [](Graph, Stream) {};
    d.drop_graph = [](Graph) {};
    return d;
  }();
  static const Backend backend{DeviceKind::kNull, null_backend().ops, &device};
  return replayable(backend);
}

EngineOptions small() {
  EngineOptions o;
  o.model.layers = 4;
  o.model.hidden = 16;
  o.model.heads = 4;
  o.model.ffn = 32;
  o.model.vocab = 60;
  o.model.seq = 8;
  o.micro_batch = 2;
  o.microbatches = 6;
  return o;
}

struct Rank {
  NullFactory nobody;
  Mesh mesh;
  const Stream stream{{DeviceKind::kNull, 0}, nullptr};
  Engine engine;
  Buffer tokens;
  std::vector<MicroBatch> batch;
  int64_t samples = 0;

  Rank(const EngineOptions& o, MeshShape shape, int rank)
      : nobody(rank, shape.world()),
        mesh(shape, nobody),
        engine(o, mesh, null_with_graphs(), stream, plan_memory(o, shape, rank)),
        tokens(o.microbatches * o.micro_batch * o.model.seq * 4, stream.device, *null_backend().device),
        batch(static_cast<size_t>(o.microbatches)) {}

  void step(int64_t seq = 0) {
    const EngineOptions& o = engine.options();
    for (size_t k = 0; k < batch.size(); ++k) {
      MicroBatch& mb = batch[k];
      mb.batch = o.micro_batch;
      mb.seq = seq > 0 ? seq : o.model.seq;
      mb.first_sample = samples;
      samples += mb.batch;
      const auto at = static_cast<int64_t>((k + static_cast<size_t>(samples)) % batch.size());  // elsewhere every time
      mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32, at * mb.batch * o.model.seq * 4);
    }
    engine.step(batch, 48);
  }
};

// Steps until no work of a step runs for its first time; at most `most`.
void expect_replayed(const EngineOptions& o, MeshShape shape, int most = 2) {
  for (int rank = 0; rank < shape.world(); ++rank) {
    INFO("rank " << rank);
    Rank r(o, shape, rank);
    for (int k = 0; k < most; ++k) r.step();
    const ReplayCounts before = r.engine.replays();
    CountAllocations count;
    r.step();
    const int64_t allocations = count.stop();
    CHECK(allocations == 0);
    const ReplayCounts after = r.engine.replays();
    INFO(after.why);
    CHECK(after.first == before.first);
    CHECK(after.eager == 0);
    const auto actions = static_cast<int64_t>(r.engine.executor().timeline().size());
    CHECK(after.replayed - before.replayed == actions + 2);  // and norms, and the update
    CHECK(before.first <= actions + 2);
  }
}

}  // namespace

TEST_CASE("graphs: the third step of every schedule and recomputation is replayed, and takes no heap memory") {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved"})
    for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
      for (const int pp : {1, 2}) {
        if (pp == 1 && std::string(schedule) == "interleaved") continue;
        INFO(schedule << " pp " << pp << " recompute " << static_cast<int>(how));
        EngineOptions o = small();
        o.schedule = schedule;
        o.model.recompute = how;
        if (o.schedule == "interleaved") o.vpp = 2;
        expect_replayed(o, {.pp = pp});
      }
}

TEST_CASE("graphs: the third step of every ZeRO stage and way to reduce is replayed") {
  for (const int stage : {0, 1, 2, 3})
    for (const GradReduce when : {GradReduce::kEach, GradReduce::kEnd})
      for (const MeshShape shape : {MeshShape{.dp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
        if (stage < 2 && when == GradReduce::kEach) continue;
        INFO("zero " << stage << (when == GradReduce::kEach ? " each" : " end") << " pp " << shape.pp);
        EngineOptions o = small();
        o.zero.stage = stage;
        o.zero.grad_reduce = when;
        expect_replayed(o, shape);
      }
}

TEST_CASE("graphs: dropout, means of microbatches, halves and any optimizer are replayed") {
  for (const char* optimizer : {"adamw", "lamb", "sgd", "lion"}) {
    INFO(optimizer);
    EngineOptions o = small();
    o.optim.type = optimizer;
    o.model.dropout = o.model.attn_dropout = 0.1;
    o.mean_of_microbatches = true;
    expect_replayed(o, {});
    o.precision = {.level = 2};
    expect_replayed(o, {.pp = 2});
  }
}

TEST_CASE("graphs: many microbatches share the graphs of the first, of those between and of the last backward") {
  Rank r(small(), {}, 0);
  for (int k = 0; k < 4; ++k) r.step();
  const ReplayCounts c = r.engine.replays();
  CHECK(c.first == 2 + 3 + 2);  // forwards, backwards, norms and update
  CHECK(c.replayed == 4 * (12 + 2) - c.first);
  CHECK(c.eager == 0);
}

TEST_CASE("graphs: sequences of another length begin anew, and blocks that are left out are queued call by call") {
  EngineOptions o = small();
  o.lengths = {4, 8};
  Rank r(o, {}, 0);
  for (const int64_t seq : {4, 4, 4, 8, 8, 8}) r.step(seq);
  const ReplayCounts c = r.engine.replays();
  CHECK(c.first == 2 * (2 + 3) + 2);
  CHECK(c.eager == 0);

  o = small();
  o.layer_drop = {0.5, 1};
  Rank drops(o, {}, 0);
  for (int k = 0; k < 12; ++k) drops.step();
  const ReplayCounts d = drops.engine.replays();
  CHECK(d.eager > 0);
  CHECK(d.first + d.replayed + d.eager == 12 * (12 + 2));
  CHECK_FALSE(d.why.empty());
}

TEST_CASE("graphs: host microseconds of a microstep of GPT-2 124M, called and replayed", "[.bench]") {
  for (const bool replayed : {false, true}) {
    EngineOptions o;
    o.evaluates = false;
    o.micro_batch = 4;
    o.microbatches = 100;
    const MeshShape shape;
    NullFactory nobody(0, 1);
    const Mesh mesh(shape, nobody);
    const Stream stream{{DeviceKind::kNull, 0}, nullptr};
    Engine engine(o, mesh, replayed ? null_with_graphs() : null_backend(), stream, plan_memory(o, shape, 0));
    const Buffer tokens(o.micro_batch * o.model.seq * 4, stream.device, *null_backend().device);
    MicroBatch mb;
    mb.batch = o.micro_batch;
    mb.seq = o.model.seq;
    mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32);
    const std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches), mb);
    double best = 1e9;
    for (int k = 0; k < 30; ++k) {
      const double begin = now();
      engine.step(batch, o.micro_batch * o.microbatches * o.model.seq);
      if (k >= 2) best = std::min(best, (now() - begin) / o.microbatches);
    }
    WARN((replayed ? "compared with a recording, launches left out: " : "called on a device that computes nothing: ")
         << 1e6 * best << " us a microstep");
    CHECK(engine.replays().eager == 0);
  }
}
