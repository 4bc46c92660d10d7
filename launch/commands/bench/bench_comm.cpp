// gpttrain bench comm: bandwidth of a layout's groups, on the backend that training would use: every collective and the
// messages of pipeline neighbours, by size. All groups of one kind run concurrently, as in a step.
// `moves` is bytes of the full tensor over time. `wire` counts the minimum that each rank has to send, for comparison
// with link rates at any group size (nccl-tests' busbw: all_reduce 2(n-1)/n, all_gather and reduce_scatter (n-1)/n).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/core/host.h"
#include "kernels/core/memory.h"
#include "launch/commands/bench/bench_record.h"
#include "launch/commands/bench/bench_stats.h"
#include "launch/commands/subcommands.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/banner.h"
#include "launch/ranks/ranks.h"

namespace gt {
namespace {

constexpr int64_t kLeast = 4 << 10;  // smallest tensor in bytes; each size is four times the previous one
constexpr double kEnoughSeconds = 0.2;
constexpr size_t kLeastRuns = 5, kMostRuns = 200;

enum class Motion { kAllReduce, kAllGather, kReduceScatter, kNeighbours };
constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "send+recv"};

double wire_share(Motion m, int ranks) {
  const double n = ranks;
  return m == Motion::kNeighbours ? 1 : (m == Motion::kAllReduce ? 2 : 1) * (n - 1) / n;
}

struct Measured {
  std::string group;
  int ranks;
  Motion motion;
  int64_t bytes;
  Spread seconds;  // per call, on the slowest rank
  double wire() const { return wire_share(motion, ranks) * static_cast<double>(bytes) / seconds.median; }
};

class CommBench {
 public:
  CommBench(const Mesh& mesh, const RankDevice& device, Stream s, int64_t most)
      : world_(mesh.world()),
        api_(*device.backend().device),
        stream_(s),
        memory_(most, s.device, api_),
        received_(most, s.device, api_) {
    api_.zero(memory_.data(), memory_.bytes(), s);
    api_.zero(received_.data(), received_.bytes(), s);
  }

  // Collective over the world, including ranks whose group of this kind has one member.
  Measured measure(const Mesh::Named& named, Motion motion, int64_t bytes) {
    std::vector<double> seconds;
    double spent = 0;
    for (int k = -2;; ++k) {
      world_.barrier();
      const double begin = now();
      move(*named.group, motion, bytes);
      api_.synchronize(stream_);
      const double taken = slowest(world_, now() - begin);
      if (k < 0) continue;  // warm-up: connections, staging buffers
      seconds.push_back(taken);
      spent += taken;
      if (seconds.size() >= kMostRuns || (seconds.size() >= kLeastRuns && spent >= kEnoughSeconds)) break;
    }
    return {named.name, named.size, motion, bytes, spread_of(std::move(seconds))};
  }

 private:
  void move(ProcessGroup& g, Motion motion, int64_t bytes) {
    const int n = g.size();
    if (n == 1) return;
    const int64_t count = bytes / 4 / n * n;
    const Tensor full = memory_.tensor({count}, DType::kF32);
    switch (motion) {
      case Motion::kAllReduce: return g.all_reduce(full, ReduceOp::kSum, stream_).wait(stream_);
      case Motion::kAllGather:
        return g.all_gather(full.slice(g.rank() * (count / n), count / n), full, stream_).wait(stream_);
      case Motion::kReduceScatter:
        return g.reduce_scatter(full, full.slice(g.rank() * (count / n), count / n), stream_).wait(stream_);
      case Motion::kNeighbours: {
        Work in = g.recv(received_.tensor({count}, DType::kF32), (g.rank() + n - 1) % n, 0, stream_);
        Work out = g.send(full, (g.rank() + 1) % n, 0, stream_);
        in.wait(stream_);
        return out.wait(stream_);
      }
    }
  }
  ProcessGroup& world_;
  const DeviceApi& api_;
  const Stream stream_;
  Buffer memory_, received_;
};

std::string size_text(int64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} KiB", bytes >> 10);
}

