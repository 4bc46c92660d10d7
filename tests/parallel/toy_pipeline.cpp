#include "tests/parallel/toy_pipeline.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace gt::toy {
namespace {

int64_t count(const Tensor& t) { return t.numel(); }

// x[token, h] = w[h] * (tokens[token] + 1) / 8
Var embed(Tape& t, Weight& w, const MicroBatch& mb) {
  const Var y = t.output({mb.batch * mb.seq, kHidden}, DType::kF32);
  for (int64_t i = 0; i < count(y.value); ++i)
    y.value.as<float>()[i] =
        w.value[static_cast<size_t>(i % kHidden)] * static_cast<float>(mb.tokens.as<int32_t>()[i / kHidden] + 1) / 8;
  struct Saved {
    Var y;
    Tensor tokens;
    Parameter* w;
  };
  t.record(Saved{y, mb.tokens, &w.param}, nullptr, [](const Saved& s, Backprop& bp) {
    const Tensor dy = bp.grad(s.y);
    auto [dw, add] = bp.dst(*s.w);
    for (int64_t h = 0; h < kHidden; ++h) {
      float sum = add ? dw.as<float>()[h] : 0;
      for (int64_t i = h; i < count(dy); i += kHidden)
        sum += dy.as<float>()[i] * static_cast<float>(s.tokens.as<int32_t>()[i / kHidden] + 1) / 8;
      dw.as<float>()[h] = sum;
    }
  });
  return y;
}

// h = w * sin(x)
Var wave(Tape& t, Var x, Weight& w) {
  const Var y = t.output(x.value.shape, DType::kF32);
  for (int64_t i = 0; i < count(y.value); ++i)
    y.value.as<float>()[i] = w.value[static_cast<size_t>(i % kHidden)] * std::sin(x.value.as<float>()[i]);
  struct Saved {
    Var x, y;
    Parameter* w;
  };
  t.record(
      Saved{x, y, &w.param},
      [](const Saved& s, Backprop& bp) {
        if (!bp.needs_grad(s.x)) return;
        const float* dy = bp.grad(s.y).as<float>();
        auto [dx, add] = bp.dst(s.x);
        for (int64_t i = 0; i < count(dx); ++i) {
          const float g = dy[i] * s.w->value.as<float>()[i % kHidden] * std::cos(s.x.value.as<float>()[i]);
          dx.as<float>()[i] = add ? dx.as<float>()[i] + g : g;
        }
      },
      [](const Saved& s, Backprop& bp) {
        const Tensor dy = bp.grad(s.y);
        auto [dw, add] = bp.dst(*s.w);
        for (int64_t h = 0; h < kHidden; ++h) {
          float sum = add ? dw.as<float>()[h] : 0;
          for (int64_t i = h; i < count(dy); i += kHidden)
            sum += dy.as<float>()[i] * std::sin(s.x.value.as<float>()[i]);
          dw.as<float>()[h] = sum;
        }
      });
  return y;
}

Var residual(Tape& t, Var x, Var h) {
  const Var y = t.output(x.value.shape, DType::kF32);
  for (int64_t i = 0; i < count(y.value); ++i) y.value.as<float>()[i] = x.value.as<float>()[i] + h.value.as<float>()[i];
  struct Saved {
    Var x, h, y;
  };
  t.record(Saved{x, h, y}, [](const Saved& s, Backprop& bp) {
    bp.forward_grad(s.h, bp.grad(s.y));
    bp.forward_grad(s.x, bp.grad(s.y));
  });
  return y;
}

// loss = sum w * x^2 / 2; like a fused head it writes dw in the forward and keeps dx, both times the upstream gradient.
Var head(Tape& t, Var x, Weight& w, const MicroBatch& mb) {
  const Var loss = t.output({1}, DType::kF64);
  const Tensor dx = t.recording() ? t.scratch(x.value.shape, DType::kF32) : Tensor{};
  const float seed = *mb.dloss.as<float>();
  const bool add = w.param.grad_dirty;
  double sum = 0;
  for (int64_t i = 0; i < count(x.value); ++i) {
    const float xi = x.value.as<float>()[i], wi = w.value[static_cast<size_t>(i % kHidden)];
    sum += 0.5 * static_cast<double>(wi) * xi * xi;
    if (!t.recording()) continue;
    dx.as<float>()[i] = seed * wi * xi;
    float& g = w.grad[static_cast<size_t>(i % kHidden)];
    g = (add || i >= kHidden ? g : 0) + seed * xi * xi / 2;
  }
  if (t.recording()) w.param.grad_dirty = true;
  *loss.value.as<double>() = *mb.sums.as<double>() = sum;
  struct Saved {
    Var x;
    Tensor dx;
  };
  t.record(Saved{x, dx}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, s.dx); });
  return loss;
}

