// `bench_simd [threads [isa [optim]]]`: the CPU kernels that are not GEMM at sizes of GPT-2 small, on every instruction
// set that this processor has. Best of some calls; it measures and asserts nothing.
// optim: the optimizer steps alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"

using namespace gt;

namespace {

class Bench {
 public:
  explicit Bench(int threads) : threads_(threads), stream_(backend_.device->open_stream(0, threads)) {}
  ~Bench() { backend_.device->close_stream(stream_); }
  Bench(const Bench&) = delete;

  const OpTable& ops() const { return *backend_.ops; }
  Stream stream() const { return stream_; }

  Tensor tensor(Shape s, DType t = DType::kF32) {
    buffers_.emplace_back(s.numel() * size_of(t), stream_.device, *backend_.device);
    const Tensor made = buffers_.back().tensor(s, t);
    if (t == DType::kF32) {
      uint32_t x = 12345;
      for (int64_t i = 0; i < made.numel(); ++i) {
        x = x * 1664525u + 1013904223u;
        made.as<float>()[i] = static_cast<float>(x >> 8) / (1 << 23) - 1.0f;
      }
    } else {
      for (int64_t i = 0; i < made.numel(); ++i) made.as<int32_t>()[i] = static_cast<int32_t>(i * 7919 % 50257);
    }
    return made;
  }
  void drop() { buffers_.clear(); }

