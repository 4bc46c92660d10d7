// Small model and comparison for bitwise tests of mixed precision across layouts.
#pragma once
#include <cstring>

#include "launch/tools/verify/mesh_run.h"
#include "model/families/family.h"
#include "tests/support/test.h"

namespace gt {

// Four steps of eight samples with dropout; `scaled`: under a loss scale that grows and shrinks within them.
inline MeshRun small_amp_run(MeshShape mesh, const Precision& precision, bool scaled,
                             const std::string& family = "gpt2") {
  MeshRun run;
  TransformerConfig& m = run.engine.model = find_family(family)->defaults;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.head_dim = 0, m.ffn = 64, m.vocab = 300, m.seq = 16;
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
