#include "launch/hosts/rank_env.h"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

struct Family {
  const char *rank, *world, *local_rank, *local_world;  // nullptr: the launcher has no such variable
};

constexpr Family kFamilies[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMIX_RANK", nullptr, nullptr, nullptr},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
};

std::optional<int> read(const Lookup& lookup, const char* name, int64_t least) {
  const char* text = name ? lookup(name) : nullptr;
  if (!text) return std::nullopt;
  int64_t x;
  GT_REQUIRE(parse_int(text, x) && x >= least && x < (1 << 24), Exit::kUsage, "the environment has ", name, "=", text,
             ", expected a whole number from ", least, "; start ranks with mpirun, srun or gpttrain itself");
  return static_cast<int>(x);
}

std::string show(const RankEnv& e) {
  return cat(e.source, ": rank ", e.rank, e.world > 0 ? cat(" of ", e.world) : std::string());
}

}  // namespace

RankEnv find_rank_env(const Lookup& lookup) {
  RankEnv found;
  // A torchrun that srun started on each node leaves srun's variables in its ranks.
  const bool inside = lookup("TORCHELASTIC_RUN_ID") && lookup("RANK") && read(lookup, "WORLD_SIZE", 1).value_or(1) > 1;
  for (const Family& f : kFamilies) {
    const std::string name = f.rank;
    const bool slurm = name == "SLURM_PROCID", generic = name == "RANK";
    if (!lookup(f.rank) || (inside && (slurm || name == "PMIX_RANK" || name == "PMI_RANK"))) continue;
    if (slurm && (!lookup("SLURM_STEP_ID") || !lookup(f.world) || *read(lookup, f.world, 1) == 1)) continue;
    // RANK alone may mean anything; a world of one rank equals running without a launcher.
    if (generic && (!lookup(f.world) || (!found.launched() && *read(lookup, f.world, 1) == 1))) continue;
    GT_REQUIRE(!f.world || lookup(f.world), Exit::kUsage, "the environment has ", f.rank, " but not ", f.world,
               "; start ranks with mpirun, srun or gpttrain itself");
    RankEnv e;
    e.source = f.rank;
    e.rank = *read(lookup, f.rank, 0);
    e.world = read(lookup, f.world, 1).value_or(0);
    e.local_rank = read(lookup, f.local_rank, 0).value_or(0);
    e.local_world = read(lookup, f.local_world, 1).value_or(0);
    GT_REQUIRE(e.world == 0 || e.rank < e.world, Exit::kUsage, show(e), ": a rank must be below the number of ranks");
    if (!found.launched()) {
      found = e;
      continue;
    }
    const bool same = e.rank == found.rank && (e.world == found.world || e.world == 0 || found.world == 0);
    GT_REQUIRE(same, Exit::kUsage, "two launchers disagree: ", show(found), ", ", show(e),
               "; unset the variables of the one that did not start this process");
    if (found.world == 0) found.world = e.world, found.local_rank = e.local_rank, found.local_world = e.local_world;
  }
  if (!found.launched() && lookup("SLURM_JOB_ID")) {
    int64_t nodes = 1;
    if (const char* n = lookup("SLURM_JOB_NUM_NODES")) parse_int(n, nodes);
    found.note =
        cat("inside Slurm job ", lookup("SLURM_JOB_ID"), " on ", nodes, nodes == 1 ? " node" : " nodes",
            ", not started by srun: ranks run on this node only; for all nodes use srun --mpi=pmix gpttrain ...");
  }
  return found;
}

RankEnv find_rank_env() {
  return find_rank_env([](const char* name) -> const char* { return std::getenv(name); });
}

bool started_by_launch_ranks() { return std::getenv("GPTTRAIN_LAUNCHED") != nullptr; }

}  // namespace gt