  void time(const char* name, double bytes, double flops, int repeats, const std::function<void()>& call) {
    double best = 1e9;
    call();
    for (int i = 0; i < repeats; ++i) {
      const double start = now();
      call();
      best = std::min(best, now() - start);
    }
    std::printf("%-44s %10.3f ms", name, best * 1e3);
    if (bytes > 0) std::printf("  %8.1f GB/s", bytes / best * 1e-9);
    if (flops > 0) std::printf("  %8.1f GFLOP/s", flops / best * 1e-9);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  // One thread: its processor time, which other programs on the machine do not stretch. More: the clock on the wall.
  double now() const {
    timespec t{};
    clock_gettime(threads_ == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  const Backend& backend_ = cpu_backend();
  int threads_;
  Stream stream_;
  std::vector<Buffer> buffers_;
};

void attention(Bench& b, int64_t batch, int64_t seq, int64_t heads, int64_t dim) {
  const Tensor qkv = b.tensor({batch * seq, 3 * heads * dim}), out = b.tensor({batch * seq, heads * dim});
  const Tensor lse = b.tensor({batch, heads, seq}), dout = b.tensor(out.shape), dqkv = b.tensor(qkv.shape);
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  const double flops = 2.0 * static_cast<double>(batch * heads * seq * (seq + 1) * dim);
  const std::string name = cat("B", batch, " T", seq, " H", heads, " D", dim);
  b.time(("attention      " + name).c_str(), 0, flops, 5, [&] {
    b.ops().attention({qkv, out, lse, batch, seq, heads, heads, dim, scale}, b.stream());
  });
  b.time(("attention_grad " + name).c_str(), 0, 2.5 * flops, 5, [&] {
    b.ops().attention_grad({qkv, out, lse, dout, dqkv, batch, seq, heads, heads, dim, scale}, b.stream());
  });
  const HeadDrop drop{drop_mask(1, 0.1), 0};
  b.time(("attention,      dropout " + name).c_str(), 0, flops, 5, [&] {
    b.ops().attention({qkv, out, lse, batch, seq, heads, heads, dim, scale, drop}, b.stream());
  });
  b.time(("attention_grad, dropout " + name).c_str(), 0, 2.5 * flops, 5, [&] {
    b.ops().attention_grad({qkv, out, lse, dout, dqkv, batch, seq, heads, heads, dim, scale, drop}, b.stream());
  });
  b.drop();
}

void rows(Bench& b) {
  const int64_t n = 4096, c = 768;
  const double bytes = static_cast<double>(n * c * 4);
  const Tensor x = b.tensor({n, c}), y = b.tensor({n, c}), z = b.tensor({n, c}), out = b.tensor({n, c});
  const Tensor gamma = b.tensor({c}), beta = b.tensor({c}), mean = b.tensor({n}), rstd = b.tensor({n});
  const Tensor dgamma = b.tensor({c}), dbeta = b.tensor({c});
  b.time("layer_norm, residual, [4096, 768]", 4 * bytes, 0, 9, [&] {
    b.ops().layer_norm({x, y, gamma, beta, z, out, mean, rstd}, b.stream());
  });
  b.time("layer_norm_grad, residual, [4096, 768]", 4 * bytes, 0, 9, [&] {
    b.ops().layer_norm_grad({z, gamma, mean, rstd, out, y, x, dgamma, dbeta}, b.stream());
  });
  const RowDrop drop{drop_mask(1, 0.1), 1024, 0};
  b.time("dropout [4096, 768]", 2 * bytes, 0, 9, [&] { b.ops().dropout({x, out, drop}, b.stream()); });
  b.time("layer_norm, residual, dropout, [4096, 768]", 4 * bytes, 0, 9, [&] {
    b.ops().layer_norm({x, y, gamma, beta, z, out, mean, rstd, 1e-5f, drop}, b.stream());
  });
  b.time("layer_norm_grad, residual, dropout", 5 * bytes, 0, 9, [&] {
    b.ops().layer_norm_grad({z, gamma, mean, rstd, out, y, x, dgamma, dbeta, false, false, out, drop}, b.stream());
  });
  b.time("add [4096, 768]", 3 * bytes, 0, 9, [&] { b.ops().add({x, y, out}, b.stream()); });
  b.time("gelu [4096, 768]", 2 * bytes, 0, 9, [&] { b.ops().gelu({x, out}, b.stream()); });
  b.time("gelu_grad [4096, 768]", 3 * bytes, 0, 9, [&] { b.ops().gelu_grad({x, y, out}, b.stream()); });
  b.time("sum_rows [4096, 768]", bytes, 0, 9, [&] { b.ops().sum_rows({x, dbeta}, b.stream()); });
  b.drop();
}

void vocabulary(Bench& b) {
  const int64_t n = 64, v = 50304;
  const Tensor logits = b.tensor({n, v}), targets = b.tensor({n}, DType::kI32), stats = b.tensor({1, n, 3});
  const Tensor seed = b.tensor({1}), loss = b.tensor({n}), d = b.tensor({n, v});
  const double bytes = static_cast<double>(n * v * 4);
  b.time("cross_entropy [64, 50304]", 2 * bytes, 0, 9, [&] {
    b.ops().cross_entropy({logits, targets, seed, loss, d, 50257}, b.stream());
  });
  b.time("cross_entropy_stats [64, 50304]", bytes, 0, 9, [&] {
    b.ops().cross_entropy_stats({logits, targets, stats.view({n, 3}), 0, 50257}, b.stream());
  });
  b.time("cross_entropy_grad [64, 50304]", 2 * bytes, 0, 9, [&] {
    b.ops().cross_entropy_grad({logits, targets, stats, seed, loss, d, 1, 0, 50257}, b.stream());
  });
  const Tensor tokens = b.tensor({1024}, DType::kI32), dout = b.tensor({1024, 768}), dtable = b.tensor({50257, 768});
  b.time("embedding_grad, adding, 1024 of [50257, 768]", 3 * static_cast<double>(dout.bytes()), 0, 5, [&] {
    b.ops().embedding_grad({tokens, dout, dtable, 0, true}, b.stream());
  });
  b.drop();
}

// The updates of GPT-2 small's 124 M parameters, beside a loop over the same memory that does nothing else: it too
// writes only what it has read.
void step(Bench& b) {
  const int64_t n = 124'439'808;
  const auto bytes = [n](double a_parameter) { return a_parameter * static_cast<double>(n); };
  const Tensor w = b.tensor({n}), g = b.tensor({n}), m = b.tensor({n}), v = b.tensor({n}),
               scalars = b.tensor({kNumScalars});
  for (int64_t i = 0; i < n; ++i) v.as<float>()[i] = std::fabs(v.as<float>()[i]);
  float* s = scalars.as<float>();
  s[kLr] = 1e-4f, s[kBeta1] = 0.9f, s[kBiasCorrection1] = 0.5f, s[kBiasCorrection2] = 0.5f, s[kGradMultiplier] = 1,
  s[kSkip] = 0, s[kBeta2] = 0.95f, s[kGradShare] = 1;
  const Tensor norms = b.tensor({2}, DType::kF64);
  const LambRule rule{.weight_decay = 0.01f};
  b.time("stream: m += w, 124 M", bytes(12), 0, 7, [&] { b.ops().add({m, w, m}, b.stream()); });
  b.time("adamw, 124 M", bytes(28), 0, 7, [&] { b.ops().adamw({w, g, m, v, {}, scalars, 1e-8f, 0.1f}, b.stream()); });
  b.time("lamb, both passes, one tensor of 124 M", bytes(40), 0, 7, [&] {
    b.ops().lamb_moments({w, g, m, v, scalars, norms, rule}, b.stream());
    b.ops().lamb_apply({w, m, v, {}, scalars, norms, {}, rule}, b.stream());
  });
  // As the optimizer does it on one rank: tensor by tensor, those of GPT-2 small's blocks.
  b.time("lamb, both passes, tensors of a block", bytes(40), 0, 7, [&] {
    constexpr int64_t kSizes[] = {3 * 768 * 768, 768 * 768, 4 * 768 * 768, 4 * 768 * 768};
    for (int64_t at = 0, k = 0; at < n; ++k) {
      const int64_t count = std::min(n - at, kSizes[k % 4]);
      const Tensor wt = w.slice(at, count), gt = g.slice(at, count), mt = m.slice(at, count), vt = v.slice(at, count);
      b.ops().lamb_moments({wt, gt, mt, vt, scalars, norms, rule}, b.stream());
      b.ops().lamb_apply({wt, mt, vt, {}, scalars, norms, {}, rule}, b.stream());
      at += count;
    }
  });
  b.time("lion, 124 M", bytes(20), 0, 7, [&] { b.ops().lion({w, g, m, {}, scalars, 0.1f}, b.stream()); });
  b.time("sgd with momentum, 124 M", bytes(20), 0, 7, [&] { b.ops().sgd({w, g, m, {}, scalars, 0.1f}, b.stream()); });
  const Tensor out{reinterpret_cast<std::byte*>(s), {1}, DType::kF64, {}};
  b.time("sum_squares, 124 M", bytes(4), 0, 7, [&] { b.ops().sum_squares({g, out}, b.stream()); });
  b.drop();
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  for (const char* isa : {"avx512", "avx2", "scalar"}) {
    if (argc > 2 && std::string(isa) != argv[2]) continue;
    try {
      set_cpu_isa(isa);
    } catch (const Error&) { continue; }
    std::printf("\n%s, threads: %d\n", isa, threads);
    Bench b(threads);
    if (argc > 3 && std::string(argv[3]) == "optim") {
      step(b);
      continue;
    }
    attention(b, 4, 256, 12, 64);
    attention(b, 1, 1024, 12, 64);
    attention(b, 1, 1024, 6, 128);
    rows(b);
    vocabulary(b);
    step(b);
  }
}
