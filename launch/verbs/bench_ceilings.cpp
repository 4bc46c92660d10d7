// gpttrain bench ceilings: what the device does at most with the ops of this program, in the type that the config's
// linears have: products of large squares, a copy of device memory, attention at the model's heads and length. Inputs
// are normally distributed (constant ones let a GPU clock higher); a load of two seconds comes first; medians of 30
// count. Kept for training to hold its own speed against (launch/logs/utilization.h).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "kernels/core/rng.h"
#include "launch/logs/banner.h"
#include "launch/logs/utilization.h"
#include "launch/ranks/ranks.h"
#include "launch/train/engine_options.h"
#include "launch/train/rank_device.h"
#include "launch/verbs/verbs.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRuns = 30;
constexpr double kLoadSeconds = 2;

// One device and its stream; tensors of normal numbers.
class Bench {
 public:
  Bench(const Backend& backend, int index, int threads)
      : backend_(backend), stream_(*backend.device, index, threads), small_(backend.kind == DeviceKind::kCpu) {}

  bool small() const { return small_; }  // a CPU: sizes that take seconds there
  const OpTable& ops() const { return *backend_.ops; }
  const Backend& backend() const { return backend_; }
  Stream stream() const { return stream_; }

  // The buffer holds the tensor's memory.
  Tensor normal(Shape shape, DType t, std::vector<Buffer>& held) const {
    const Tensor out = empty(shape, t, held);
    constexpr int64_t kPiece = 1 << 20;  // repeated
    const int64_t n = out.numel(), piece = std::min(n, kPiece);
    std::vector<float> host(static_cast<size_t>(piece));
    philox_normals(stream_key(1, "bench/ceilings"), 0, piece, 1, host.data());
    std::vector<Buffer> local;
    const Tensor values = empty({piece}, DType::kF32, local);
    const DeviceApi& api = *backend_.device;
    api.copy(values.data, host.data(), values.bytes(), stream_);
    for (int64_t at = 0; at < n; at += piece) {
      const int64_t now = std::min(piece, n - at);
      const Tensor to{out.data + at * size_of(t), {now}, t, out.device};
      if (t == DType::kF32)
        api.copy(to.data, values.data, to.bytes(), stream_);
      else
        ops().cast({.src = values.slice(0, now), .dst = to}, stream_);
    }
    api.synchronize(stream_);
    return out;
  }
  Tensor empty(Shape shape, DType t, std::vector<Buffer>& held) const {
    Tensor out{nullptr, shape, t, stream_.device()};
    held.emplace_back(out.bytes(), stream_.device(), *backend_.device);
    out.data = held.back().data();
    return out;
  }

