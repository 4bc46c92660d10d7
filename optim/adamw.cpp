// AdamW (Loshchilov & Hutter 2019) and Adam with L2 decay (Kingma & Ba 2015): two flat f32 moments a scope.
#include "optim/families.h"
#include "optim/flat_state.h"

namespace gt {
namespace {

class Adam : public Optimizer {
 public:
  Adam(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
       Stream stream)
      : options_(o),
        decoupled_(o.type == "adamw"),
        ops_(*backend.ops),
        updates_(o, store, mesh, backend, stream),
        m_(store, backend, stream),
        v_(store, backend, stream) {}

  void step(ParamStore& store, Tensor scalars, Stream stream) override {
    updates_.each(store, scalars, stream, [&](const UpdateSlice& u) {
      ops_.adamw({.master = u.master,
                  .grad = u.grad,
                  .m = m_.of(u),
                  .v = v_.of(u),
                  .value = u.value,
                  .scalars = scalars,
                  .eps = options_.eps,
                  .weight_decay = u.range.decay ? options_.weight_decay : 0,
                  .adam_l2 = !decoupled_},
                 stream);
    });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    m_.append_views("exp_avg", store, out);
    v_.append_views("exp_avg_sq", store, out);
    return out;
  }

  int64_t state_bytes() const override { return m_.bytes() + v_.bytes() + updates_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override { fill_adam_scalars(options_, t, p, s); }

 private:
  OptimizerOptions options_;
  bool decoupled_;
  const OpTable& ops_;
  Updates updates_;
  FlatState m_, v_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<Adam>(o, store, mesh, backend, stream);
}

}  // namespace gt
