// Communication volume of a training step against closed forms, exact to the byte; delays must not change results.
#include <atomic>

#include "launch/tools/verify/mesh_run.h"
#include "tests/support/delayed_group.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

MeshRun run_of(MeshShape mesh, int zero = 1, bool tied = true) {
  MeshRun run;
  run.engine.model = {.layers = 4, .hidden = 32, .heads = 8, .ffn = 96, .vocab = 300, .seq = 16, .tied = tied};
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "constant", .peak = 3e-3, .min_lr = 1e-4, .warmup_steps = 0, .total_steps = 40};
  run.engine.partition = "uniform";
  run.engine.zero.stage = zero;
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 2;
  run.samples = synthetic_samples(16, 16, 300, 5);
  return run;
}

// Padded flat-buffer elements of one rank, for the FSDP units of layers [begin, end).
struct UnitSizes {
  std::vector<int64_t> padded;
  int64_t table = 0, head = 0;  // of the embedding and head, if present on this stage
};
UnitSizes unit_sizes(const MeshRun& run, int pp_rank) {
  const TransformerConfig& c = run.engine.model;
  const int64_t h = c.hidden, t = run.mesh.tp, f = c.ffn, vp = (c.vocab + 128 * t - 1) / (128 * t) * 128 * t;
  const auto padded = [&](std::vector<int64_t> numels) {
    int64_t n = 0;
    for (int64_t k : numels) n += k;
    const int64_t unit = 64 * run.mesh.dp;
    return (n + unit - 1) / unit * unit;
  };
  const auto bounds = stage_boundaries(run.engine, run.mesh.pp);
  const int last = static_cast<int>(c.layers) + 2;
  UnitSizes out;
  for (int k = bounds[static_cast<size_t>(pp_rank)]; k < bounds[static_cast<size_t>(pp_rank) + 1]; ++k) {
    if (k == 0) {
      out.table = padded({vp / t * h});
      out.padded.push_back(out.table);
      out.padded.push_back(padded({c.seq * h}));
    } else if (k <= c.layers) {  // norms, qkv, out, up, down; row-parallel biases are replicated
      out.padded.push_back(padded({4 * h, 3 * h * h / t, 3 * h / t, h * h / t, h, f * h / t, f / t, h * f / t, h}));
    } else if (k < last) {
      out.padded.push_back(padded({2 * h}));
    } else {
      out.head = padded({vp / t * h});
      out.padded.push_back(out.head);
    }
  }
  return out;
}

void check_bytes(const MeshRun& run, const MeshResult& result) {
  const TransformerConfig& c = run.engine.model;
  const int64_t t = run.mesh.tp, p = run.mesh.pp, d = run.mesh.dp, b = run.engine.micro_batch;
  const int64_t m = run.global_batch / (b * d), n = b * c.seq * c.hidden, e = 4;
  const auto bounds = stage_boundaries(run.engine, run.mesh.pp);
  for (int rank = 0; rank < run.mesh.world(); ++rank) {
    const auto& comm = result.ranks[static_cast<size_t>(rank)].comm;
    const int pp = run.mesh.coord(Axis::kPp, rank);
    const bool first = pp == 0, last = pp == run.mesh.pp - 1;
    INFO("tp " << t << " pp " << p << " dp " << d << " zero " << run.engine.zero.stage << " rank " << rank);

    // Tensor parallel: four all-reduces per block and microbatch, one for the embedding, one for the head's input, and
    // the head's statistics of three numbers per token and rank.
    int64_t blocks = 0;
    for (int k = bounds[static_cast<size_t>(pp)]; k < bounds[static_cast<size_t>(pp) + 1]; ++k)
      blocks += k >= 1 && k <= c.layers;
    const int64_t all_reduces = 4 * blocks + (first ? 1 : 0) + (last ? 1 : 0);
    const CommCounters& tp = comm.at("tp");
    const int64_t messages = m * ((last ? 0 : 1) + (first ? 0 : 1));  // messages sent, and as many received
    const int64_t piece = n * e / t;  // TP ranks hold the same boundary: each sends its shard, receivers all-gather
    if (t > 1) {
      CHECK(tp.bytes(CommOp::kAllReduce) == m * (8 * blocks + 2 * (all_reduces - 4 * blocks)) * (t - 1) * n * e / t);
      CHECK(tp.of(CommOp::kAllReduce).calls == m * all_reduces);
      CHECK(tp.bytes(CommOp::kAllGather) == (last ? m * (t - 1) * 3 * b * c.seq * e : 0) + messages * (t - 1) * piece);
      CHECK(tp.total() == tp.bytes(CommOp::kAllReduce) + tp.bytes(CommOp::kAllGather));
    }
    // Pipeline: b*s*h/t elements per microbatch forward to the next stage and backward to the previous one.
    const CommCounters& line = comm.at("pp");
    if (p > 1) {
      const int64_t before = BoundaryOptions().preamble_bytes();  // debug builds only
      CHECK(line.bytes(CommOp::kSend) == messages * (piece + before));
      CHECK(line.of(CommOp::kSend).calls == messages * (before ? 2 : 1));
      CHECK(line.of(CommOp::kRecv).bytes == messages * (piece + before));
      CHECK(line.total() == line.bytes(CommOp::kSend));
    }
    // Data parallel: reduce-scatter of gradients, all-gather of gradients (stage 0) or parameters (stage 1): 2a,
    // padding included. If both uses of a tied embedding are on one rank, two gradients are reduced and one table is
    // gathered.
    const UnitSizes units = unit_sizes(run, pp);
    int64_t elements = 0;
    for (int64_t k : units.padded) elements += k;
    const int64_t gathered = elements - (c.tied && p == 1 ? units.head : 0);
    const CommCounters& dp = comm.at("dp");
    if (d > 1) {
      CHECK(dp.bytes(CommOp::kReduceScatter) == elements * (d - 1) / d * e);
      CHECK(dp.bytes(CommOp::kAllGather) == gathered * (d - 1) / d * e);
      CHECK(dp.of(CommOp::kReduceScatter).calls == static_cast<int64_t>(units.padded.size()));
      CHECK(dp.total() == dp.bytes(CommOp::kReduceScatter) + dp.bytes(CommOp::kAllGather));
    }
    // Tied embeddings: an all-reduce of the gradient's shard between two ranks.
    if (p > 1) CHECK(comm.at("embedding").total() == (c.tied ? (units.table + units.head) / d * e : 0));
    // World-wide values are reduced in one vector.
    if (run.mesh.world() > 1) CHECK(comm.at("world").of(CommOp::kAllReduce).calls == 1);
  }
}

}  // namespace

