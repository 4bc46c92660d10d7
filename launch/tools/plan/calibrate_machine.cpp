#include "launch/tools/plan/calibrate_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/core/host.h"
#include "launch/config/config_precision.h"
#include "launch/engine/engine_options.h"
#include "launch/options/output.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/bench/comm_bench.h"
#include "launch/tools/bench/op_times.h"

namespace gt {
namespace {

constexpr double kMostOpSeconds = 60;
constexpr size_t kRounds = 3;
constexpr int64_t kLeastBytes = 4 << 10, kMostBytes = 16 << 20;  // of measured tensors; sizes grow by 16
constexpr double kEnoughSeconds = 0.05;

EngineOptions options_of(const Config& c) { return engine_options(c, machine_share(c).threads); }

// Distinct calls of the layouts' steps whose time is not known, in the order of the layouts.
std::vector<OpCall> unknown_calls(std::span<const Config> layouts, const MeasuredTimes& times, double deadline) {
  std::vector<OpCall> out;
  MeasuredTimes listed = times;
  for (const Config& c : layouts) {
    if (now() > deadline) break;
    const MeshShape shape = mesh_shape(c);
    for (int k = 0; k < shape.pp; ++k) {
      if (k > 1 && k < shape.pp - 1) continue;  // stages in the middle call the same ops
      for (OpCall& call : step_ops(options_of(c), shape, k * shape.dp * shape.tp)) {
        if (listed.measured(call)) continue;
        listed.set(call, {1});
        out.push_back(std::move(call));
      }
    }
  }
  return out;
}

struct GroupShape {
  MeshShape mesh;
  const char* group;
};

// Meshes of `world` ranks that have groups of every size.
std::vector<GroupShape> group_shapes(int world) {
  std::vector<GroupShape> out;
  for (int n = 2; n <= world; ++n) {
    if (world % n != 0) continue;
    out.push_back({{.dp = world / n, .tp = n}, "tp"});
    out.push_back({{.pp = n, .dp = world / n}, "pp"});
  }
  return out;
}

constexpr std::pair<Motion, CommOp> kMotions[] = {{Motion::kAllReduce, CommOp::kAllReduce},
                                                  {Motion::kAllGather, CommOp::kAllGather},
                                                  {Motion::kReduceScatter, CommOp::kReduceScatter},
                                                  {Motion::kNeighbours, CommOp::kSend}};

Exit comm_rank(const Config& c, GroupFactory& factory) {
  RankDevice device(c, factory);
  const CoreShare share = machine_share(c);
  set_cpu_may_spin(ranks_may_spin(c, factory.local_size(), share.threads));
  const OpenStream stream(*device.backend().device, device.index(), share.threads);
  MeasuredTimes times = machine_times(c);
  for (const GroupShape& g : group_shapes(factory.world_size())) {
    const Mesh mesh(g.mesh, device.groups());
    CommBench bench(mesh, device, stream, kMostBytes, kEnoughSeconds);
    for (const Mesh::Named& named : mesh.groups()) {
      if (std::string_view(named.name) != g.group) continue;
      for (const auto& [motion, op] : kMotions) {
        if ((motion == Motion::kNeighbours) != (std::string_view(g.group) == "pp")) continue;
        for (int64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 16)
          times.set(mesh.world().backend(), op, named.size, bytes, bench.measure(named, motion, bytes).seconds.p10);
      }
    }
  }
  if (factory.world_rank() == 0) times.save();
  return Exit::kOk;
}

}  // namespace

CoreShare machine_share(const Config& c) {
  const int ranks = static_cast<int>(c.world());
  return core_share(ranks, threads_per_rank(c, ranks));
}

MeasuredOn machine_conditions(const Config& c) {
  const CoreShare share = machine_share(c);
  return {cpu_backend().device->describe(0), precision_of(c).linear(), share.threads, share.together()};
}

const char* machine_transport(const Config& c) { return comm_backend(c, {}); }

MeasuredTimes machine_times(const Config& c) {
  const MeasuredOn on = machine_conditions(c);
  auto kept = MeasuredTimes::load(on);
  return kept ? std::move(*kept) : MeasuredTimes(on);
}

void calibrate_ops(std::span<const Config> layouts) {
  const Config& first = layouts.front();
  const CoreShare share = machine_share(first);
  MeasuredTimes times = machine_times(first);
  const double begin = now(), deadline = begin + kMostOpSeconds;
  const std::vector<OpCall> calls = unknown_calls(layouts, times, begin + kMostOpSeconds / 2);
  set_cpu_may_spin(ranks_may_spin(first, share.ranks, share.threads));
  const OpTimer timer(cpu_backend(), 0, share.threads, share.together());
  WorkLine line;
  double shown = begin;
  std::vector<OpSeconds> least;
  // Several times, and the least counts: what else the machine does may last for many shapes.
  for (size_t k = 0; k < kRounds * calls.size() && now() < deadline; ++k) {
    const size_t call = k % calls.size();
    const OpSeconds s = timer.seconds(calls[call], first.model.vocab);
    if (k < calls.size())
      least.push_back(s);
    else
      least[call] = {std::min(least[call].call, s.call), std::min(least[call].pack, s.pack)};
    times.set(calls[call], least[call]);
    if (now() - shown < line.seconds()) continue;
    shown = now();
    line.show(fmt::format("calibrating: {} of {} op shapes, round {} of {}", call, calls.size(), 1 + k / calls.size(),
                          kRounds));
  }
  const size_t done = least.size();
  line.erase();
  times.drop_runs();
  times.save();
  fmt::print(stderr,
             "calibrated {} of {} op shapes in {:.0f} s, {} rank{} at a time with {} thread{} each; kept in {}\n", done,
             calls.size(), now() - begin, share.together(), share.together() == 1 ? "" : "s", share.threads,
             share.threads == 1 ? "" : "s", times.file());
}

Exit calibrate_comm(const Command& command) {
  return run_ranks(command, [&](GroupFactory& factory) { return comm_rank(command.loaded.config, factory); });
}

}  // namespace gt