  // Seconds of the median run; the device has nothing else to do.
  template <class Work>
  double median(Work work) const {
    std::vector<double> seconds;
    for (int k = -3; k < kRuns; ++k) {
      const double s = timed(work);
      if (k >= 0) seconds.push_back(s);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
    return seconds[kRuns / 2];
  }
  template <class Work>
  double timed(Work work) const {
    const auto begin = Clock::now();
    work();
    backend_.device->synchronize(stream_);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  const Backend& backend_;
  OpenStream stream_;
  bool small_;
};

// FLOP/s of C = A B^T, all of n x n.
double product(const Bench& b, int64_t n, DType t, bool load_first) {
  std::vector<Buffer> held;
  const Gemm g{.a = b.normal({n, n}, t, held),
               .b = b.normal({n, n}, t, held),
               .out = b.empty({n, n}, t, held),
               .trans_b = true,
               .b_version = 1};
  const auto work = [&] { b.ops().gemm(g, b.stream()); };
  for (double spent = 0; load_first && spent < kLoadSeconds;) spent += b.timed(work);
  const double flops = 2.0 * std::pow(static_cast<double>(n), 3);
  return flops / b.median(work);
}

// Bytes/s, read and written.
double copies(const Bench& b) {
  std::vector<Buffer> held;
  const int64_t bytes = int64_t{b.small() ? 256 : 4096} << 20;
  const Tensor from = b.normal({bytes / 4}, DType::kF32, held), to = b.empty({bytes / 4}, DType::kF32, held);
  const double seconds = b.median([&] { b.backend().device->copy(to.data, from.data, bytes, b.stream()); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

// FLOP/s of causal attention, halves of the square that a row does not see left out; of the backward five products.
void attention(const Bench& b, const GptConfig& m, DType t, Ceilings& c) {
  std::vector<Buffer> held;
  const int64_t batch = std::max<int64_t>(1, (b.small() ? 2048 : 65536) / m.seq), rows = batch * m.seq;
  const Attention forward{.qkv = b.normal({rows, m.qkv_width()}, t, held),
                          .out = b.empty({rows, m.hidden}, t, held),
                          .lse = b.empty({batch, m.heads, m.seq}, DType::kF32, held),
                          .batch = batch,
                          .seq = m.seq,
                          .heads = m.heads,
                          .kv_heads = m.groups(),
                          .head_dim = m.hidden / m.heads,
                          .scale = 1 / std::sqrt(static_cast<float>(m.hidden / m.heads)),
                          .drop = {}};
  const AttentionGrad backward{.qkv = forward.qkv,
                               .out = forward.out,
                               .lse = forward.lse,
                               .dout = b.normal({rows, m.hidden}, t, held),
                               .dqkv = b.empty({rows, m.qkv_width()}, t, held),
                               .batch = batch,
                               .seq = m.seq,
                               .heads = forward.heads,
                               .kv_heads = forward.kv_heads,
                               .head_dim = forward.head_dim,
                               .scale = forward.scale,
                               .drop = {}};
  const double flops = 2.0 * static_cast<double>(m.hidden * m.seq * rows);
  c.attention_forward = flops / b.median([&] { b.ops().attention(forward, b.stream()); });
  c.attention_backward = 2.5 * flops / b.median([&] { b.ops().attention_grad(backward, b.stream()); });
}

Exit ceilings_rank(const Config& config, const CeilingsArgs& args, GroupFactory& factory) {
  GT_REQUIRE(factory.world_size() == 1, Exit::kUsage, "bench ceilings measures one device: without tp, pp and dp");
  RankDevice device(config, factory);
  const int threads = threads_per_rank(config, factory.local_size());
  const EngineOptions options = engine_options(config, threads);
  const DType t = options.precision.linear();
  const Bench b(device.backend(), device.index(), threads);
  Ceilings c;
  c.device = device.backend().device->describe(device.index());
  c.dtype = name_of(t);
  fmt::print("{}, {}\n", c.device, c.dtype);
  bool first = true;
  for (const int64_t n : b.small() ? std::vector<int64_t>{1024, 2048} : std::vector<int64_t>{8192, 16384}) {
    const double rate = product(b, n, t, std::exchange(first, false));
    fmt::print("products   {}, {} x {}\n", flops_text(rate), n, n);
    c.gemm = std::max(c.gemm, rate);
  }
  c.copy = copies(b);
  fmt::print("copies     {:.1f} GB/s, read and written\n", c.copy * 1e-9);
  attention(b, options.model, t, c);
  fmt::print("attention  {} forward, {} backward ({} heads of {}, {} tokens)\n", flops_text(c.attention_forward),
             flops_text(c.attention_backward), options.model.heads, options.model.hidden / options.model.heads,
             options.model.seq);
  const std::string path = args.output.empty() ? ceilings_file(c.device, t) : args.output;
  if (path.empty()) {
    fmt::print("not kept: no HOME and no XDG_CACHE_HOME; --output FILE names one\n");
  } else {
    save_ceilings(c, path);
    fmt::print("kept in {}\n", path);
  }
  return Exit::kOk;
}

}  // namespace

Exit run_bench_ceilings(const Command& command) {
  const auto& args = command.get<CeilingsArgs>();
  const Config& config = command.loaded.config;
  return run_ranks(command, [&](GroupFactory& factory) { return ceilings_rank(config, args, factory); });
}

}  // namespace gt
