// Gradients against central differences of the forward. First the reference, in f64 throughout, which validates the
// formulas behind parity_test; then the CPU table in f32 as a second check of that test, with parameter gradients in
// f32 and in bf16.
#pragma once
#include <cmath>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::test {

// Objective L = sum of out * weight over a forward's outputs, and dL/dinput from the backward under test.
class Problem {
 public:
  Problem(const OpTable& table, DType t, double step, double tolerance, DType parameters)
      : ops(table), type(t), parameters_(parameters), step_(step), tolerance_(tolerance) {}
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const OpTable& ops;
  const DType type;
  std::function<void()> forward, backward;

  Tensor empty(Shape s) { return empty(s, type); }
  Tensor empty(Shape s, DType t) {
    auto& bytes = memory_.emplace_back(static_cast<size_t>(s.numel() * size_of(t)), std::byte{0xFF});  // NaN
    return {bytes.data(), s, t, Device{}};
  }
  Tensor random(Shape s, double scale = 1, double mean = 0) {
    const Tensor t = empty(s);
    const uint64_t key = stream_key(77, cat("finite difference ", memory_.size()));
    for (int64_t i = 0; i < t.numel(); ++i) set(t, i, mean + scale * philox_normal(key, static_cast<uint64_t>(i)));
    return t;
  }
  Tensor tokens(std::vector<int> v) {
    const Tensor t = empty({static_cast<int64_t>(v.size())}, DType::kI32);
    for (size_t i = 0; i < v.size(); ++i) set(t, static_cast<int64_t>(i), v[i]);
    return t;
  }
  // Adds this output to the objective; returns its weights, which are also its gradient.
  Tensor add_output(const Tensor& out) {
    const Tensor w = random(out.shape);
    objective_.emplace_back(out, w);
    return w;
  }
  // Allocates the tensor for the backward's dL/dinput.
  Tensor add_input(const char* name, const Tensor& input) {
    inputs_.push_back({name, input, empty(input.shape)});
    return inputs_.back().grad;
  }
  // The same for a parameter.
  Tensor weight_gradient_of(const char* name, const Tensor& input) {
    inputs_.push_back({name, input, empty(input.shape, parameters_)});
    return inputs_.back().grad;
  }

  // Checks a few random directions per input.
  void check() {
    forward();
    backward();
    for (const Input& input : inputs_) {
      double norm = 0;
      for (int64_t i = 0; i < input.grad.numel(); ++i) norm += std::pow(get(input.grad, i), 2);
      CHECK(norm > 0);
      for (uint64_t direction = 0; direction < 4; ++direction) {
        const double measured = difference(input.value, direction);
        double predicted = 0;
        for (int64_t i = 0; i < input.grad.numel(); ++i) predicted += get(input.grad, i) * along(direction, i);
        INFO(ops.name << ": gradient of " << input.name << ", direction " << direction << ": predicted " << predicted
                      << ", measured " << measured << ", norm " << std::sqrt(norm));
        CHECK(std::abs(predicted - measured) <= tolerance_ * std::sqrt(norm));
      }
    }
  }

 private:
  struct Input {
    std::string name;
    Tensor value, grad;
  };
  static double along(uint64_t direction, int64_t i) {
    return philox_normal(stream_key(direction, "direction"), static_cast<uint64_t>(i));
  }
  double value_at(const Tensor& input, const std::vector<double>& start, double step, uint64_t direction) {
    for (int64_t i = 0; i < input.numel(); ++i)
      set(input, i, start[static_cast<size_t>(i)] + step * along(direction, i));
    forward();
    double total = 0;
    for (const auto& [out, weight] : objective_) {
      for (int64_t i = 0; i < out.numel(); ++i) total += get(out, i) * get(weight, i);
    }
    return total;
  }
  double difference(const Tensor& input, uint64_t direction) {
    std::vector<double> start;
    for (int64_t i = 0; i < input.numel(); ++i) start.push_back(get(input, i));
    const double up = value_at(input, start, step_, direction), down = value_at(input, start, -step_, direction);
    value_at(input, start, 0, direction);
    return (up - down) / (2 * step_);
  }

  DType parameters_;  // dtype of parameter gradients
  double step_, tolerance_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<Input> inputs_;
  std::vector<std::pair<Tensor, Tensor>> objective_;
};

// Runs the problem with the reference in f64 and with the CPU table in f32. f32 leaves few digits in a difference, so
// step and tolerance are large; bf16 gradients stay within it.
inline void expect_gradients(const std::function<void(Problem&)>& state) {
  {
    Problem exact(reference_ops(), DType::kF64, 1e-5, 1e-6, DType::kF64);
    state(exact);
    exact.check();
  }
  for (const DType parameters : {DType::kF32, DType::kBF16}) {
    INFO("gradients of parameters in " << name_of(parameters));
    Problem single(*cpu_backend().ops, DType::kF32, 4e-3, 1e-2, parameters);
    state(single);
    single.check();
  }
}

}  // namespace gt::test
