// Which rank am I, according to whoever started me: Open MPI, PMIx, PMI, Slurm, or torchrun-style variables. Reads the
// environment only; no MPI call.
#pragma once
#include <functional>
#include <string>

namespace gt {

struct RankEnv {
  int rank = 0;
  int world = 0;  // 0: no launcher, or one that does not tell (PMIx alone: ask MPI)
  int local_rank = 0;
  int local_world = 0;  // ranks on this machine; 0: not told
  std::string source;   // "OMPI_COMM_WORLD_RANK"; empty: nobody started this process as a rank
  std::string note;     // something the user should know ("inside a Slurm allocation, but not started by srun")

  bool launched() const { return !source.empty(); }
};

using Lookup = std::function<const char*(const char*)>;  // getenv

// In this order: OMPI_COMM_WORLD_*, PMIX_RANK, PMI_*, SLURM_PROCID of a step, RANK + WORLD_SIZE. Two that disagree are
// a kUsage error showing both, as is a value that is no rank. A Slurm batch script (no SLURM_STEP_ID) and a step of one
// task are no rank, nor is WORLD_SIZE 1.
RankEnv find_rank_env(const Lookup& lookup);
// kUsage when only torchrun's variables say that this is a rank: nothing of MPI started it, so each process would train
// alone.
void require_mpi(const RankEnv&);
RankEnv find_rank_env();  // of this process

// True in a process that this program started.
bool started_by_launch_ranks();

}  // namespace gt
