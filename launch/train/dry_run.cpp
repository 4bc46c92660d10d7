#include "launch/train/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "kernels/core/host.h"
#include "launch/config/config_check.h"
#include "launch/config/values/param_groups.h"
#include "launch/engine/engine_options.h"
#include "launch/hosts/hostfile.h"
#include "launch/observe/banner.h"
#include "launch/observe/peak_rates.h"
#include "launch/observe/sinks/progress.h"
#include "launch/observe/utilization.h"
#include "launch/ranks/ranks.h"
#include "launch/train/resume_check.h"
#include "launch/train/save/run_saver.h"
#include "launch/train/training_data.h"
#include "launch/train/vocabulary_note.h"

namespace gt {
namespace {

struct Planned {
  EngineOptions options;
  MeshShape mesh;
  StagePlans plans;
  MemoryFit fit;
};

Planned plan_run(const Config& c, const Backend& backend, const std::vector<Machine>& machines, int threads) {
  Planned p{engine_options(c, threads), mesh_shape(c), {}, {}};
  p.plans = plan_stages(p.options, p.mesh, backend);
  p.fit = fullest_device(p.mesh, p.plans, backend, machines);
  return p;
}

// Change of the config that reduces memory, and its flags.
struct Change {
  std::string flags;
  Config config;
};

// Single changes first, ordered by their cost in speed; then the two that save most, combined.
std::vector<Change> changes_of(const LoadedConfig& loaded) {
  const Config& now = loaded.config;
  std::vector<Change> out;
  const auto add = [&](std::string flags, auto change) {
    Change c{std::move(flags), now};
    change(c.config);
    out.push_back(std::move(c));
  };
  const auto recompute = [](Recompute how) {
    return [how](Config& c) { c.parallel.recompute = how, c.parallel.recompute_layers = 0; };
  };
  const auto smaller = [](int64_t divisor) {
    return [divisor](Config& c) { c.train.micro_batch /= divisor, c.train.grad_accum *= divisor; };
  };
  const auto micro_flags = [&](int64_t divisor) {
    return fmt::format("--train.micro_batch {} --train.grad_accum {}", now.train.micro_batch / divisor,
                       now.train.grad_accum * divisor);
  };
  if (now.parallel.dp > 1)
    for (int64_t stage = now.zero.stage + 1; stage <= 3; ++stage)
      add(fmt::format("--zero {}", stage), [stage](Config& c) { c.zero.stage = stage; });
  if (now.parallel.recompute == Recompute::kNone)
    add("--parallel.recompute selective", recompute(Recompute::kSelective));
  int64_t halvings = 1;
  for (; now.train.micro_batch % (2 * halvings) == 0; halvings *= 2)
    add(micro_flags(2 * halvings), smaller(2 * halvings));
  const bool full = now.parallel.recompute == Recompute::kFull && now.parallel.recompute_layers == 0;
  if (!full) add("--parallel.recompute full", recompute(Recompute::kFull));
  const bool shards = now.parallel.dp > 1 && now.zero.stage < 3;
  if (static_cast<int>(!full) + static_cast<int>(halvings > 1) + static_cast<int>(shards) < 2) return out;
  add(fmt::format("--parallel.recompute full{}{}", halvings > 1 ? " " + micro_flags(halvings) : "",
                  shards ? " --zero 3" : ""),
      [&](Config& c) {
        recompute(Recompute::kFull)(c), smaller(halvings)(c);
        if (shards) c.zero.stage = 3;
      });
  return out;
}

bool is_legal(Config& c, const LoadedConfig& loaded, const RankEnv& env) {
  Problems problems;
  std::vector<std::string> notes;
  resolve_and_check(c,
                    {.origin = loaded.origin,
                     .external_world = env.launched() ? env.world : 0,
                     .needs_data = true,
                     .world_source = env.source},
                    problems, notes);
  return problems.empty();
}

std::string smallest_change(const LoadedConfig& loaded, const RankEnv& env, const Backend& backend,
                            const std::vector<Machine>& machines, const Planned& now, int threads) {
  int64_t least = now.fit.needed;
  for (Change& change : changes_of(loaded)) {
    if (!is_legal(change.config, loaded, env)) continue;
    const Planned p = plan_run(change.config, backend, machines, threads);
    if (p.fit.fits()) return fmt::format("{}: {}", change.flags, fit_text(p.fit, p.mesh, p.plans));
    least = std::min(least, p.fit.needed);
  }
  return fmt::format(
      "neither ZeRO, recomputation nor smaller microbatches make it fit (at best {} on a device that has {}): use more "
      "tp or pp over more devices, or larger devices",
      format_bytes(static_cast<double>(least)), format_bytes(static_cast<double>(now.fit.usable)));
}

// Finds the step from which the run would resume; nullopt: it starts from scratch.
std::optional<LoadReport> checkpoint_of(const Config& c, const Dataset& train) {
  std::error_code ec;
  const std::string dir = c.checkpoint_dir();
  int64_t number = 0;
  LoadReport found;
  if (c.checkpoint.resume == "never") return std::nullopt;
  require_same_kind(c);
  if (c.checkpoint.resume != "auto" && parse_int(c.checkpoint.resume, number)) {
    found.path = fmt::format("{}/step-{:09}", dir, number);
  } else {
    if (!std::filesystem::exists(dir, ec)) return std::nullopt;
    try {
      found.path = resolve_step(dir);
    } catch (const Error& e) {
      if (e.code() == Exit::kUsage) return std::nullopt;  // no checkpoint
      throw;
    }
  }
  found.state = read_state(found.path);
  found.config_json = read_aux(found.path, "config.json");
  require_same_run(found, c, train);
  return found;
}

std::string saves_of(const Config& c, const Planned& p, const Backend& backend, int ranks_here) {
  int64_t bytes = 0;
  for (const EnginePlan& plan : p.plans) bytes = std::max(bytes, plan.snapshot_bytes);
  const bool fits = snapshot_fits(p.mesh, p.plans, backend, ranks_here);
  return save_text(c.checkpoint, p.mesh.world(), c.checkpoint.async && copy_fits(c.checkpoint, bytes, fits), bytes);
}

}  // namespace

std::vector<Machine> place_ranks(const Config& c, const RankEnv& env, int devices) {
  const int world = static_cast<int>(c.world());
  std::vector<Machine> out;
  int next = 0;
  const auto add = [&](std::string name, int ranks) {
    Machine m{std::move(name), std::vector<int>(static_cast<size_t>(std::min(ranks, world - next)))};
    std::iota(m.ranks.begin(), m.ranks.end(), next);
    next += static_cast<int>(m.ranks.size());
    if (!m.ranks.empty()) out.push_back(std::move(m));
  };
  if (env.launched()) {
    for (int k = 0; next < world; ++k) add(fmt::format("machine {}", k), env.local_world > 0 ? env.local_world : world);
    return out;
  }
  const std::vector<HostSlots> hosts = chosen_hosts(c.launch);
  for (const HostSlots& h : hosts) add(h.host, static_cast<int>(h.slots.size()));
  if (hosts.empty() && c.launch.launcher == Launcher::kSlurm)
    for (int k = 0; next < world; ++k) add(fmt::format("machine {}", k), devices);
  if (next < world) add(host_name(), world - next);
  return out;
}

Rows dry_run(const LoadedConfig& loaded, const RankEnv& env, bool range_test, bool force) {
  const Config& c = loaded.config;
  const Backend& backend = choose_backend(c);
  const int devices = std::max(1, backend.device->count());
  const std::vector<Machine> machines = place_ranks(c, env, devices);
  const int ranks_here = static_cast<int>(machines.front().ranks.size());
  const int threads = threads_per_rank(c, ranks_here);
  require_unused_folder(c, force);
  DatasetOptions options = training_data(c, true);
  options.remembers = false;
  options.warn = [](const std::string& text) { fmt::print(stderr, "warning: {}\n", text); };
  const RunDatasets data = open_datasets(options, loaded);
  const Planned p = plan_run(c, backend, machines, threads);
  require_patterns_found(c.optim, describe(p.options.model));
  const auto found = checkpoint_of(c, *data.train);

  BannerFacts facts{c, p.options, p.plans, p.fit, backend, *data.train, data.valid.get()};
  facts.comm = comm_backend(c, env);
  facts.threads = threads;
  if (found) facts.resumed_from = found->state.step, facts.checkpoint = found->path;
  const std::string device = backend.device->describe(0);
  const auto ceilings = load_ceilings(device, p.options.precision.linear());
  facts.mfu = mfu_line(peak_bf16_flops(device), ceilings);
  if (!range_test) facts.saves = saves_of(c, p, backend, ranks_here);
  if (!found && !c.checkpoint.load_from.empty())
    facts.loaded = fmt::format("{} of {}", fmt::join(c.checkpoint.load, ", "), resolve_step(c.checkpoint.load_from));
  facts.tokenizer = tokenizer_rows(c);
  facts.notes = loaded.notes;
  if (const std::string note = vocabulary_note(loaded.config); !note.empty()) facts.notes.push_back(note);
  if (machines.size() > 1 || machines.front().name != host_name())
    facts.notes.push_back("assumes that every machine has the memory of this one");
  Rows rows = start_rows(facts);
  if (!p.fit.fits()) rows.push_back({"to fit", smallest_change(loaded, env, backend, machines, p, threads)});
  return rows;
}

}  // namespace gt