std::string line(const Measured& m) {
  return fmt::format("{:<6} {:>5} {:<15} {:>9} {:>11.1f} {:>6.0f} % {:>10.2f} {:>10.2f}\n", m.group, m.ranks,
                     kNames[static_cast<int>(m.motion)], size_text(m.bytes), 1e6 * m.seconds.median,
                     100 * m.seconds.mad / m.seconds.median, static_cast<double>(m.bytes) / m.seconds.median * 1e-9,
                     m.wire() * 1e-9);
}

nlohmann::ordered_json json_of(const Measured& m) {
  return {{"group", m.group},
          {"ranks", m.ranks},
          {"call", kNames[static_cast<int>(m.motion)]},
          {"bytes", m.bytes},
          {"seconds", {{"median", m.seconds.median}, {"p10", m.seconds.p10}, {"p90", m.seconds.p90}}},
          {"wire_bytes_per_second", m.wire()}};
}

Exit comm_rank(const Config& c, const CommArgs& args, const std::string& command, GroupFactory& factory) {
  RankDevice device(c, factory);
  const Mesh mesh(mesh_shape(c), device.groups());
  const Backend& backend = device.backend();
  const int threads = threads_per_rank(c, factory.local_size());
  set_cpu_may_spin(ranks_may_spin(c, factory.local_size(), threads));
  const Stream stream = backend.device->open_stream(device.index(), threads);
  const bool speaks = mesh.rank() == 0;
  const std::string transport = device.transport().empty() ? std::string(mesh.world().backend()) : device.transport();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (speaks)
    fmt::print("{}, tp {} pp {} dp {}, over {}\n\n{:<6} {:>5} {:<15} {:>9} {:>11} {:>8} {:>10} {:>10}\n",
               backend.device->describe(device.index()), mesh.shape().tp, mesh.shape().pp, mesh.shape().dp, transport,
               "group", "ranks", "call", "size", "us", "+-", "moves GB/s", "wire GB/s");
  {
    CommBench bench(mesh, device, stream, args.most << 20);
    for (const Mesh::Named& named : mesh.groups()) {
      const std::string_view name = named.name;
      if (named.size == 1 || (name != "tp" && name != "pp" && name != "dp")) continue;
      const auto motions = name == "pp"
                               ? std::vector<Motion>{Motion::kNeighbours}
                               : std::vector<Motion>{Motion::kAllReduce, Motion::kAllGather, Motion::kReduceScatter};
      for (const Motion motion : motions)
        for (int64_t bytes = kLeast; bytes <= args.most << 20; bytes *= 4) {
          const Measured m = bench.measure(named, motion, bytes);
          if (!speaks) continue;
          fmt::print("{}", line(m));
          std::fflush(stdout);
          rows.push_back(json_of(m));
        }
    }
  }
  if (speaks && !args.out.empty()) {
    const MeshShape& shape = mesh.shape();
    const nlohmann::ordered_json record{{"command", command},
                                        {"device", backend.device->describe(device.index())},
                                        {"transport", transport},
                                        {"layout", {{"tp", shape.tp}, {"pp", shape.pp}, {"dp", shape.dp}}},
                                        {"calls", rows}};
    write_bench_record(record.dump(), args.out);
  }
  backend.device->close_stream(stream);
  return Exit::kOk;
}

}  // namespace

Exit run_bench_comm(const Command& command) {
  const auto& args = command.get<CommArgs>();
  const Config& config = command.loaded.config;
  GT_REQUIRE(mesh_shape(config).world() > 1, Exit::kUsage,
             "bench comm measures communication between ranks: set a layout, such as --tp 2 --dp 4");
  if (!args.out.empty()) require_writable(args.out);
  const std::string words = fmt::format("gpttrain {}", fmt::join(command.words, " "));
  return run_ranks(command, [&](GroupFactory& factory) { return comm_rank(config, args, words, factory); });
}

}  // namespace gt
