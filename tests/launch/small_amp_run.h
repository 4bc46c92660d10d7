// Small model and comparison for bitwise tests of mixed precision across layouts.
#pragma once
#include <cstring>

#include "launch/verify/mesh_run.h"
#include "tests/support/test.h"

namespace gt {

// Four steps of eight samples with dropout; `scaled`: with a loss scale that grows and shrinks within them.
inline MeshRun small_amp_run(MeshShape mesh, const Precision& precision, bool scaled) {
  MeshRun run;
  run.engine.model = {.layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocab = 300, .seq = 16};
  run.engine.model.dropout = 0.1;
  run.engine.loss_chunk = 16;
  run.engine.lr = {.type = "constant", .peak = 1e-2, .total_steps = 30};
  run.engine.precision = precision;
  if (scaled) run.engine.loss_scale = {.dynamic = true, .init = 0x1p10, .window = 2, .delta = 0, .hysteresis = 1};
  run.engine.micro_batch = 1;
  run.engine.threads = 1;
  if (mesh.pp == 2) run.engine.partition = "1,1";
  run.mesh = mesh;
  run.global_batch = 8;
  run.steps = 4;
  run.samples = synthetic_samples(32, 16, 300, 3);
  return run;
}

inline void check_same(const MeshResult& a, const MeshResult& b) {
  CHECK(a.losses == b.losses);
  CHECK(std::memcmp(a.norms.data(), b.norms.data(), a.norms.size() * sizeof(double)) == 0);  // nan in skipped steps
  CHECK((a.weights == b.weights));
  CHECK((a.state == b.state));
}

}  // namespace gt
