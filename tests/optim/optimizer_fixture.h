// One rank with two small parameters under an optimizer, for tests against fixed values.
#pragma once
#include <array>
#include <memory>

#include "kernels/ops.h"
#include "optim/optimizer.h"
#include "parallel/comm/self_group.h"
#include "tests/support/test.h"

namespace gt {

using Four = std::array<double, 4>;
inline constexpr Four kStart{.5, -1, 2, .25};
inline constexpr Four kGrads[] = {{.1, -.2, .3, .4}, {-.05, .1, .2, -.3}, {.2, .2, -.1, .05}};

// One rank with a matrix [2, 2] (decayed) and a bias [4] (not decayed), both starting from kStart.
struct OptimizerFixture {
  SelfFactory factory;
  Mesh mesh;
  Parameter matrix, bias;
  ParamStore store;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> scalars;
  LrPoint point{0.01};

  static Parameter& named(Parameter& p, const char* name, Shape s) {
    p.name = name;
    p.full_shape = p.local_shape = s;
    p.decay = s.rank >= 2;
    p.matrices = s.rank >= 2 ? 1 : 0;
    return p;
  }
  explicit OptimizerFixture(const OptimizerOptions& o)
      : mesh({}, factory),
        store({{"layer", {&named(matrix, "layer.weight", {2, 2}), &named(bias, "layer.bias", {4})}, 0, 0}}, 1, {}, mesh,
              cpu_backend(), {}),
        optimizer(make_optimizer(o, store, mesh, cpu_backend(), {})),
        scalars(static_cast<size_t>(o.scalar_rows() * kNumScalars)) {
    for (size_t i = 0; i < 4; ++i)
      matrix.value.as<float>()[i] = bias.value.as<float>()[i] = static_cast<float>(kStart[i]);
  }
  Tensor scalar_tensor() {
    return {reinterpret_cast<std::byte*>(scalars.data()), {static_cast<int64_t>(scalars.size())}, DType::kF32, {}};
  }
  void step(int64_t t, const Four& g, float multiplier = 1, bool skip = false, double grad_scale = 1) {
    for (size_t i = 0; i < 4; ++i)
      matrix.grad.as<float>()[i] = bias.grad.as<float>()[i] = static_cast<float>(g[i] * grad_scale);
    optimizer->fill_scalars(t, point, scalars.data());
    scalars[kGradMultiplier] = multiplier;
    scalars[kSkip] = skip ? 1 : 0;
    optimizer->step(scalar_tensor(), {});
  }
};

inline void check_values(const Parameter& p, const Four& expected) {
  for (size_t i = 0; i < 4; ++i) {
    INFO(p.name << " element " << i);
    CHECK(p.value.as<float>()[i] == Approx(expected[i]).epsilon(1e-6).margin(0));
  }
}

inline OptimizerOptions options(const char* type, float decay = 0.01f) {
  return {.type = type, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-6f, .weight_decay = decay};
}

}  // namespace gt
