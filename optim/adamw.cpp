// AdamW (Loshchilov & Hutter 2019) and Adam with L2 decay (Kingma & Ba 2015): two flat f32 moments per FSDP unit.
#include "optim/families.h"
#include "optim/flat_state.h"
#include "optim/updates.h"

namespace gt {
namespace {

class Adam : public Optimizer {
 public:
  Adam(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend, Stream stream)
      : options_(o),
        decoupled_(o.type == "adamw"),
        ops_(*backend.ops),
        m_(store, backend, stream, o.tensors),
        v_(store, backend, stream, o.tensors),
        updates_(o, store, {&m_, &v_}, mesh, backend, stream) {}

  void step(Tensor scalars, Stream stream) override {
    updates_.each(scalars, stream, [&](const SegmentTable& t, Tensor row) {
      ops_.adamw({.table = t, .scalars = row, .eps = options_.eps, .adam_l2 = !decoupled_}, stream);
    });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    m_.append_views("exp_avg", store, out);
    v_.append_views("exp_avg_sq", store, out);
    return out;
  }

  int64_t state_bytes() const override { return m_.bytes() + v_.bytes(); }
  int64_t work_bytes() const override { return updates_.bytes(); }

  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override { fill_adam_scalars(options_, t, p, s); }

 private:
  OptimizerOptions options_;
  bool decoupled_;
  const OpTable& ops_;
  FlatState m_, v_;
  UpdateTables updates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<Adam>(o, store, mesh, backend, stream);
}

}  // namespace gt
