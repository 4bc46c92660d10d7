// Optimizers that update every element by itself, in one op: AdamW, Adam, SGD, Lion, Adagrad.
#include "optim/families.h"
#include "optim/optimizer_rules.h"
#include "optim/updates.h"

namespace gt {
namespace {

class FlatOptimizer : public Optimizer {
 public:
  FlatOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                Stream stream)
      : rule_(optimizer_rule(o.type)),
        options_(o),
        ops_(*backend.ops),
        moments_(rule_.kept(o), store, backend, stream, o.tensors),
        updates_(o, store, moments_.all(), mesh, backend, stream) {}

  void step(Tensor scalars, Stream stream) override {
    updates_.each(scalars, stream, [&](const SegmentTable& t, Tensor row) {
      rule_.step({ops_, options_, t, row, stream});
    });
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override { return moments_.views(store); }
  int64_t state_bytes() const override { return moments_.bytes(); }
  int64_t work_bytes() const override { return updates_.bytes(); }
  void fill_scalars(int64_t t, const LrPoint& p, float* s) const override { rule_.fill(options_, t, p, s); }

 private:
  const OptimizerRule& rule_;
  OptimizerOptions options_;
  const OpTable& ops_;
  FlatStates moments_;
  UpdateTables updates_;
};

}  // namespace

std::unique_ptr<Optimizer> make_flat(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<FlatOptimizer>(o, store, mesh, backend, stream);
}

}  // namespace gt
