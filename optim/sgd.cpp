// SGD with momentum in PyTorch's form (Sutskever et al. 2013 differ in where the learning rate enters): at most one
// flat f32 buffer a scope, none without momentum.
#include <optional>

#include "optim/families.h"
#include "optim/flat_state.h"

namespace gt {
namespace {

class SgdOptimizer : public Optimizer {
 public:
  SgdOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
               Stream stream)
      : options_(o), ops_(*backend.ops),
        updates_(o, store, mesh, backend, stream) {
    if (o.momentum != 0 || o.momentum_varies) momentum_.emplace(store, backend, stream);
  }

  void step(ParamStore& store, Tensor scalars, Stream stream) override {
    updates_.each(store, scalars, stream, [&](const UpdateSlice& u) {
      ops_.sgd({.master = u.master,
                .grad = u.grad,
                .m = momentum_ ? momentum_->of(u) : Tensor{},
                .value = u.value,
                .scalars = scalars,
                .weight_decay = u.range.decay ? options_.weight_decay : 0,
                .nesterov = options_.nesterov},
               stream);
    });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    if (momentum_) momentum_->append_views("momentum_buffer", store, out);
    return out;
  }

  int64_t state_bytes() const override { return (momentum_ ? momentum_->bytes() : 0) + updates_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override {
    s[kLr] = static_cast<float>(p.lr);
    s[kBeta1] = p.beta1 == kOptimizersOwn ? options_.momentum : static_cast<float>(p.beta1);
    fill_step_number(t, s);
    s[kGradShare] = t == 1 ? 1 : 1 - options_.dampening;  // the first gradient fills the buffer whole
  }

 private:
  OptimizerOptions options_;
  const OpTable& ops_;
  Updates updates_;
  std::optional<FlatState> momentum_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<SgdOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