void copy_op(const Copy& a, Stream) { std::memmove(a.dst.data, a.src.data, static_cast<size_t>(a.src.bytes())); }
void axpy_op(const Axpy& a, Stream) {
  for (int64_t i = 0; i < a.x.numel(); ++i) a.y.as<float>()[i] += a.alpha * a.x.as<float>()[i];
}

}  // namespace

const OpTable& ops() {
  static constexpr OpTable table{.name = "toy", .axpy = axpy_op, .copy = copy_op};
  return table;
}

const DeviceApi& device() {
  static constexpr auto alloc = [](int, int64_t bytes) -> void* {
    void* p = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
    std::memset(p, 0xFF, static_cast<size_t>(bytes));
    return p;
  };
  static const DeviceApi api{
      .name = "toy",
      .alloc = alloc,
      .free = [](int, void* p, int64_t) { std::free(p); },
      .copy = [](void* dst, const void* src, int64_t n, Stream) { std::memcpy(dst, src, static_cast<size_t>(n)); },
      .zero = [](void* p, int64_t n, Stream) { std::memset(p, 0, static_cast<size_t>(n)); },
      .synchronize = [](Stream) {}};
  return api;
}

Weight::Weight(int layer) : value(kHidden), grad(kHidden, NAN) {
  for (size_t h = 0; h < value.size(); ++h)
    value[h] = 0.5f + 0.25f * std::sin(static_cast<float>(layer * 7 + static_cast<int>(h)));
  param.name = "layer" + std::to_string(layer);
  param.value = {reinterpret_cast<std::byte*>(value.data()), {kHidden}, DType::kF32, {}};
  param.grad = {reinterpret_cast<std::byte*>(grad.data()), {kHidden}, DType::kF32, {}};
}

ToyStage::ToyStage(int begin, int end) : begin_(begin), end_(end) {
  for (int layer = begin; layer < end; ++layer) weights_.emplace_back(layer);
}

Var ToyStage::forward(Tape& t, Var x, const MicroBatch& mb) {
  if (jitter_ != 0) {
    jitter_ = jitter_ * 1664525u + 1013904223u;
    std::this_thread::sleep_for(std::chrono::microseconds(jitter_ % 200));
  }
  int layer = begin_;
  for (Weight& w : weights_) {
    if (layer == 0)
      x = embed(t, w, mb);
    else if (layer == kLayers - 1)
      x = head(t, x, w, mb);
    else
      x = residual(t, x, wave(t, x, w));
    ++layer;
  }
  return x;
}

Var ThroughStage::forward(Tape& t, Var x, const MicroBatch&) {
  const Var y = t.output_of(x.value);
  struct Saved {
    Var x, y;
  };
  t.record(Saved{x, y}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); });
  return y;
}

Batches::Batches(int n, int step, bool vary) {
  for (int k = 0; k < n; ++k) {
    const int64_t seq = vary ? 1 + (k * 3 + step * 2) % 5 + step : kSeq;
    auto& t = tokens.emplace_back(static_cast<size_t>(kBatch * seq));
    for (size_t i = 0; i < t.size(); ++i) t[i] = (k * 5 + step * 3 + static_cast<int>(i)) % 11;
  }
  for (auto& t : tokens) {
    MicroBatch mb;
    mb.batch = kBatch;
    mb.seq = static_cast<int64_t>(t.size()) / kBatch;
    mb.tokens = {reinterpret_cast<std::byte*>(t.data()), {mb.batch, mb.seq}, DType::kI32, {}};
    mb.dloss = {reinterpret_cast<std::byte*>(&seed), {1}, DType::kF32, {}};
    mb.first_sample = (static_cast<int64_t>(step) * n + static_cast<int64_t>(list.size())) * kBatch;
    list.push_back(mb);
  }
}

}  // namespace gt::toy
