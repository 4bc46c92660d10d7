// The straight-through gradient against finite differences of its surrogate: the identity inside the quantization
// limits, a constant outside.
#include <algorithm>
#include <cmath>

#include "tests/autograd/tape_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::rig;

namespace {

// A layer with a quantized input; its weight counts as quantized already (by ParamStore).
struct Layer {
  TapeFixture rig;
  Parameter w;
  QuantizerState range{"layer.input", rig.tensor({1}, 1), rig.tensor({1}, 2)};
  Tensor x = rig.tensor({6, 8}, 3), dy = rig.tensor({6, 5}, 4);
  explicit Layer(float limit) {
    w.full_shape = w.local_shape = {5, 8};
    w.value = rig.tensor({5, 8}, 5);
    w.grad = rig.tensor({5, 8}, 6);
    *range.limit.as<float>() = limit;
    *range.step_amax.as<float>() = 0;
  }
  // The loss with clamp(x) instead of the quantized x.
  double surrogate(double limit) const {
    double loss = 0;
    for (int64_t r = 0; r < 6; ++r)
      for (int64_t o = 0; o < 5; ++o)
        for (int64_t i = 0; i < 8; ++i)
          loss += double{dy.as<float>()[r * 5 + o]} * w.value.as<float>()[o * 8 + i] *
                  std::clamp<double>(x.as<float>()[r * 8 + i], -limit, limit);
    return loss;
  }
};

}  // namespace

TEST_CASE("quantized values pass the gradient of the clamped input, weights the gradient of the quantized weight") {
  constexpr float kLimit = 1.1f, kStep = 1e-3f;
  Layer layer(kLimit);
  Tape& t = layer.rig.tape;
  const Var in = t.input(layer.x, true);
  const Var q = ops::fake_quant(t, in, &layer.range);
  const Var y = ops::linear(t, q, layer.w);
  t.seed(y, layer.dy);
  std::vector<float> codes = values(q.value);
  t.backward();
  const std::vector<float> dx = values(t.grad(in)), dw = values(layer.w.grad);
  int outside = 0;
  for (int64_t i = 0; i < layer.x.numel(); ++i) {
    float& at = layer.x.as<float>()[i];
    const float was = at;
    if (std::fabs(std::fabs(was) - kLimit) < 2 * kStep) continue;  // not differentiable at the corner
    at = was + kStep;
    const double above = layer.surrogate(kLimit);
    at = was - kStep;
    const double below = layer.surrogate(kLimit);
    at = was;
    outside += std::fabs(was) > kLimit;
    INFO("element " << i << " at " << was);
    CHECK(dx[static_cast<size_t>(i)] == Approx((above - below) / (2 * double{kStep})).margin(2e-3));
    CHECK(codes[static_cast<size_t>(i)] == Approx(std::clamp(was, -kLimit, kLimit)).margin(kLimit / 127 / 2 + 1e-6));
  }
  CHECK(outside > 5);
  for (int64_t o = 0; o < 5; ++o)
    for (int64_t i = 0; i < 8; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < 6; ++r)
        sum += double{layer.dy.as<float>()[r * 5 + o]} * codes[static_cast<size_t>(r * 8 + i)];
      CHECK(dw[static_cast<size_t>(o * 8 + i)] == Approx(sum).margin(1e-5));
    }
  float most = 0;
  for (const float x : values(layer.x)) most = std::max(most, std::fabs(x));
  CHECK(*layer.range.step_amax.as<float>() == most);
}

TEST_CASE("without quantizer state activations pass unquantized, and no quantizer is no op") {
  Layer layer(0);
  Tape& t = layer.rig.tape;
  const Var in = t.input(layer.x, true);
  CHECK(ops::fake_quant(t, in, nullptr).value.data == in.value.data);
  const Var q = ops::fake_quant(t, in, &layer.range);
  CHECK(values(q.value) == values(layer.x));
  const Tensor dq = layer.rig.tensor({6, 8}, 9);
  t.seed(q, dq);
  t.backward();
  CHECK(values(t.grad(in)) == values(dq));
}
