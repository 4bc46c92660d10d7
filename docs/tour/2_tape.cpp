// 2. The tape.
//
// A differentiable op runs its forward and appends a node: what it saved, and its backward rule. backward() pops the
// nodes, newest first. The order of execution is a topological order, so there is no graph to search; outputs lie in an
// arena that is rolled back while nodes are popped, so there is nothing to free either.
#include "autograd/ops.h"
#include "docs/tour/show.h"

using namespace gt;

namespace {

struct Net {
  tour::Host host;
  Arena activations{Buffer(1 << 20, Device{}, *cpu_backend().device)};
  Pool gradients{Buffer(1 << 20, Device{}, *cpu_backend().device)};
  Tape tape{activations, gradients, *cpu_backend().ops, Stream{}};
  Parameter w, b;
  Tensor x = host.of({2, 3}, {0.5f, -1, 2, 1, 0.25f, -0.5f});
  Tensor targets = host.tensor({2}, DType::kI32), one = host.of({1}, {1});

  Net() {
    give(w, {4, 3}, 0.1f);
    give(b, {4}, -0.2f);
    targets.as<int32_t>()[0] = 3, targets.as<int32_t>()[1] = 1;
  }
  void give(Parameter& p, Shape s, float first) {
    p.full_shape = p.local_shape = s;
    p.value = host.tensor(s), p.grad = host.tensor(s);
    p.version = fresh_version();
    for (int64_t i = 0; i < s.numel(); ++i) p.value.as<float>()[i] = first + 0.07f * static_cast<float>(i % 5);
  }
  // Cross-entropy of gelu(x w^T + b), summed over two rows.
  double forward() {
    tape.reset();
    const Var h = ops::gelu(tape, ops::linear(tape, tape.input(x, false), w, &b));
    const Var loss = ops::class_cross_entropy(tape, h, targets, one);
    last = loss;
    return loss.value.as<double>()[0];
  }
  Var last;
};

}  // namespace

int main() {
  Net net;
  const double loss = net.forward();
  std::printf("loss %.6f, %zu nodes, %lld bytes of activations\n", loss, net.tape.size(),
              static_cast<long long>(net.activations.used()));
  net.tape.backward();
  tour::claim(net.tape.size() == 0 && net.gradients.live() == 0, "the backward leaves no node and no gradient behind");

  // The gradient against finite differences of the forward.
  double worst = 0;
  for (int64_t i = 0; i < net.w.value.numel(); ++i) {
    float& at = net.w.value.as<float>()[i];
    const float kept = at, h = 1e-2f;
    const auto loss_at = [&](float value) {
      at = value, net.w.version = fresh_version();
      return net.forward();
    };
    const double slope = (loss_at(kept + h) - loss_at(kept - h)) / (2 * h);
    at = kept, net.w.version = fresh_version();
    worst = std::max(worst, std::abs(slope - net.w.grad.as<float>()[i]));
  }
  std::printf("largest difference from finite differences: %.1e\n", worst);
  tour::claim(worst < 1e-3, "dL/dw is the slope of L");

  // A second backward adds, unless a step began: the first writer of a step overwrites.
  net.forward();
  const float once = net.w.grad.as<float>()[0];
  net.tape.backward();
  tour::claim(net.w.grad.as<float>()[0] == 2 * once, "microbatches accumulate");
  net.w.grad_dirty = net.b.grad_dirty = false;
  net.forward();
  net.tape.backward();
  tour::claim(net.w.grad.as<float>()[0] == once, "the first microbatch of a step overwrites: nothing is zeroed");
}
