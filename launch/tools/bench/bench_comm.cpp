// gpttrain bench comm: bandwidth of a layout's groups, on the backend that training would use: every collective and the
// messages of pipeline neighbours, by size. All groups of one kind run concurrently, as in a step.
// `moves` is bytes of the full tensor over time. `wire` counts the minimum that each rank has to send, for comparison
// with link rates at any group size (nccl-tests' busbw: all_reduce 2(n-1)/n, all_gather, reduce_scatter and all_to_all
// (n-1)/n).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "launch/config/config_precision.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/banner.h"
#include "launch/observe/measured_times.h"
#include "launch/observe/step_prediction.h"
#include "launch/options/output.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/bench/bench_record.h"
#include "launch/tools/bench/bench_stats.h"
#include "launch/tools/bench/comm_bench.h"
#include "launch/tools/bench/subcommands.h"

namespace gt {
namespace {

constexpr int64_t kLeast = 4 << 10;  // smallest tensor in bytes; each size is four times the previous one

std::string size_text(int64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} KiB", bytes >> 10);
}

std::string line(const MeasuredMotion& m) {
  return fmt::format("{:<6} {:>5} {:<15} {:>9} {:>11.1f} {:>6.0f} % {:>10.2f} {:>10.2f}\n", m.group, m.ranks,
                     kMotionNames[static_cast<int>(m.motion)], size_text(m.bytes), 1e6 * m.seconds.median,
                     100 * m.seconds.mad / m.seconds.median, static_cast<double>(m.bytes) / m.seconds.median * 1e-9,
                     m.wire() * 1e-9);
}

nlohmann::ordered_json json_of(const MeasuredMotion& m) {
  return {{"group", m.group},
          {"ranks", m.ranks},
          {"call", kMotionNames[static_cast<int>(m.motion)]},
          {"bytes", m.bytes},
          {"seconds", {{"median", m.seconds.median}, {"p10", m.seconds.p10}, {"p90", m.seconds.p90}}},
          {"wire_bytes_per_second", m.wire()}};
}

CommOp op_of(Motion m) {
  switch (m) {
    case Motion::kAllReduce: return CommOp::kAllReduce;
    case Motion::kAllGather: return CommOp::kAllGather;
    case Motion::kReduceScatter: return CommOp::kReduceScatter;
    case Motion::kAllToAll: return CommOp::kAllToAll;
    default: return CommOp::kSend;
  }
}

// Adds them to this machine's measured times.
void keep_times(const Config& c, GroupFactory& factory, int threads, int machines,
                const std::vector<std::pair<CommOp, MeasuredMotion>>& between) {
  const CoreShare share = core_share(factory.local_size(), threads);
  const MeasuredOn on{cpu_backend().device->describe(0), precision_of(c).linear(), share.threads, share.together()};
  auto kept = MeasuredTimes::load(on);
  MeasuredTimes times = kept ? std::move(*kept) : MeasuredTimes(on);
  for (const auto& [op, m] : between)
    times.set(transport_between(factory.backend(), machines), op, m.ranks, m.bytes, m.seconds.median);
  try {
    times.save();
    fmt::print("\nkept in {}: runs on {} machines predict their steps with it\n", times.file(), machines);
  } catch (const Error& e) { fmt::print(stderr, "warning: measured times were not kept: {}\n", e.what()); }
}

Exit comm_rank(const Config& c, const CommArgs& args, const std::string& command, GroupFactory& factory) {
  RankDevice device(c, factory);
  const Mesh mesh(mesh_shape(c), device.groups());
  const Backend& backend = device.backend();
  const int threads = threads_per_rank(c, factory.local_size());
  set_cpu_may_spin(ranks_may_spin(c, factory.local_size(), threads));
  const Stream stream = backend.device->open_stream(device.index(), threads);
  const bool is_rank0 = mesh.rank() == 0;
  const std::string transport = device.transport().empty() ? std::string(mesh.world().backend()) : device.transport();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const int machines = (factory.world_size() + factory.local_size() - 1) / factory.local_size();
  std::vector<std::pair<CommOp, MeasuredMotion>> between;  // of messages between machines, which runs predict with
  if (is_rank0)
    fmt::print("{}, tp {} pp {} dp {}, over {}\n\n{:<6} {:>5} {:<15} {:>9} {:>11} {:>8} {:>10} {:>10}\n",
               backend.device->describe(device.index()), mesh.shape().tp, mesh.shape().pp, mesh.shape().dp, transport,
               "group", "ranks", "call", "size", "us", "+-", "moves GB/s", "wire GB/s");
  {
    CommBench bench(mesh, device, stream, args.most << 20);
    for (const Mesh::Named& named : mesh.groups()) {
      const std::string_view name = named.name;
      if (named.size == 1 || (name != "tp" && name != "pp" && name != "dp" && name != "ep")) continue;
      const auto motions = name == "pp" ? std::vector<Motion>{Motion::kNeighbours}
                                        : std::vector<Motion>{Motion::kAllReduce, Motion::kAllGather,
                                                              Motion::kReduceScatter, Motion::kAllToAll};
      for (const Motion motion : motions)
        for (int64_t bytes = kLeast; bytes <= args.most << 20; bytes *= 4) {
          const MeasuredMotion m = bench.measure(named, motion, bytes);
          if (!is_rank0) continue;
          if (machines > 1 && backend.kind == DeviceKind::kCpu) between.emplace_back(op_of(motion), m);
          fmt::print("{}", line(m));
          std::fflush(stdout);
          rows.push_back(json_of(m));
        }
    }
  }
  if (!between.empty()) keep_times(c, factory, threads, machines, between);
  if (is_rank0 && !args.out.empty()) {
    const MeshShape& shape = mesh.shape();
    const nlohmann::ordered_json record{{"command", command},
                                        {"device", backend.device->describe(device.index())},
                                        {"transport", transport},
                                        {"layout", {{"tp", shape.tp}, {"pp", shape.pp}, {"dp", shape.dp}}},
                                        {"calls", rows}};
    write_json_record(record.dump(), args.out);
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