TEST_CASE("a step's bytes on every group equal the closed forms") {
  for (const MeshShape mesh :
       {MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.pp = 2}, MeshShape{.pp = 4}, MeshShape{.dp = 2},
        MeshShape{.dp = 4}, MeshShape{.pp = 2, .dp = 2, .tp = 2}, MeshShape{.pp = 4, .dp = 2}})
    for (int zero : {0, 1}) {
      const MeshRun run = run_of(mesh, zero);
      check_bytes(run, run_mesh(run));
    }
  const MeshRun untied = run_of({.pp = 2, .dp = 2, .tp = 2}, 1, false);
  check_bytes(untied, run_mesh(untied));
}

TEST_CASE("a step's counters hold calls and time") {
  const MeshResult r = run_mesh(run_of({.pp = 2, .dp = 2, .tp = 2}));
  for (const RankRun& rank : r.ranks)
    for (const auto& [name, c] : rank.comm) {
      int64_t calls = 0, bytes = 0;
      for (int k = 0; k < kNumCommOps; ++k) {
        const CommCounters::Op& op = c.ops[k];
        calls += op.calls;
        if (k != static_cast<int>(CommOp::kRecv)) bytes += op.bytes;
        INFO(name << " op " << k);
        CHECK((op.calls > 0) == (op.flight_ns > 0));
        CHECK((op.calls > 0) == (op.blocked_ns > 0));
      }
      CHECK(calls == c.calls());
      CHECK(bytes == c.total());
    }
}

TEST_CASE("overlap on or off is bitwise equal under 200 random delays in the communication path") {
  const MeshShape mesh{.pp = 2, .dp = 2, .tp = 2};
  MeshRun calm = run_of(mesh);
  calm.engine.zero.bucket_bytes = 4 << 10;
  const MeshResult expected = run_mesh(calm);
  for (uint64_t seed : {11, 12, 13}) {
    for (bool overlap : {true, false}) {
      MeshRun run = calm;
      run.engine.zero.overlap = overlap;
      std::atomic<int> delays{0};
      MeshHooks hooks;
      run.hooks = &hooks;
      hooks.wrap = [&](GroupFactory& f) { return std::make_unique<DelayedFactory>(f, seed, 25, &delays); };
      const MeshResult got = run_mesh(run);
      INFO("seed " << seed << " overlap " << overlap);
      CHECK(delays == 200);  // 25 on each of 8 ranks
      CHECK(got.losses == expected.losses);
      CHECK(got.norms == expected.norms);
      CHECK(got.grads == expected.grads);
      CHECK(got.weights == expected.weights);
    }
  }
}
