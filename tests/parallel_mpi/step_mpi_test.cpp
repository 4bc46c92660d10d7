// Whole training steps on process ranks with 200 random delays in their communication path. Bitwise identical to the
// same layout on undelayed threads, with and without overlap.
#include <atomic>

#include "launch/tools/verify/mesh_run.h"
#include "tests/parallel_mpi/mpi_main.h"
#include "tests/support/delayed_group.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int kRanks = 4;

MeshRun run_of(MeshShape mesh, int zero, const char* schedule) {
  MeshRun run;
  run.engine.model = {.layers = 2, .hidden = 16, .heads = 4, .ffn = 32, .vocab = 60, .seq = 8};
  run.engine.model.dropout = 0.1;
  run.engine.optim.weight_decay = 0.1f;
  run.engine.lr = {.type = "constant", .peak = 3e-3};
  run.engine.schedule = schedule;
  run.engine.sequence_parallel = true;
  run.engine.zero.stage = zero;
  run.engine.zero.persist_numel = 0;
  run.engine.zero.bucket_bytes = 1 << 10;
  run.mesh = mesh;
  run.global_batch = 4;
  run.steps = 2;
  run.evaluate = true;
  run.samples = synthetic_samples(12, 8, 60, 5);
  return run;
}

}  // namespace

TEST_CASE(
    "training steps over MPI under 200 random delays are bitwise those of undelayed threads, overlap on and off") {
  REQUIRE(mpi_factory().world_size() == kRanks);
  const bool is_rank0 = mpi_factory().world_rank() == 0;
  for (const MeshRun& calm : {run_of({.dp = 2, .tp = 2}, 1, "1f1b"), run_of({.pp = 2, .dp = 2}, 3, "zb-h1")}) {
    const MeshResult expected = is_rank0 ? run_mesh(calm) : MeshResult();
    for (const bool overlap : {true, false}) {
      INFO("tp " << calm.mesh.tp << " pp " << calm.mesh.pp << " dp " << calm.mesh.dp << " zero "
                 << calm.engine.zero.stage << " overlap " << overlap);
      MeshRun run = calm;
      run.engine.zero.overlap = overlap;
      std::atomic<int> delays{0};
      MeshHooks hooks;
      run.hooks = &hooks;
      hooks.wrap = [&](GroupFactory& f) {
        auto made = std::make_unique<DelayedFactory>(f, 11, 200 / kRanks, &delays);
        made->delays().one_in = 2;
        return made;
      };
      const MeshResult got = run_mesh_here(run, mpi_factory(), cpu_backend());
      CHECK(delays == 200 / kRanks);  // on each rank
      if (!is_rank0) continue;
      CHECK(got.losses == expected.losses);
      CHECK(got.norms == expected.norms);
      CHECK(got.grads == expected.grads);
      CHECK(got.weights == expected.weights);
      CHECK(got.eval_loss == expected.eval_loss);
    }
  }
}
