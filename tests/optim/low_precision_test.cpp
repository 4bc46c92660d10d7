// 16-bit weights without master weights: optimizer steps with rounding to nearest and stochastic rounding.
#include <cmath>
#include <vector>

#include "tests/optim/optimizer_fixture.h"

using namespace gt;

namespace {

// One rank with one matrix of ones, trained by SGD with a gradient of 1: every step subtracts `step` from every element
// before rounding.
struct Ones {
  SelfFactory factory;
  Mesh mesh;
  Parameter matrix;
  ParamStore store;
  std::unique_ptr<Optimizer> optimizer;
  std::array<float, kNumScalars> scalars{};
  static constexpr int64_t kRows = 64, kCols = 67;

  Parameter& shaped(DType type) {
    matrix.name = "layer.weight";
    matrix.full_shape = matrix.local_shape = {kRows, kCols};
    matrix.dtype = type;
    return matrix;
  }
  static OptimizerOptions sgd(bool rounds_stochastically) {
    OptimizerOptions o = options("sgd", 0);
    if (rounds_stochastically) o.rounding_seed = 5;
    return o;
  }
  Ones(DType type, bool masters, bool rounds_stochastically = false)
      : mesh({}, factory),
        store({{"layer", {&shaped(type)}, 0, 0}}, 1, {.masters = masters}, mesh, cpu_backend(), {}),
        optimizer(make_optimizer(sgd(rounds_stochastically), store, mesh, cpu_backend(), {})) {
    std::vector<float> ones(kRows * kCols, 1.f);
    cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(ones.data()), {kRows * kCols}, DType::kF32, {}},
                             .dst = store.ranges()[0].master},
                            {});
    store.refresh_from_masters();
  }
  void step(int64_t t, float lr, bool skip = false) {
    for (int64_t i = 0; i < kRows * kCols; ++i) matrix.grad.as<float>()[i] = 1;
    optimizer->fill_scalars(t, {lr}, scalars.data());
    scalars[kGradMultiplier] = 1;
    scalars[kSkip] = skip ? 1 : 0;
    optimizer->step({reinterpret_cast<std::byte*>(scalars.data()), {kNumScalars}, DType::kF32, {}}, {});
    store.all_gather_values();
  }
  std::vector<float> values() const {
    std::vector<float> out(kRows * kCols);
    cpu_backend().ops->cast({.src = matrix.value.view({kRows * kCols}),
                             .dst = {reinterpret_cast<std::byte*>(out.data()), {kRows * kCols}, DType::kF32, {}}},
                            {});
    return out;
  }
};

}  // namespace

TEST_CASE("steps of 2^-12 from 1 are lost in fp16 without master weights, and move it with them") {
  Ones lost(DType::kF16, false), kept(DType::kF16, true);
  for (int t = 1; t <= 8; ++t) {
    lost.step(t, 0x1p-12f);
    kept.step(t, 0x1p-12f);
  }
  CHECK(lost.values().front() == 1);
  CHECK(kept.values().front() == 1 - 0x1p-9f);
}

TEST_CASE("stochastic rounding: steps below bf16 resolution add up in the mean") {
  Ones nearest(DType::kBF16, false), random(DType::kBF16, false, true);
  for (int t = 1; t <= 256; ++t) {
    nearest.step(t, 0x1p-12f);
    random.step(t, 0x1p-12f);
  }
  CHECK(nearest.values().front() == 1);
  double sum = 0;
  bool differ = false;
  for (const float x : random.values()) {
    sum += x;
    differ = differ || x != random.values().front();
  }
  // 256 steps, each of which moves an element by 2^-8 with probability 1/16. Over 4288 elements the standard error of
  // the mean is 0.4 % of the distance moved.
  CHECK(sum / (Ones::kRows * Ones::kCols) == Approx(1 - 0x1p-4).margin(0x1p-4 * 0.02));
  CHECK(differ);
}

TEST_CASE("random draws depend on the step only, and a skipped step draws nothing") {
  Ones a(DType::kBF16, false, true), b(DType::kBF16, false, true), c(DType::kBF16, false, true);
  a.step(3, 0x1p-9f);
  b.step(3, 0x1p-9f);
  c.step(4, 0x1p-9f);
  CHECK(a.values() == b.values());
  CHECK(a.values() != c.values());
  const std::vector<float> before = a.values();
  a.step(5, 0x1p-9f, true);
  CHECK(a.values() == before);
  Ones low(DType::kBF16, false, true), high(DType::kBF16, false, true);
  low.step(70000 - 65536, 0x1p-9f);  // the step number exceeds its lower 16 bits
  high.step(70000, 0x1p-9f);
  CHECK(low.values() != high.values());
}
