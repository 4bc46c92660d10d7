// Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms): one flat f32 moment per FSDP unit.
#include "optim/families.h"
#include "optim/flat_state.h"
#include "optim/updates.h"

namespace gt {
namespace {

class LionOptimizer : public Optimizer {
 public:
  LionOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                Stream stream)
      : options_(o),
        ops_(*backend.ops),
        m_(store, backend, stream, o.tensors),
        updates_(o, store, {&m_}, mesh, backend, stream) {}

  void step(Tensor scalars, Stream stream) override {
    updates_.each(scalars, stream,
                  [&](const SegmentTable& t, Tensor row) { ops_.lion({.table = t, .scalars = row}, stream); });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    m_.append_views("exp_avg", store, out);
    return out;
  }

  int64_t state_bytes() const override { return m_.bytes(); }
  int64_t work_bytes() const override { return updates_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override { fill_adam_scalars(options_, t, p, s); }

 private:
  OptimizerOptions options_;
  const OpTable& ops_;
  FlatState m_;
  UpdateTables updates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<LionOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
