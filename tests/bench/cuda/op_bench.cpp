// Times the ops of libgpttrain_cuda.so at the shapes of GPT-2 124M with device events, next to the ceilings of the
// device measured in the same run. Prints a table; asserts nothing. Build and run: README.md in this folder.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "kernels/cuda/context.h"

extern "C" const gt::Backend* gpttrain_backend(int abi, const char** why);

namespace {

using namespace gt;

const Backend* backend = nullptr;
Stream stream;
Tensor noise;  // 64 Mi normal numbers in f32: every input is a copy of a part, in its own dtype

struct Memory {
  std::vector<std::pair<void*, int64_t>> blocks;
  ~Memory() {
    backend->device->synchronize(stream);
    for (auto [p, n] : blocks) backend->device->free(0, p, n);
  }
  Tensor make(Shape s, DType t) {
    Tensor out{nullptr, s, t, stream.device};
    out.data = static_cast<std::byte*>(backend->device->alloc(0, out.bytes()));
    blocks.emplace_back(out.data, out.bytes());
    return out;
  }
  // Normal numbers; constant data would run faster than real data.
  Tensor random(Shape s, DType t) {
    Tensor out = make(s, t);
    for (int64_t at = 0; at < out.numel(); at += noise.numel()) {
      const int64_t n = std::min(noise.numel(), out.numel() - at);
      Tensor part = out;
      part.data += at * size_of(t), part.shape = {n};
      backend->ops->cast({.src = noise.slice(0, n), .dst = part}, stream);
    }
    return out;
  }
  Tensor ids(int64_t n, int64_t end, bool zipf) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const double u = static_cast<double>(splitmix64(static_cast<uint64_t>(i) + 77) >> 11) * 0x1p-53;
      v[static_cast<size_t>(i)] =
          static_cast<int32_t>(zipf ? std::pow(static_cast<double>(end), u) - 1 : u * static_cast<double>(end));
    }
    Tensor out = make({n}, DType::kI32);
    backend->device->copy(out.data, v.data(), out.bytes(), stream);
    backend->device->synchronize(stream);
    return out;
  }
  Tensor scalars(std::vector<float> v) {
    Tensor out = make({static_cast<int64_t>(v.size())}, DType::kF32);
    backend->device->copy(out.data, v.data(), out.bytes(), stream);
    backend->device->synchronize(stream);
    return out;
  }
};

double peak_bytes = 0, peak_f32 = 0, peak_half = 0;  // per second

