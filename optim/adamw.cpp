// AdamW (Loshchilov & Hutter 2019) and Adam with L2 decay (Kingma & Ba 2015): two flat f32 moments a scope.
#include <cmath>

#include "optim/optimizer.h"

namespace gt {
namespace {

class Adam : public Optimizer {
 public:
  Adam(const OptimizerOptions& o, const ParamStore& store, const Backend& backend, Stream stream)
      : options_(o), decoupled_(o.type == "adamw"), ops_(*backend.ops) {
    for (int k = 0; k < store.num_scopes(); ++k)
      for (std::vector<Buffer>* state : {&m_, &v_}) {
        const int64_t bytes = store.state_elements(k) * size_of(DType::kF32);
        state->emplace_back(bytes, stream.device, *backend.device);
        if (bytes > 0) backend.device->zero(state->back().data(), bytes, stream);
      }
  }

  void step(ParamStore& store, Tensor scalars, Stream stream) override {
    for (const UpdateRange& r : store.ranges()) {
      const int64_t n = r.value.numel(), at = r.at * size_of(DType::kF32);
      const auto k = static_cast<size_t>(r.scope);
      ops_.adamw({.master = r.value,
                  .grad = r.grad,
                  .m = m_[k].tensor({n}, DType::kF32, at),
                  .v = v_[k].tensor({n}, DType::kF32, at),
                  .scalars = scalars,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .weight_decay = r.decay ? options_.weight_decay : 0,
                  .adam_l2 = !decoupled_},
                 stream);
    }
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    store.append_views("optim/exp_avg", flat(store, m_), out);
    store.append_views("optim/exp_avg_sq", flat(store, v_), out);
    return out;
  }

  int64_t state_bytes() const override {
    int64_t n = 0;
    for (const auto* state : {&m_, &v_})
      for (const Buffer& b : *state) n += b.bytes();
    return n;
  }

  void fill_scalars(int64_t t, float* s) const override {
    s[kBeta1] = options_.beta1;
    s[kBiasCorrection1] = static_cast<float>(1 - std::pow(static_cast<double>(options_.beta1), static_cast<double>(t)));
    s[kBiasCorrection2] = static_cast<float>(1 - std::pow(static_cast<double>(options_.beta2), static_cast<double>(t)));
  }

 private:
  static std::vector<Tensor> flat(const ParamStore& store, const std::vector<Buffer>& state) {
    std::vector<Tensor> out;
    for (int k = 0; k < store.num_scopes(); ++k)
      out.push_back(state[static_cast<size_t>(k)].tensor({store.state_elements(k)}, DType::kF32));
    return out;
  }

  OptimizerOptions options_;
  bool decoupled_;
  const OpTable& ops_;
  std::vector<Buffer> m_, v_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& o, const ParamStore& store, const Backend& backend,
                                          Stream stream) {
  GT_REQUIRE(o.type == "adamw" || o.type == "adam", Exit::kUsage, "optim.type: unknown optimizer \"", o.type,
             "\"; there are adamw, adam");
  return std::make_unique<Adam>(o, store, backend, stream);
}

}  // namespace gt
