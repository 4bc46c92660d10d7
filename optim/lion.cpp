// Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms): one flat f32 moment a scope.
#include "optim/families.h"
#include "optim/flat_state.h"

namespace gt {
namespace {

class LionOptimizer : public Optimizer {
 public:
  LionOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                Stream stream)
      : options_(o), ops_(*backend.ops), updates_(o, store, mesh, backend, stream), m_(store, backend, stream) {}

  void step(ParamStore& store, Tensor scalars, Stream stream) override {
    updates_.each(store, scalars, stream, [&](const UpdateSlice& u) {
      ops_.lion({.master = u.master,
                 .grad = u.grad,
                 .m = m_.of(u),
                 .value = u.value,
                 .scalars = scalars,
                 .weight_decay = u.range.decay ? options_.weight_decay : 0},
                stream);
    });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    m_.append_views("exp_avg", store, out);
    return out;
  }

  int64_t state_bytes() const override { return m_.bytes() + updates_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override { fill_adam_scalars(options_, t, p, s); }

 private:
  OptimizerOptions options_;
  const OpTable& ops_;
  Updates updates_;
  FlatState m_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<LionOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
