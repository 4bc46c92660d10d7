// Rank of this process according to its launcher: Open MPI, PMIx, PMI, Slurm, or torchrun-style variables. Reads the
// environment only; makes no MPI call.
#pragma once
#include <functional>
#include <string>

namespace gt {

struct RankEnv {
  int rank = 0;
  int world = 0;  // 0: no launcher, or one that does not export it (PMIx alone: query MPI)
  int local_rank = 0;
  int local_world = 0;  // ranks on this machine; 0: unknown
  std::string source;   // "OMPI_COMM_WORLD_RANK"; empty: not started as a rank
  std::string note;     // warning for the user ("inside a Slurm allocation, but not started by srun")

  bool launched() const { return !source.empty(); }
};

using Lookup = std::function<const char*(const char*)>;  // getenv

// Checks, in this order: OMPI_COMM_WORLD_*, PMIX_RANK, PMI_*, SLURM_PROCID of a step, RANK + WORLD_SIZE. Throws kUsage
// if two of them disagree (showing both) or a value is not a valid rank. Not a rank: a Slurm batch script (no
// SLURM_STEP_ID), a step of one task, and WORLD_SIZE 1.
RankEnv find_rank_env(const Lookup& lookup);
// Returns whether only torchrun's variables make this process a rank (local_ranks.h sets them too): ranks then connect
// by sockets instead of MPI.
inline bool uses_sockets(const RankEnv& env) { return env.source == "RANK"; }
RankEnv find_rank_env();  // of this process

// Returns whether gpttrain itself started this process as a rank.
bool started_by_launch_ranks();

}  // namespace gt
