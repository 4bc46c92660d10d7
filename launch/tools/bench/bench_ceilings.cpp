// gpttrain bench ceilings: measured peaks of the device with this program's ops, in the dtype of the config's linear
// layers: large square GEMMs, a device memory copy, attention at the model's heads and length.
// Inputs are normally distributed (constant ones let a GPU clock higher); two seconds of load come first; medians of 30
// runs. Stored, so that training can report its speed relative to them (launch/observe/utilization.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "launch/engine/engine_options.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/banner.h"
#include "launch/observe/utilization.h"
#include "launch/options/output.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/bench/bench_record.h"
#include "launch/tools/bench/device_bench.h"
#include "launch/tools/bench/subcommands.h"

namespace gt {
namespace {

constexpr double kLoadSeconds = 2;

// A result at once, also where standard output is a pipe.
template <class... Values>
void print_now(fmt::format_string<Values...> pattern, Values&&... values) {
  fmt::print(pattern, std::forward<Values>(values)...);
  std::fflush(stdout);
}

// FLOP/s of C = A B^T, all n x n.
double product(const DeviceBench& b, int64_t n, DType t, bool load_first) {
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

// Same for FP8 inputs with a result of dtype `t`.
double gemm_fp8_flops(const DeviceBench& b, int64_t n, DType t) {
  std::vector<Buffer> held;
  const GemmFp8 g{.a = b.normal({n, n}, DType::kF8E4M3, held),
                  .b = b.normal({n, n}, DType::kF8E4M3, held),
                  .a_scale = b.constant(1, {1}, held),
                  .b_scale = b.constant(1, {1}, held),
                  .bias = {},
                  .out = b.empty({n, n}, t, held)};
  const double flops = 2.0 * std::pow(static_cast<double>(n), 3);
  return flops / b.median([&] { b.ops().gemm_fp8(g, b.stream()); });
}

// Returns whether the device has FP8 GEMMs. The CPU backend only emulates their results.
bool has_fp8_gemm(const DeviceBench& b, int index, DType t) {
  return b.backend().kind != DeviceKind::kCpu && size_of(t) == 2 &&
         (b.backend().fp8_unsupported == nullptr || b.backend().fp8_unsupported(index).empty());
}

// Bytes/s, read plus written.
double copies(const DeviceBench& b) {
  std::vector<Buffer> held;
  const int64_t bytes = int64_t{b.small() ? 256 : 4096} << 20;
  const Tensor from = b.normal({bytes / 4}, DType::kF32, held), to = b.empty({bytes / 4}, DType::kF32, held);
  const double seconds = b.median([&] { b.backend().device->copy(to.data, from.data, bytes, b.stream()); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

// FLOP/s of causal attention, without the masked half; the backward counts five GEMMs.
void attention(const DeviceBench& b, const TransformerConfig& m, DType t, PeakRates& c) {
  std::vector<Buffer> held;
  const int64_t batch = std::max<int64_t>(1, (b.small() ? 2048 : 65536) / m.seq), rows = batch * m.seq;
  const AttentionSpec spec{.batch = batch,
                           .queries = m.seq,
                           .keys = m.seq,
                           .heads = m.heads,
                           .kv_heads = m.groups(),
                           .head_dim = m.head_width(),
                           .scale = 1 / std::sqrt(static_cast<float>(m.head_width()))};
  const auto packed = [&](const Tensor& qkv) { return PackedQkv(qkv, spec.heads, spec.kv_heads, spec.head_dim); };
  const PackedQkv in = packed(b.normal({rows, m.qkv_width()}, t, held));
  const PackedQkv d = packed(b.empty({rows, m.qkv_width()}, t, held));
  const Tensor out = b.empty({rows, m.q_width()}, t, held), dout = b.normal({rows, m.q_width()}, t, held);
  const Tensor lse = b.empty({batch, m.heads, m.seq}, DType::kF32, held);
  const Attention forward{in.q, in.k, in.v, out, lse, spec};
  const AttentionGrad backward{in.q, in.k, in.v, out, lse, dout, d.q, d.k, d.v, spec};
  const double flops = 2.0 * static_cast<double>(m.q_width() * m.seq * rows);
  c.attention = {{.head_dim = spec.head_dim,
                  .seq = m.seq,
                  .forward = flops / b.median([&] { b.ops().attention(forward, b.stream()); }),
                  .backward = 2.5 * flops / b.median([&] { b.ops().attention_grad(backward, b.stream()); })}};
}

Exit ceilings_rank(const Config& config, const CeilingsArgs& args, GroupFactory& factory) {
  GT_REQUIRE(factory.world_size() == 1, Exit::kUsage, "bench ceilings measures one device: unset tp, pp and dp");
  RankDevice device(config, factory);
  const int threads = threads_per_rank(config, factory.local_size());
  const EngineOptions options = engine_options(config, threads);
  const DType t = options.precision.linear();
  const DeviceBench b(device.backend(), device.index(), threads);
  ConditionsWatch watch(device.backend(), device.index());
  watch.start();
  PeakRates c;
  c.device = device.backend().device->describe(device.index());
  c.dtype = name_of(t);
  print_now("{}, {}\n", c.device, c.dtype);
  const auto sizes = b.small() ? std::vector<int64_t>{1024, 2048} : std::vector<int64_t>{8192, 16384};
  bool first = true;
  WorkLine doing;
  const auto begin = [&](const std::string& what) { doing.show("measuring " + what + ", up to a minute"); };
  for (const int64_t n : sizes) {
    begin(fmt::format("GEMMs of {} x {}", n, n));
    const double rate = product(b, n, t, std::exchange(first, false));
    doing.erase();
    print_now("GEMM       {}, {} x {}\n", flops_text(rate), n, n);
    c.gemm = std::max(c.gemm, rate);
  }
  for (size_t k = 0; has_fp8_gemm(b, device.index(), t) && k < sizes.size(); ++k) {
    begin(fmt::format("FP8 GEMMs of {} x {}", sizes[k], sizes[k]));
    const double rate = gemm_fp8_flops(b, sizes[k], t);
    doing.erase();
    print_now("FP8 GEMM   {}, {} x {}\n", flops_text(rate), sizes[k], sizes[k]);
    c.gemm_fp8 = std::fmax(c.gemm_fp8, rate);
  }
  begin("copies");
  c.copy = copies(b);
  doing.erase();
  print_now("copies     {:.1f} GB/s, read and written\n", c.copy * 1e-9);
  begin("attention");
  attention(b, options.model, t, c);
  doing.erase();
  print_now("attention  {} forward, {} backward ({} heads of {}, {} tokens)\n", flops_text(c.attention[0].forward),
            flops_text(c.attention[0].backward), options.model.heads, options.model.head_width(), options.model.seq);
  watch.stop();
  print_now("{}", conditions_lines(std::vector{summary_of(watch.samples(), true)}, 11));
  const std::string path = args.output.empty() ? ceilings_file(c.device, t) : args.output;
  if (path.empty()) {
    print_now("not stored: no HOME and no XDG_CACHE_HOME; set a file with --output FILE\n");
  } else {
    save_ceilings(c, path);
    print_now("stored in {}\n", path);
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
