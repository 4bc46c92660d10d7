// SGD with momentum in PyTorch's form (Sutskever et al. 2013 apply the learning rate elsewhere). One flat f32 buffer
// per FSDP unit, none without momentum.
#include <memory>

#include "optim/families.h"
#include "optim/flat_state.h"
#include "optim/updates.h"

namespace gt {
namespace {

class SgdOptimizer : public Optimizer {
 public:
  SgdOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
               Stream stream)
      : options_(o),
        ops_(*backend.ops),
        momentum_(o.momentum != 0 || o.momentum_varies ? std::make_unique<FlatState>(store, backend, stream, o.tensors)
                                                       : nullptr),
        updates_(o, store, {momentum_.get()}, mesh, backend, stream) {}

  void step(Tensor scalars, Stream stream) override {
    updates_.each(scalars, stream, [&](const SegmentTable& t, Tensor row) {
      ops_.sgd({.table = t, .scalars = row, .nesterov = options_.nesterov}, stream);
    });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    if (momentum_) momentum_->append_views("momentum_buffer", store, out);
    return out;
  }

  int64_t state_bytes() const override { return momentum_ ? momentum_->bytes() : 0; }
  int64_t work_bytes() const override { return updates_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* scalars) const override {
    fill_rows(options_, scalars, [&](const ParamGroup& g, float* s) {
      s[kLr] = static_cast<float>(p.lr * g.lr_scale);
      s[kBeta1] = p.beta1 == kKeepBeta ? options_.momentum : static_cast<float>(p.beta1);
      fill_step_number(t, s);
      s[kGradCoefficient] = t == 1 ? 1 : 1 - options_.dampening;  // the first gradient initializes the buffer undamped
    });
  }

 private:
  OptimizerOptions options_;
  const OpTable& ops_;
  std::unique_ptr<FlatState> momentum_;  // nullptr: no momentum
  UpdateTables updates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                    const Backend& backend, Stream stream) {
  return std::make_unique<SgdOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
