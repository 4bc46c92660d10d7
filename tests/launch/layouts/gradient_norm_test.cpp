// The norm of gradients from the sums of squares that their ops record is that of the gradients themselves, in every
// layout, also where something is added to a gradient after them.
#include <algorithm>
#include <mutex>

#include "kernels/cpu/simd/isa.h"
#include "tests/launch/layouts/mesh_checks.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// What ranks found of recorded sums.
struct Found {
  std::mutex mutex;
  int64_t recorded = 0, segments = 0;
  double worst = 0;  // difference of a group's sums, relative
};
Found* found = nullptr;

void compare_sums(const SumSquares& p, Stream s) {
  std::vector<double> read(static_cast<size_t>(p.out.numel()), 0.0);
  const Tensor again{reinterpret_cast<std::byte*>(read.data()), p.out.shape, DType::kF64, {}};
  cpu_backend().ops->sum_squares(p, s);
  cpu_backend().ops->sum_squares({.table = p.table, .out = again}, s);
  const std::lock_guard lock(found->mutex);
  for (size_t i = 0; i < read.size(); ++i)
    found->worst = std::max(found->worst, std::abs(p.out.as<double>()[i] - read[i]) / std::max(read[i], 1e-30));
  found->segments += p.table.count;
  if (p.known)
    found->recorded += p.table.count - std::count(p.known.as<double>(), p.known.as<double>() + p.table.count, -1.0);
}

const Backend& comparing_backend() {
  static const OpTable ops = [] {
    OpTable t = *cpu_backend().ops;
    t.sum_squares = compare_sums;
    return t;
  }();
  static const Backend backend = [] {
    Backend b = cpu_backend();
    b.ops = &ops;
    return b;
  }();
  return backend;
}

struct Layout {
  const char* text;
  MeshShape mesh;
  int microbatches = 1;
  bool tied = true;
  const char* schedule = "1f1b";
  int vpp = 1;
  int level = 0;
  bool recorded = true;  // some sums are
};

MeshRun run_of(const Layout& l) {
  MeshRun run;
  run.engine.model = {.layers = 4, .hidden = 32, .heads = 4, .kv_heads = 2, .ffn = 96, .vocab = 112, .seq = 16};
  run.engine.model.tied = l.tied;
  run.engine.loss_chunk = 7;  // the head's gradient is written several times
  run.engine.lr = {.type = "constant", .peak = 1e-2};
  run.engine.schedule = l.schedule;
  run.engine.vpp = l.vpp;
  if (l.level == 2) run.engine.precision = {.level = 2, .compute_dtype = DType::kBF16};
  run.mesh = l.mesh;
  run.mesh.kv_ranks = run.engine.model.kv_ranks(l.mesh.tp);
  run.global_batch = int64_t{l.microbatches} * l.mesh.dp;
  run.steps = 2;
  run.samples = synthetic_samples(16, 16, 112, 11);
  return run;
}

}  // namespace

TEST_CASE("sums of squares recorded with gradients are those of the gradients that the optimizer reads") {
  const Layout layouts[] = {
      {"one rank, tied", {}},
      {"one rank, untied", {}, 1, false},
      {"three microbatches", {}, 3},
      {"three microbatches, untied", {}, 3, false},
      {"bf16", {}, 1, true, "1f1b", 1, 2},
      {"bf16, tp 2", {.tp = 2}, 2, true, "1f1b", 1, 2},
      {"tp 4 shares KV heads", {.tp = 4}},
      {"tp 2, sequence parallel", {.tp = 2}, 2},
      {"pp 2", {.pp = 2}, 3},
      {"pp 2, one microbatch", {.pp = 2}, 1},  // the table's two gradients are added
      {"pp 2, deferred weight gradients", {.pp = 2}, 5, true, "zb-h1"},
      {"pp 2, interleaved", {.pp = 2}, 4, false, "interleaved", 2},
      {"dp 2", {.dp = 2}, 2, true, "1f1b", 1, 0, false},
      {"dp 2, tp 2", {.dp = 2, .tp = 2}, 1, true, "1f1b", 1, 0, false},
  };
  MeshHooks hooks;
  hooks.backend = &comparing_backend();
  for (const Layout& l : layouts) {
    INFO(l.text);
    Found here;
    found = &here;
    MeshRun run = run_of(l);
    run.engine.sequence_parallel = std::string_view(l.text).find("sequence") != std::string_view::npos;
    run.hooks = &hooks;
    run_mesh(run);
    CHECK(here.segments > 0);
    CHECK(here.worst < 1e-12);
    if (!l.recorded) CHECK(here.recorded == 0);
    if (l.recorded && cpu::best_isa() == CpuIsa::kAmx) CHECK(here.recorded > 0);
  }
}
