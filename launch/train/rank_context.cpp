#include "launch/train/rank_context.h"

#include <numeric>

#include "checkpoint/world.h"
#include "kernels/core/host.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/inject.h"
#include "launch/engine/prove_layout.h"
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

// Proves the layout of this rank's stage on its first rank: the others run the same program.
void prove_stage(const Config& c, const EngineOptions& options, const Mesh& mesh) {
  if (mesh.stage().rank() != 0 || !proof::LayoutProof::supports(mesh.shape())) return;
  std::optional<proof::Fault> fault;
  if (const auto left_out = Injector(c.fault.inject, mesh.rank()).left_out()) {
    std::vector<proof::Site> sites;
    prove_rank(options, mesh.shape(), mesh.rank(), &sites);
    GT_REQUIRE(!sites.empty(), Exit::kUsage, "fault.inject: rank ", mesh.rank(), " makes no collective");
    const proof::Site& site = sites[static_cast<size_t>(*left_out) % sites.size()];
    fault = {site, 0, site.over};
  }
  try {
    prove_rank(options, mesh.shape(), mesh.rank(), nullptr, fault);
  } catch (const proof::LayoutError& e) {
    throw Error(e.what() + code_of(e, options, mesh.shape(), fault) +
                    "\nThis is an error of gpttrain, found before the first step; another layout may be right",
                Exit::kInternal);
  }
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
  prove_stage(config, options, mesh);
  plan = is_rank0() ? stage_plans.front() : plan_memory(options, mesh.shape(), mesh.rank(), backend);
  stream = own_stream = OpenStream(*backend.device, device.index(), threads);
}

}  // namespace gt
