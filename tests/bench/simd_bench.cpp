// `bench_simd [threads [isa [optim]]]`: the CPU kernels that are not GEMM at sizes of GPT-2 small, on every instruction
// set that this processor has. Best of several calls; asserts nothing.
// optim: the optimizer steps alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "tests/kernels/host_table.h"
#include "tests/kernels/packed_attention.h"

using namespace gt;
using namespace gt::test;

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
  // One thread: its processor time, which excludes other programs on the machine. More threads: wall-clock time.
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
  AttentionSpec spec = whole_sequences(batch, seq, heads, heads, dim, 1 / std::sqrt(static_cast<float>(dim)));
  const double flops = 2.0 * static_cast<double>(batch * heads * seq * (seq + 1) * dim);
  const std::string name = cat("B", batch, " T", seq, " H", heads, " D", dim);
  b.time(("attention      " + name).c_str(), 0, flops, 5,
         [&] { b.ops().attention(packed_attention(qkv, out, lse, spec), b.stream()); });
  b.time(("attention_grad " + name).c_str(), 0, 2.5 * flops, 5,
         [&] { b.ops().attention_grad(packed_attention_grad(qkv, out, lse, dout, dqkv, spec), b.stream()); });
  spec.drop = {drop_mask(1, 0.1), 0, seq};
  b.time(("attention,      dropout " + name).c_str(), 0, flops, 5,
         [&] { b.ops().attention(packed_attention(qkv, out, lse, spec), b.stream()); });
  b.time(("attention_grad, dropout " + name).c_str(), 0, 2.5 * flops, 5,
         [&] { b.ops().attention_grad(packed_attention_grad(qkv, out, lse, dout, dqkv, spec), b.stream()); });
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
  const RowDrop drop{drop_mask(1, 0.1), {.seq = 1024}};
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
  b.time("column_sums [4096, 768]", bytes, 0, 9, [&] { b.ops().column_sums({x, dbeta}, b.stream()); });
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

// The updates of GPT-2 small's 124 M parameters, against a loop that only reads and writes the same memory.
void step(Bench& b) {
  constexpr int64_t n = 124'439'808;
  const auto bytes = [](double a_parameter) { return a_parameter * static_cast<double>(n); };
  const Tensor w = b.tensor({n}), g = b.tensor({n}), m = b.tensor({n}), v = b.tensor({n}),
               scalars = b.tensor({kNumScalars});
  for (int64_t i = 0; i < n; ++i) v.as<float>()[i] = std::fabs(v.as<float>()[i]);
  float* s = scalars.as<float>();
  s[kLr] = 1e-4f, s[kBeta1] = 0.9f, s[kBiasCorrection1] = 0.5f, s[kBiasCorrection2] = 0.5f, s[kGradMultiplier] = 1,
  s[kSkip] = 0, s[kBeta2] = 0.95f, s[kGradCoefficient] = 1;
  const LambRule rule{};
  test::HostTables tables;
  const auto cut = [&](std::span<const int64_t> sizes) {  // into segments of these sizes, repeated
    std::vector<test::SegmentOf> list;
    for (int64_t at = 0; at < n; at += list.back().grad.numel()) {
      const int64_t count = std::min(n - at, sizes[list.size() % sizes.size()]);
      list.push_back({w.slice(at, count),
                      g.slice(at, count),
                      m.slice(at, count),
                      v.slice(at, count),
                      {},
                      0.1f,
                      static_cast<int32_t>(list.size())});
    }
    return list;
  };
  constexpr int64_t c = 768, kWhole[] = {n}, kWeights[] = {3 * c * c, c * c, 4 * c * c, 4 * c * c};
  constexpr int64_t kBlock[] = {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c};
  const SegmentTable one = tables.table(cut(kWhole)), blocks = tables.table(cut(kBlock));
  const Tensor norms = b.tensor({2 * int64_t{blocks.count}}, DType::kF64);
  b.time("stream: m += w, 124 M", bytes(12), 0, 7, [&] { b.ops().add({m, w, m}, b.stream()); });
  for (const SegmentTable& t : {one, blocks}) {
    const auto time = [&](const char* op, double of_a_parameter, const std::function<void()>& call) {
      b.time((std::string(op) + ", 124 M in " + std::to_string(t.count)).c_str(), bytes(of_a_parameter), 0, 7, call);
    };
    time("adamw", 28, [&] { b.ops().adamw({t, scalars, 1e-8f}, b.stream()); });
    time("lion", 20, [&] { b.ops().lion({t, scalars}, b.stream()); });
    time("adagrad", 20, [&] { b.ops().adagrad({t, scalars}, b.stream()); });
    time("sgd with momentum", 20, [&] { b.ops().sgd({t, scalars}, b.stream()); });
    time("sum_squares", 4, [&] { b.ops().sum_squares({t, norms}, b.stream()); });
    time("lamb, both passes", 40, [&] {
      b.ops().lamb_moments({t, scalars, norms, rule}, b.stream());
      b.ops().lamb_apply({t, scalars, norms, {}, rule}, b.stream());
    });
  }
  // Like the optimizer on one rank: tensor by tensor, with the tensors of GPT-2 small's blocks.
  std::vector<SegmentTable> tensors;
  for (const test::SegmentOf& s : cut(kWeights)) tensors.push_back(tables.table({s}));
  b.time("lamb, both passes, tensors of a block", bytes(40), 0, 7, [&] {
    for (const SegmentTable& t : tensors) {
      b.ops().lamb_moments({t, scalars, norms, rule}, b.stream());
      b.ops().lamb_apply({t, scalars, norms, {}, rule}, b.stream());
    }
  });
  b.drop();
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  for (const CpuIsa isa : {CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kScalar}) {
    if (argc > 2 && std::string(name_of(isa)) != argv[2]) continue;
    try {
      set_cpu_isa(isa);
    } catch (const Error&) { continue; }
    std::printf("\n%s, threads: %d\n", name_of(isa), threads);
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
