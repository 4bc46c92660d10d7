#include "launch/config/config_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/hosts/env_file.h"
#include "launch/hosts/hostfile.h"
#include "launch/hosts/network.h"
#include "launch/hosts/rank_env.h"
#include "launch/hosts/rank_slots.h"

namespace gt {
namespace {

void check_launcher(const LaunchConfig& l, const std::vector<HostSlots>& hosts, const RuleContext& x) {
  const bool starts = l.ranks == RankKind::kProcesses, slurm = l.launcher == Launcher::kSlurm;
  if (slurm && (l.include + l.exclude).find(':') != std::string::npos)
    x.bad("launch.launcher", "slurm assigns the slots of a machine itself, but include or exclude select some",
          "name whole machines, or use openmpi");
  if (l.ssh_port > 0 && (slurm || !starts || is_local_only(hosts)))
    x.notes.push_back(fmt::format("launch: ssh_port {} has no effect: {}", l.ssh_port,
                                  slurm ? "Slurm reaches its machines without ssh" : "no other machine is used"));
  if (!l.launcher_args.empty() && (!starts || (!slurm && is_local_only(hosts))))
    x.notes.push_back(
        fmt::format("launch: launcher_args has no effect: {}",
                    starts ? "ranks of one machine need no launcher" : "ranks are threads of this process"));
}

void check_cores(const LaunchConfig& l, const RuleContext& x) {
  if (l.bind_cores && l.ranks == RankKind::kThreads)
    x.bad("launch.bind_cores", "threads of one process share its cores", "use processes, or leave it out");
  try {
    if (!l.core_list.empty()) parse_core_list(l.core_list);
  } catch (const Error& e) { x.bad("launch.core_list", e.what(), ""); }
}

}  // namespace

void check_min_dp(const Config& c, const CheckContext& context, bool several, const RuleContext& x) {
  const LaunchConfig& l = c.launch;
  if (l.min_dp == 0 || !x.known("parallel.dp") || !x.known("launch.min_dp")) return;
  if (l.min_dp > c.parallel.dp)
    x.bad("launch.min_dp", fmt::format("at least {} replicas, but the job has dp {}", l.min_dp, c.parallel.dp),
          fmt::format("at most {}", c.parallel.dp));
  if (context.external_world > 0) return;
  const char* why = l.max_restarts == 0              ? "without launch.max_restarts nothing starts the job again"
                    : l.min_dp == c.parallel.dp      ? "it is the job's dp"
                    : l.launcher == Launcher::kSlurm ? "Slurm selects the hosts"
                    : l.ranks == RankKind::kThreads  ? "ranks are threads of this process"
                    : !several                       ? "no other machine is used"
                                                     : nullptr;
  if (why != nullptr) x.notes.push_back(fmt::format("launch: min_dp {} has no effect: {}", l.min_dp, why));
}

void check_peer_copies(const Config& c, const CheckContext& context, bool several, const RuleContext& x) {
  const int64_t copies = c.fault.peer_copies;
  if (copies == 0 || !x.known("fault.peer_copies") || context.external_world > 0) return;
  if (c.launch.max_restarts == 0)
    x.notes.push_back(fmt::format(
        "fault: peer_copies {} has no effect: without launch.max_restarts nothing starts the job again", copies));
  else if (!several && c.launch.launcher != Launcher::kSlurm)
    x.notes.push_back(fmt::format(
        "fault: peer_copies {}: no other machine is used, so copies outlive the ranks, but not the machine", copies));
}

std::vector<int> tasks_per_node(const std::string& text) {
  std::vector<int> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const int ranks = std::atoi(part.c_str());
    const size_t times = part.find("(x");
    const int machines = times == std::string::npos ? 1 : std::atoi(part.c_str() + times + 2);
    out.insert(out.end(), static_cast<size_t>(std::clamp(machines, 1, 65536)), ranks);
  }
  return out;
}

HostCheck check_hosts(const Config& c, const CheckContext& context, const RuleContext& x) {
  const LaunchConfig& l = c.launch;
  HostCheck found;
  if (const std::string bad = bad_interface(c.comm.interface); !bad.empty()) x.bad("comm.interface", bad, "");
  constexpr const char* kKeys[] = {"launch.hostfile",  "launch.include",        "launch.exclude",
                                   "launch.num_nodes", "launch.num_slots",      "launch.launcher",
                                   "launch.ssh_port",  "launch.launcher_args",  "launch.bind_cores",
                                   "launch.core_list", "launch.start_timeout_s"};
  if (context.external_world > 0) {
    for (const char* key : kKeys)
      if (!x.where(key).empty() && !started_by_launch_ranks() &&
          !(context.world_source == "RANK" && key == std::string("launch.start_timeout_s")))
        x.notes.push_back(
            fmt::format("{} has no effect: according to {}, a launcher started the ranks", key, context.world_source));
    if (const char* tasks = std::getenv("SLURM_STEP_TASKS_PER_NODE"))
      for (const int ranks : tasks_per_node(tasks))
        if (c.parallel.tp > 1 && ranks % c.parallel.tp != 0) {
          x.notes.push_back(
              fmt::format("launch: srun put {} ranks on its machines: tp {} does not divide that, so a tensor-parallel "
                          "group spans machines; set srun --ntasks-per-node",
                          tasks, c.parallel.tp));
          break;
        }
    return found;
  }
  try {
    const std::vector<HostSlots> hosts = chosen_hosts(l);
    found = {.slots = total_slots(hosts), .several = !is_local_only(hosts)};
    for (const HostSlots& h : hosts)
      if (c.parallel.tp > 1 && static_cast<int64_t>(h.slots.size()) % c.parallel.tp)
        x.notes.push_back(
            fmt::format("launch: tp {} does not divide the {} slots of {}: a tensor-parallel group spans machines, or "
                        "stays incomplete",
                        c.parallel.tp, h.slots.size(), h.host));
    if (found.slots > 0 && l.ranks == RankKind::kThreads && !l.hostfile.empty())
      x.bad("launch.ranks", "threads live in one process, but launch.hostfile names machines", "use processes");
    check_launcher(l, hosts, x);
    if (!c.comm.interface.empty() && l.launcher != Launcher::kSlurm && is_local_only(hosts))
      x.notes.push_back("comm: interface has no effect: ranks of one machine use no network");
  } catch (const Error& e) { x.bad("", e.what(), ""); }  // the message names the file or flag
  check_cores(l, x);
  try {
    const EnvFiles env = read_env_files();
    std::vector<std::string> names;
    for (const auto& [name, value] : env.variables) names.push_back(name);
    if (!names.empty())
      x.notes.push_back(
          fmt::format("launch: {} of {} for every rank", fmt::join(names, ", "), fmt::join(env.files, ", ")));
  } catch (const Error& e) { x.bad("", e.what(), ""); }
  return found;
}

}  // namespace gt
