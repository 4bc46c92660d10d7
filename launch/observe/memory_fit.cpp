#include "launch/observe/memory_fit.h"

#include <fmt/format.h>

#include <utility>

#include "launch/observe/sinks/progress.h"

namespace gt {
namespace {

constexpr double kUsable = 0.9;  // of free memory
constexpr double kTight = 0.92;  // of usable memory

std::string bytes_text(int64_t n) { return format_bytes(static_cast<double>(n)); }

const EnginePlan& plan_of(const MeshShape& mesh, const StagePlans& plans, int rank) {
  return plans[static_cast<size_t>(mesh.coord(Axis::kPp, rank))];
}

// Returns "activations 51.2 GB".
std::string largest_category(const MemoryReport& m) {
  const std::pair<const char*, int64_t> all[] = {{"weights", m.weights},       {"gradients", m.gradients},
                                                 {"optimizer", m.optimizer},   {"activations", m.activations},
                                                 {"buffers", m.buffers},       {"packed weights", m.copies},
                                                 {"workspaces", m.workspaces}, {"graphs", m.graphs}};
  const auto& most = *std::max_element(std::begin(all), std::end(all),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("{} {}", most.first, bytes_text(most.second));
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size(), ranks.size() == 1 ? "rank" : "ranks");
}

}  // namespace

StagePlans plan_stages(const EngineOptions& o, const MeshShape& mesh, const Backend& backend) {
  StagePlans out;
  for (int k = 0; k < mesh.pp; ++k) out.push_back(plan_memory(o, mesh, k * mesh.dp * mesh.tp, backend));
  return out;
}

MemoryFit fullest_device(const MeshShape& mesh, const StagePlans& plans, const Backend& backend,
                         const std::vector<Machine>& machines) {
  const int devices = std::max(1, backend.device->count());
  std::vector<int64_t> free_bytes(static_cast<size_t>(devices));
  int64_t total = 0;
  for (int d = 0; d < devices; ++d) backend.device->memory(d, &free_bytes[static_cast<size_t>(d)], &total);
  MemoryFit worst;
  for (const Machine& m : machines)
    for (int d = 0; d < devices && d < static_cast<int>(m.ranks.size()); ++d) {
      MemoryFit fit{.machine = m.name, .device = d, .ranks = {}, .free_bytes = free_bytes[static_cast<size_t>(d)]};
      fit.usable = static_cast<int64_t>(kUsable * static_cast<double>(fit.free_bytes));
      int64_t most = -1;
      for (size_t i = static_cast<size_t>(d); i < m.ranks.size(); i += static_cast<size_t>(devices)) {
        const int64_t bytes = plan_of(mesh, plans, m.ranks[i]).memory.total();
        fit.ranks.push_back(m.ranks[i]);
        fit.needed += bytes;
        if (bytes > std::exchange(most, std::max(most, bytes))) fit.limiting_rank = m.ranks[i];
      }
      if (worst.ranks.empty() || fit.share() > worst.share()) worst = std::move(fit);
    }
  return worst;
}

std::string expert_memory(const EngineOptions& options, const MeshShape& mesh, const Backend& backend) {
  const auto needed = [&](double load) {
    EngineOptions o = options;
    o.expert_load = load;
    int64_t most = 0;
    for (const EnginePlan& p : plan_stages(o, mesh, backend)) most = std::max(most, p.memory.total());
    return bytes_text(most);
  };
  return fmt::format(
      "{} on each of {} ranks; a rank takes {} if the router chooses all alike, {} with three times as many tokens for "
      "its experts, {} (planned) with all that there can be",
      options.model.moe.experts / mesh.ep, mesh.ep, needed(1), needed(3), needed(0));
}

std::string fit_text(const MemoryFit& fit, const MeshShape& mesh, const StagePlans& plans) {
  const EnginePlan& plan = plan_of(mesh, plans, fit.limiting_rank);
  const char* verdict = !fit.fits() ? "does not fit" : fit.share() > kTight ? "tight" : "fits";
  const std::string together = fit.ranks.size() == 1 ? ""
                                                     : fmt::format("; {} share a device and need {}",
                                                                   ranks_text(fit.ranks), bytes_text(fit.needed));
  return fmt::format(
      "{}: rank {} ({}) on {} needs {}, of which {} ({} in flight){}; usable: {}, {:.0f} % of free memory", verdict,
      fit.limiting_rank, mesh.coordinates(fit.limiting_rank), fit.machine, bytes_text(plan.memory.total()),
      largest_category(plan.memory), plan.slots, together, bytes_text(fit.usable), 100 * kUsable);
}

void require_memory(const MemoryFit& fit, const MeshShape& mesh, const StagePlans& plans) {
  GT_REQUIRE(fit.fits(), Exit::kUsage, fit_text(fit, mesh, plans), " (",
             memory_line(plan_of(mesh, plans, fit.limiting_rank).memory),
             "). Try a smaller train.micro_batch, parallel.recompute, a higher zero.stage with more dp, or more tp or "
             "pp; --dry-run names the smallest change that fits");
}

bool snapshot_fits(const MeshShape& mesh, const StagePlans& plans, const Backend& backend, int ranks_here) {
  const bool on_host = std::string_view(backend.device->name) == "cpu";
  int64_t sum = 0, free_bytes = 0, total_bytes = 0;
  for (const EnginePlan& plan : plans)
    sum += (plan.snapshot_bytes + (on_host ? plan.memory.total() : 0)) * mesh.dp * mesh.tp;
  cpu_backend().device->memory(0, &free_bytes, &total_bytes);
  return static_cast<double>(sum) * ranks_here / mesh.world() <= kUsable * static_cast<double>(free_bytes);
}

std::string memory_line(const MemoryReport& m) {
  return fmt::format("weights {}, gradients {}, optimizer {}, activations {}, buffers {}{}{}{}, total {}",
                     bytes_text(m.weights), bytes_text(m.gradients), bytes_text(m.optimizer), bytes_text(m.activations),
                     bytes_text(m.buffers), m.copies ? ", packed weights " + bytes_text(m.copies) : "",
                     m.workspaces ? ", workspaces " + bytes_text(m.workspaces) : "",
                     m.graphs ? ", graphs " + bytes_text(m.graphs) : "", bytes_text(m.total()));
}

}  // namespace gt
