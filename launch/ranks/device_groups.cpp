#include "launch/ranks/device_groups.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/ranks/agree.h"
#include "parallel/comm/gpu/nccl_group.h"
#include "parallel/comm/gpu/staged_group.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/side_channel.h"

namespace gt {
namespace {

// Eight GPUs initializing a freshly loaded library may take most of a minute. Ranks that share a GPU may deadlock.
constexpr auto kTrialLimit = std::chrono::seconds(120), kSharedTrialLimit = std::chrono::seconds(20);

// Returns the reason of the lowest rank that has one; "" if none has.
std::string first_reason(ProcessGroup& world, const std::string& mine) {
  const int32_t reporter = world.size() - max_over(world, mine.empty() ? 0 : world.size() - world.rank());
  if (reporter == world.size()) return "";
  std::array<char, 512> text{};
  if (world.rank() == reporter) mine.copy(text.data(), text.size() - 1);
  return broadcast_value(world, text, reporter).data();
}

// Returns why this NCCL version cannot serve `sharers` ranks per GPU; "" if it can.
std::string obstacle(const nccl::Api& api, int sharers) {
  if (sharers == 1 || api.version >= nccl::kSharedDeviceVersion) return "";
  return cat(api.describe(), " serves one rank a GPU; ", sharers, " share one here, for which ",
             nccl::version_text(nccl::kSharedDeviceVersion), " or later is needed");
}

// Returns whether collectives are captured into graphs, and the text for the start banner. Equal on all ranks.
bool captures(GroupFactory& given, ProcessGroup& world, const Backend& backend, int index, const nccl::Api& api,
              std::string* note) {
  const char* requested = std::getenv("GPTTRAIN_NCCL_GRAPHS");
  const bool nodes = max_over(world, given.local_size() < given.world_size() ? 1 : 0) == 1;
  const bool mixed = given.backend() == "thread" && max_over(world, index) > 0;
  const bool off = max_over(world, requested != nullptr && std::string_view(requested) == "0" ? 1 : 0) == 1;
  if (!backend.replays) return false;
  const std::string why = off ? "GPTTRAIN_NCCL_GRAPHS=0" : obstacle_to_graphs(api.version, nodes, mixed);
  *note +=
      why.empty() ? "; collectives are captured in graphs" : cat("; collectives are not captured in graphs: ", why);
  return why.empty();
}

// Returns a factory that passed its trial, or nullptr with the reason in *why. Equal on all ranks.
std::unique_ptr<NcclFactory> try_nccl(const Config& c, GroupFactory& given, ProcessGroup& world, const Backend& backend,
                                      int index, int sharers, std::string* why, std::string* name) {
  const int most = max_over(world, sharers);
  nccl::set_environment({c.train.deterministic, most});
  std::string mine;
  std::shared_ptr<const nccl::Api> api;
  if (backend.raw_stream == nullptr)
    mine = "this device has no CUDA streams for NCCL";
  else
    api = nccl::load(c.comm.nccl_library, &mine);
  if (api) mine = obstacle(*api, most);
  const int newest = max_over(world, api ? api->version : 0);
  if (api && mine.empty() && api->version != newest)
    mine = cat("ranks have NCCL ", nccl::version_text(api->version), " and ", nccl::version_text(newest));
  *why = first_reason(world, mine);
  if (!why->empty()) return nullptr;
  *name = api->describe();
  const bool in_graphs = captures(given, world, backend, index, *api, name);
  auto factory = std::make_unique<NcclFactory>(given, api, *backend.device, index, backend.raw_stream,
                                               NcclOptions{.deadline = wait_deadline(c), .captures = in_graphs});
  *why = first_reason(world, factory->probe(most == 1 ? kTrialLimit : kSharedTrialLimit));
  if (!why->empty()) return nullptr;
  return factory;
}

// Returns groups of ranks that share this GPU's memory, or nullptr with the reason in *why. Equal on all ranks.
std::unique_ptr<GroupFactory> try_direct(GroupFactory& given, ProcessGroup& world, const Backend& backend, int index,
                                         std::string* why) {
  auto* side = dynamic_cast<SideChannel*>(&given);
  auto factory = side != nullptr ? side->direct(*backend.device, index) : nullptr;
  const bool several = max_over(world, index) != -max_over(world, -index);
  if (factory == nullptr)
    *why = "ranks are processes, which cannot access each other's tensors (launch.ranks threads)";
  else if (backend.device->combine == nullptr)
    *why = "this device cannot reduce for several ranks";
  else if (several)
    *why = "ranks use several GPUs";
  else if (world.size() > Combine::kMost)
    *why = cat(world.size(), " ranks share the GPU; at most ", Combine::kMost, " may");
  else
    return factory;
  return nullptr;
}

[[noreturn]] void refuse(CommBackend requested, const std::string& why) {
  fail(Exit::kUsage, "comm.backend: ", name_of(requested), " was requested, but ", why,
       ". Use comm.backend staged, or auto to use what is available");
}

}  // namespace

std::string obstacle_to_graphs(int nccl_version, bool several_machines, bool several_devices) {
  if (several_devices) return "ranks are threads of one process on several GPUs, whose graphs can deadlock";
  if (!several_machines || nccl_version >= nccl::kNodesInGraphsVersion) return "";
  return cat("across machines this needs NCCL ", nccl::version_text(nccl::kNodesInGraphsVersion), " or later");
}

std::chrono::milliseconds wait_deadline(const Config& config) {
  const double s = config.comm.stall_abort_s;
  if (s == 0) return std::chrono::hours(24 * 365);
  return std::chrono::milliseconds(static_cast<int64_t>((std::max(s, 600.0) + 60) * 1e3));
}

DeviceGroups device_groups(const Config& c, GroupFactory& given, const Backend& backend, int index, int sharers) {
  DeviceGroups out;
  if (given.world_size() > 1 && c.comm.backend != CommBackend::kStaged) {
    std::vector<int> everyone(static_cast<size_t>(given.world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    const auto world = given.make(everyone);
    std::string why;
    if (c.comm.backend != CommBackend::kNccl) {
      out.factory = try_direct(given, *world, backend, index, &why);
      out.transport = "within the GPU shared by ranks as threads";
      if (out.factory) return out;
      if (c.comm.backend == CommBackend::kDirect) agree(*world, [&] { refuse(c.comm.backend, why); });
    }
    out.factory = try_nccl(c, given, *world, backend, index, sharers, &why, &out.transport);
    if (out.factory) return out;
    if (c.comm.backend == CommBackend::kNccl) agree(*world, [&] { refuse(c.comm.backend, why); });
    out.transport = why;
  }
  out.factory = std::make_unique<StagedFactory>(given, *backend.device, index);
  if (given.world_size() > 1)
    out.transport = cat(out.factory->backend(), out.transport.empty() ? "" : ": ", out.transport);
  return out;
}

}  // namespace gt
