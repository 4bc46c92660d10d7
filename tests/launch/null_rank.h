// One rank of a small model with a null device and null groups, which leaves only the host work of a step.
#pragma once
#include <vector>

#include "launch/engine/engine.h"
#include "parallel/comm/null_group.h"

namespace gt {

// Returns `o` with a model of four blocks of width 16.
inline EngineOptions small_model(EngineOptions o = {}) {
  o.model.layers = 4;
  o.model.hidden = 16;
  o.model.heads = 4;
  o.model.ffn = 32;
  o.model.vocab = 60;
  o.model.seq = 8;
  o.micro_batch = 2;
  return o;
}

struct NullRank {
  NullFactory nobody;
  const Mesh mesh;
  const Stream stream{{DeviceKind::kNull, 0}, nullptr};
  Engine engine;
  const Buffer tokens;
  std::vector<MicroBatch> batch;
  int64_t samples = 0;

  NullRank(const EngineOptions& o, MeshShape shape, int rank, const Backend& backend = null_backend())
      : nobody(rank, shape.world()),
        mesh(shape, nobody),
        engine(o, mesh, backend, stream, plan_memory(o, shape, rank)),
        tokens(o.microbatches * o.micro_batch * o.model.seq * 4, stream.device, *null_backend().device),
        batch(static_cast<size_t>(o.microbatches)) {}

  // Runs a step whose tokens are at new addresses. `seq` overrides the model's.
  void step(int64_t seq = 0) {
    const EngineOptions& o = engine.options();
    for (size_t k = 0; k < batch.size(); ++k) {
      MicroBatch& mb = batch[k];
      mb.batch = o.micro_batch;
      mb.seq = seq > 0 ? seq : o.model.seq;
      mb.first_sample = samples;
      samples += mb.batch;
      const auto at = static_cast<int64_t>((k + static_cast<size_t>(samples)) % batch.size());
      mb.tokens = mb.targets = tokens.tensor({mb.batch, mb.seq}, DType::kI32, at * mb.batch * o.model.seq * 4);
    }
    engine.step(batch, 48);
  }
};

}  // namespace gt
