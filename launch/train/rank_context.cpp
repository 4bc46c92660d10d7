#include "launch/train/rank_context.h"

#include <numeric>

#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "launch/engine/engine_options.h"
#include "launch/ranks/agree.h"

namespace gt {
namespace {

// Returns this rank's machine: all ranks with its host name or, if names are ambiguous, a consecutive block.
Machine machine_of(const GroupFactory& factory, const std::vector<std::string>& hosts) {
  Machine m{host_name(), {}};
  const auto here = static_cast<size_t>(factory.local_size());
  for (size_t r = 0; r < hosts.size(); ++r)
    if (hosts[r] == m.name) m.ranks.push_back(static_cast<int>(r));
  if (m.ranks.size() == here) return m;
  m.ranks.resize(here);
  std::iota(m.ranks.begin(), m.ranks.end(), factory.world_rank() - factory.local_rank());
  return m;
}

}  // namespace

RankContext::RankContext(const TrainRun& train_run, GroupFactory& factory)
    : run(train_run),
      config(run.loaded.config),
      device(config, factory),
      groups(device.groups()),
      backend(device.backend()),
      mesh(mesh_shape(config), groups),
      started(now()) {
  const std::vector<std::string> hosts = gather_bytes(mesh.world(), host_name());
  agree(mesh.world(), [&] { open(hosts); });
}

// `hosts`: of all ranks.
void RankContext::open(const std::vector<std::string>& hosts) {
  const int threads = threads_per_rank(config, groups.local_size());
  set_cpu_may_spin(ranks_may_spin(config, groups.local_size(), threads));
  options = engine_options(config, threads);
  if (groups.local_rank() == 0) {
    stage_plans = plan_stages(options, mesh.shape(), backend);
    fit = fullest_device(mesh.shape(), stage_plans, backend, {machine_of(groups, hosts)});
    require_memory(*fit, mesh.shape(), stage_plans);
    snapshot_fits = gt::snapshot_fits(mesh.shape(), stage_plans, backend, groups.local_size());
  }
  plan = is_rank0() ? stage_plans.front() : plan_memory(options, mesh.shape(), mesh.rank(), backend);
  stream = own_stream = OpenStream(*backend.device, device.index(), threads);
}

}  // namespace gt