// Median of event timings of single calls after a warm-up; long calls repeat less.
double median_us(const std::function<void()>& f, double* spread = nullptr) {
  auto s = static_cast<cuda::Context*>(stream.native)->stream;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  for (int i = 0; i < 3; ++i) f();
  std::vector<float> us;
  double total = 0;
  for (int i = 0; i < 30 && (i < 7 || total < 0.5e6); ++i) {
    cudaEventRecord(begin, s);
    f();
    cudaEventRecord(end, s);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    us.push_back(ms * 1e3f);
    total += us.back();
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(us.begin(), us.end());
  if (spread != nullptr) *spread = (us[us.size() * 9 / 10] - us[us.size() / 10]) / us[us.size() / 2];
  return us[us.size() / 2];
}

void row(const char* op, const std::string& shape, double bytes, double flops, double ceiling,
         const std::function<void()>& f) {
  double spread = 0;
  const double us = median_us(f, &spread);
  std::printf("%-22s %-44s %10.1f us %4.0f%% %8.0f GB/s %3.0f%% %8.2f TFLOP/s", op, shape.c_str(), us, 100 * spread,
              bytes / us * 1e-3, peak_bytes > 0 ? bytes / us * 1e8 / peak_bytes : 0, flops / us * 1e-6);
  if (flops > 0 && ceiling > 0) std::printf(" %3.0f%%", flops / us * 1e8 / ceiling);
  std::printf("\n");
  std::fflush(stdout);
}

double product(DType t, Shape a, Shape b, Shape out, const char* name, bool trans_a, bool trans_b, bool bias,
               Epilogue e, DType out_type, bool accumulate, double ceiling) {
  Memory m;
  Gemm g{.a = m.random(a, t),
         .b = m.random(b, t),
         .out = m.random(out, out_type),
         .trans_a = trans_a,
         .trans_b = trans_b,
         .accumulate = accumulate,
         .epilogue = e};
  if (bias) g.bias = m.random({out[1]}, t);
  if (e != Epilogue::kNone) g.aux = m.random(out, t);
  const double k = static_cast<double>(trans_a ? a[0] : a[1]);
  const double flops = 2.0 * static_cast<double>(out.numel()) * k;
  const double bytes = static_cast<double>(g.a.bytes() + g.b.bytes() + g.out.bytes() * (accumulate ? 2 : 1) +
                                           (g.aux ? g.aux.bytes() : 0));
  double best = 0;
  row("gemm", cat(name, " m ", out[0], " n ", out[1], " k ", k), bytes, flops, ceiling,
      [&] { backend->ops->gemm(g, stream); });
  if (ceiling == 0) best = flops / median_us([&] { backend->ops->gemm(g, stream); }) * 1e6;
  return best;
}

void ceilings() {
  Memory m;
  const Tensor a = m.random({int64_t{1} << 29}, DType::kF32), b = m.random({int64_t{1} << 29}, DType::kF32);
  peak_bytes = 2.0 * static_cast<double>(a.bytes()) / median_us([&] {
                 cudaMemcpyAsync(b.data, a.data, static_cast<size_t>(a.bytes()), cudaMemcpyDeviceToDevice,
                                 static_cast<cuda::Context*>(stream.native)->stream);
               }) *
               1e6;
  std::printf("ceiling: copy of 2 GiB %.2f TB/s\n", peak_bytes * 1e-12);
  peak_half = product(DType::kBF16, {8192, 8192}, {8192, 8192}, {8192, 8192}, "bf16 8192", false, true, false,
                      Epilogue::kNone, DType::kBF16, false, 0);
  peak_f32 = product(DType::kF32, {8192, 8192}, {8192, 8192}, {8192, 8192}, "f32 8192", false, true, false,
                     Epilogue::kNone, DType::kF32, false, 0);
}

// By each who may compute it; the backward of cuDNN with and without the same bits every time.
void attention(DType t, int64_t n, int64_t heads, int64_t D, int64_t s, double peak) {
  const OpTable& ops = *backend->ops;
  Memory m;
  const int64_t C = heads * D;
  const float scale = 1 / std::sqrt(static_cast<float>(D));
  const double act = static_cast<double>(n * C * size_of(t));
  const Attention f{.qkv = m.random({n, 3 * C}, t),
                    .out = m.make({n, C}, t),
                    .lse = m.make({n / s, heads, s}, DType::kF32),
                    .batch = n / s,
                    .seq = s,
                    .heads = heads,
                    .kv_heads = heads,
                    .head_dim = D,
                    .scale = scale};
  const AttentionGrad b{.qkv = f.qkv,
                        .out = f.out,
                        .lse = f.lse,
                        .dout = m.random({n, C}, t),
                        .dqkv = m.make({n, 3 * C}, t),
                        .batch = n / s,
                        .seq = s,
                        .heads = heads,
                        .kv_heads = heads,
                        .head_dim = D,
                        .scale = scale};
  const double flops =
      2.0 * static_cast<double>(n) * static_cast<double>(s) * static_cast<double>(C);  // causal half, two products
  const std::string shape = cat(" batch ", n / s, " heads ", heads, " s ", s, " hd ", D);
  const auto both = [&](const char* who, const AttentionTuning& tuning, bool forward) {
    try {
      backend->tune_attention(tuning);
      if (forward)
        row("attention", who + shape, 4 * act, flops, peak, [&] { ops.attention(f, stream); });
      row("attention_grad", who + shape, 8 * act, 2.5 * flops, peak, [&] { ops.attention_grad(b, stream); });
    } catch (const Error& e) { std::printf("attention, %s: not measured: %s\n", who, e.what()); }
  };
  both("own", {.by = "own"}, true);
  if (t != DType::kF32) {
    both("cuDNN", {.by = "cudnn", .deterministic = true}, true);
    both("cuDNN any order", {.by = "cudnn", .deterministic = false}, false);
  }
  backend->tune_attention({});
}

void model(DType t, int64_t n, int64_t C, int64_t heads, int64_t s, int64_t V) {
  const OpTable& ops = *backend->ops;
  const int64_t F = 4 * C, e = size_of(t), head_rows = std::min<int64_t>(n, 8192), parameters = 124475904;
  const double peak = t == DType::kF32 ? peak_f32 : peak_half, act = static_cast<double>(n * C * e);
  std::printf("\n%s, n %ld C %ld heads %ld s %ld V %ld\n", name_of(t), n, C, heads, s, V);
  using E = Epilogue;
  product(t, {n, C}, {3 * C, C}, {n, 3 * C}, "qkv", false, true, true, E::kNone, t, false, peak);
  product(t, {n, 3 * C}, {3 * C, C}, {n, C}, "qkv dX", false, false, false, E::kNone, t, false, peak);
  product(t, {n, 3 * C}, {n, C}, {3 * C, C}, "qkv dW acc", true, false, false, E::kNone, DType::kF32, true, peak);
  product(t, {n, C}, {C, C}, {n, C}, "out-proj", false, true, true, E::kNone, t, false, peak);
  product(t, {n, C}, {F, C}, {n, F}, "fc1+bias+gelu", false, true, true, E::kGelu, t, false, peak);
  product(t, {n, F}, {C, F}, {n, C}, "fc2", false, true, true, E::kNone, t, false, peak);
  product(t, {n, C}, {C, F}, {n, F}, "fc2 dX+gelu'", false, false, false, E::kGeluGrad, t, false, peak);
  product(t, {n, C}, {n, F}, {C, F}, "fc2 dW acc", true, false, false, E::kNone, DType::kF32, true, peak);
  product(t, {head_rows, C}, {V, C}, {head_rows, V}, "head", false, true, false, E::kNone, t, false, peak);
  product(t, {head_rows, V}, {V, C}, {head_rows, C}, "head dX", false, false, false, E::kNone, t, false, peak);
  product(t, {head_rows, V}, {head_rows, C}, {V, C}, "head dW acc", true, false, false, E::kNone, DType::kF32, true,
          peak);
  const std::string nc = cat("[", n, ", ", C, "]"), nf = cat("[", n, ", ", F, "]");
  {
    Memory m;
    LayerNorm f{.x = m.random({n, C}, t),
                .delta = m.random({n, C}, t),
                .gamma = m.random({C}, DType::kF32),
                .beta = m.random({C}, DType::kF32),
                .sum = m.make({n, C}, t),
                .out = m.make({n, C}, t),
                .mean = m.make({n}, DType::kF32),
                .rstd = m.make({n}, DType::kF32)};
    row("layer_norm", nc + " + residual", 4 * act, 0, 0, [&] { ops.layer_norm(f, stream); });
    LayerNormGrad b{.x = f.sum,
                    .gamma = f.gamma,
                    .mean = f.mean,
                    .rstd = f.rstd,
                    .dout = m.random({n, C}, t),
                    .dsum = m.random({n, C}, t),
                    .dx = m.make({n, C}, t),
                    .dgamma = m.make({C}, DType::kF32),
                    .dbeta = m.make({C}, DType::kF32)};
    row("layer_norm_grad", nc + " + residual", 4 * act, 0, 0, [&] { ops.layer_norm_grad(b, stream); });
  }
  attention(t, n, heads, C / heads, s, peak);
  {
    Memory m;
    const Tensor x = m.random({n, F}, t), y = m.random({n, F}, t), z = m.make({n, F}, t), bias = m.random({F}, t),
                 db = m.make({F}, DType::kF32);
    row("gelu", nf, 8 * act, 0, 0, [&] { ops.gelu({.x = x, .out = z}, stream); });
    row("gelu_grad", nf, 12 * act, 0, 0, [&] { ops.gelu_grad({.x = x, .dout = y, .dx = z}, stream); });
    row("add", nf, 12 * act, 0, 0, [&] { ops.add({.a = x, .b = y, .out = z}, stream); });
    row("axpy", nf, 12 * act, 0, 0, [&] { ops.axpy({.x = x, .y = y, .alpha = 1e-3f}, stream); });
    row("copy", nf, 8 * act, 0, 0, [&] { ops.copy({.src = x, .dst = z}, stream); });
    row("add_bias", nf, 8 * act, 0, 0, [&] { ops.add_bias({.x = x, .bias = bias, .out = z}, stream); });
    row("sum_rows", nf, 4 * act, 0, 0, [&] { ops.sum_rows({.x = x, .out = db}, stream); });
  }
  {
    Memory m;
    const Tensor table = m.random({V, C}, t), x = m.make({n, C}, t), dtable = m.make({V, C}, DType::kF32),
                 pos = m.random({s, C}, t);
    const Tensor dpos = m.make({s, C}, DType::kF32), dout = m.random({n, C}, t);
    for (const bool zipf : {true, false}) {
      const Tensor tokens = m.ids(n, V, zipf);
      const std::string name = nc + (zipf ? " log-uniform ids" : " uniform ids");
      row("embedding", name, 2 * act, 0, 0,
          [&] { ops.embedding({.tokens = tokens, .table = table, .out = x}, stream); });
      row("embedding_grad", name + " write", act + static_cast<double>(dtable.bytes()), 0, 0,
          [&] { ops.embedding_grad({.tokens = tokens, .dout = dout, .dtable = dtable}, stream); });
      row("embedding_grad", name + " add", 3 * act, 0, 0,
          [&] { ops.embedding_grad({.tokens = tokens, .dout = dout, .dtable = dtable, .accumulate = true}, stream); });
    }
    row("add_position", nc, 2 * act, 0, 0, [&] { ops.add_position({.x = x, .pos = pos, .seq = s}, stream); });
    row("position_grad", nc, act, 0, 0, [&] { ops.position_grad({.dout = dout, .dpos = dpos, .seq = s}, stream); });
  }
  {
    Memory m;
    const Tensor logits = m.random({head_rows, V}, t), targets = m.ids(head_rows, V, false),
                 stats = m.make({head_rows, 3}, DType::kF32);
    const Tensor seed = m.scalars({1e-4f}), loss = m.make({head_rows}, DType::kF32), d = m.make({head_rows, V}, t);
    const std::string name = cat("[", head_rows, ", ", V, "]");
    const auto bytes = static_cast<double>(logits.bytes());
    row("cross_entropy_stats", name, bytes, 0, 0, [&] {
      ops.cross_entropy_stats({.logits = logits, .targets = targets, .stats = stats, .vocab = V - 47}, stream);
    });
    row("cross_entropy_grad", name, 2 * bytes, 0, 0, [&] {
      ops.cross_entropy_grad({.logits = logits,
                              .targets = targets,
                              .stats = stats,
                              .seed = seed,
                              .loss = loss,
                              .dlogits = d,
                              .vocab = V - 47},
                             stream);
    });
  }
  {
    Memory m;
    const Tensor p = m.random({parameters}, DType::kF32), g = m.random({parameters}, DType::kF32),
                 mm = m.random({parameters}, DType::kF32);
    const Tensor v = m.random({parameters}, DType::kF32), value = m.make({parameters}, DType::kBF16),
                 out = m.make({1}, DType::kF64);
    ops.copy({.src = m.scalars(std::vector<float>(1, 0.f)), .dst = m.make({1}, DType::kF32)}, stream);
    const Tensor k = m.scalars({1e-4f, 0.9f, 0.1f, 0.05f, 1, 0, 1, 0.95f, 0.1f, 0, 0, 0, 0, 0, 0, 0});
    const auto P = static_cast<double>(parameters);
    row("adamw", cat("[", parameters, "] f32"), 28 * P, 0, 0,
        [&] { ops.adamw({.master = p, .grad = g, .m = mm, .v = v, .scalars = k}, stream); });
    row("adamw", cat("[", parameters, "] f32 + bf16 value"), 30 * P, 0, 0,
        [&] { ops.adamw({.master = p, .grad = g, .m = mm, .v = v, .value = value, .scalars = k}, stream); });
    row("sum_squares", cat("[", parameters, "]"), 4 * P, 0, 0, [&] { ops.sum_squares({.x = g, .out = out}, stream); });
    row("cast", cat("[", parameters, "] f32 to bf16"), 6 * P, 0, 0,
        [&] { ops.cast({.src = g, .dst = value}, stream); });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const int64_t n = argc > 1 ? std::atoll(argv[1]) : 65536;
  const char* why = nullptr;
  backend = gpttrain_backend(kBackendAbi, &why);
  if (backend == nullptr) {
    std::printf("not measured: %s\n", why);
    return 2;
  }
  std::printf(
      "%s\nper call: median of 7 to 30 event timings, (p90 - p10) / median, ideal bytes over time, %% of the copy "
      "ceiling, rate, %% of G\n",
      backend->device->describe(0).c_str());
  stream = backend->device->open_stream(0, 1);
  {
    Memory m;
    std::vector<float> host(size_t{1} << 26);
    for (size_t i = 0; i < host.size();
         ++i) {  // sum of four uniforms, scaled: close enough to normal for power and timing
      float s = 0;
      uint64_t r = splitmix64(i);
      for (int j = 0; j < 4; ++j, r >>= 16) s += static_cast<float>(r & 0xffff) * (1.0f / 65536);
      host[i] = (s - 2) * 1.7320508f;
    }
    noise = m.make({int64_t{1} << 26}, DType::kF32);
    backend->device->copy(noise.data, host.data(), noise.bytes(), stream);
    backend->device->synchronize(stream);
    ceilings();
    model(DType::kF32, n, 768, 12, 1024, 50304);
    model(DType::kBF16, n, 768, 12, 1024, 50304);
    std::printf("\nattention at other sizes, %ld tokens\n", n);
    attention(DType::kBF16, n, 16, 128, 2048, peak_half);
    attention(DType::kBF16, n, 32, 128, 4096, peak_half);
  }
  backend->device->close_stream(stream);
  return 0;
} catch (const std::exception& e) {
  std::printf("failed: %s\n", e.what());
  return 1;
}
