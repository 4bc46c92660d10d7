// Work of a training step that is replayed as graphs, by layout, on a device that computes nothing but supports graphs.
// Equality of replayed work: tests/kernels/replay_test.cpp and tests/cuda/graphs.sh.
#include <algorithm>

#include "kernels/core/host.h"
#include "kernels/replay.h"
#include "launch/ranks/device_groups.h"
#include "tests/launch/null_rank.h"
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
    d.destroy_graph = [](Graph) {};
    return d;
  }();
  static const Backend backend{DeviceKind::kNull, null_backend().ops, &device};
  return replayable(backend);
}

EngineOptions small() {
  EngineOptions o = small_model();
  o.microbatches = 6;
  return o;
}

bool computes(Act a) {
  return a == Act::kForward || a == Act::kBackward || a == Act::kBackwardInput || a == Act::kBackwardWeight;
}

// Returns the number of graphs in a step of this rank: adjacent compute actions of one microbatch form one, and the
// update with its norms forms one.
int64_t pieces(Engine& engine, int rank_in_pipeline) {
  const PipelineSchedule& s = engine.executor().schedule();
  int64_t n = 1;
  Action before{Act::kReduceGrads, -1};
  for (const Action& a : s.program[static_cast<size_t>(rank_in_pipeline)]) {
    n += computes(a.act) && !(computes(before.act) && a.stage == before.stage && a.microbatch == before.microbatch);
    before = a;
  }
  return n;
}

// Runs at most `most` steps until a step contains no first-time work.
void expect_replayed(const EngineOptions& o, MeshShape shape, int most = 2) {
  for (int rank = 0; rank < shape.world(); ++rank) {
    INFO("rank " << rank);
    NullRank r(o, shape, rank, null_with_graphs());
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
    const int64_t n = pieces(r.engine, r.mesh.coord(Axis::kPp));
    CHECK(after.replayed - before.replayed == n);
    CHECK(before.first <= n);
    if (shape.pp == 1 && o.schedule != "gpipe") CHECK(n == o.microbatches + 1);
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
        o.recompute = how;
        if (o.schedule == "interleaved") o.vpp = 2;
        expect_replayed(o, {.pp = pp});
      }
}

TEST_CASE("graphs: the third step of every ZeRO stage and reduction mode is replayed") {
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

TEST_CASE("graphs: dropout, means of microbatches, 16-bit values and any optimizer are replayed") {
  for (const std::string& optimizer : optimizer_names()) {
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

TEST_CASE("graphs: many microbatches share the graphs of the first, the middle and the last one") {
  NullRank r(small(), {}, 0, null_with_graphs());
  for (int k = 0; k < 4; ++k) r.step();
  const ReplayCounts c = r.engine.replays();
  CHECK(c.first == 3 + 1);  // and the update
  CHECK(c.replayed == 4 * (6 + 1) - c.first);
  CHECK(c.eager == 0);
}

TEST_CASE("graphs: sequences of another length record anew, and with dropped layers only updates are replayed") {
  EngineOptions o = small();
  o.lengths = {4, 8};
  NullRank r(o, {}, 0, null_with_graphs());
  for (const int64_t seq : {4, 4, 4, 8, 8, 8}) r.step(seq);
  const ReplayCounts c = r.engine.replays();
  CHECK(c.first == 2 * 3 + 1);
  CHECK(c.eager == 0);

  o = small();
  o.layer_drop = {true, 0.5, 1};
  NullRank drops(o, {}, 0, null_with_graphs());
  for (int k = 0; k < 12; ++k) drops.step();
  const ReplayCounts d = drops.engine.replays();
  CHECK(d.first == 1);
  CHECK(d.replayed == 11);
  CHECK(d.eager == 0);
}

TEST_CASE("graphs: NCCL's collectives are captured, between machines from 2.30.4 on") {
  CHECK(obstacle_to_graphs(21800, false, false).empty());
  CHECK(obstacle_to_graphs(23004, true, false).empty());
  CHECK(obstacle_to_graphs(23004, false, true) ==
        "ranks are threads of one process on several GPUs, whose graphs can deadlock");
  CHECK(obstacle_to_graphs(22809, true, false) == "across machines this needs NCCL 2.30.4 or later");
}

TEST_CASE("graphs: host microseconds of a microstep of GPT-2 124M, eager and replayed", "[.bench]") {
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
