// Options of section launch: hosts and slots that ranks start on, and how they are started.
#pragma once
#include <array>
#include <cstdint>
#include <string>

namespace gt {

enum class RankKind : uint8_t { kProcesses, kThreads };
enum class Launcher : uint8_t { kOpenMpi, kSlurm, kMpich, kImpi, kPdsh, kMvapich };
constexpr std::array<const char*, 2> names_of(RankKind) { return {"processes", "threads"}; }
constexpr std::array<const char*, 6> names_of(Launcher) {
  return {"openmpi", "slurm", "mpich", "impi", "pdsh", "mvapich"};
}

struct LaunchConfig {
  RankKind ranks = RankKind::kProcesses;
  Launcher launcher = Launcher::kOpenMpi;
  std::string hostfile, include, exclude, launcher_args, core_list;
  int64_t max_restarts = 0, min_dp = 0, grace_s = 300, num_nodes = 0, num_slots = 0, ssh_port = 0;
  double start_timeout_s = 0;
  bool bind_cores = false;
  template <class V>
  void fields(V& v) {
    v("ranks", ranks, "", "ranks as processes, or as threads of one process on this machine");
    v("hostfile", hostfile, "FILE",
      "machines to start ranks on, lines HOST slots=N; empty: /job/hostfile if there is one");
    v("include", include, "NODE:SLOT,SLOT@NODE", "hosts and slots to use; a node alone: all its slots");
    v("exclude", exclude, "NODE:SLOT,SLOT@NODE", "hosts and slots to exclude");
    v("num_nodes", num_nodes, "0..65536 hosts", "use the first N hosts; 0: all");
    v("num_slots", num_slots, "0..65536 slots", "use the first N slots of each host; 0: all");
    v("launcher", launcher, "", "launcher on several machines: mpirun, or srun of Slurm");
    v("launcher_args", launcher_args, "WORDS",
      "several machines: additional arguments of mpirun or srun, as one string: --launcher_args \"--mca x y\"");
    v("ssh_port", ssh_port, "0..65535", "openmpi: port of ssh on other machines; 0: ssh's own");
    v("bind_cores", bind_cores, "",
      "bind each rank to an equal share of the cores of its machine, or of launch.core_list");
    v("core_list", core_list, "0-3,8", "cores of each machine that ranks may use; empty: slots, or all");
    v("max_restarts", max_restarts, "0..1000000",
      "restarts from the newest valid checkpoint after transient failures (gpttrain launch)");
    v("min_dp", min_dp, "0..65536 replicas",
      "with max_restarts: continue with fewer data-parallel replicas, at least N, while hosts are lost; 0: wait for "
      "hosts");
    v("grace_s", grace_s, "1..86400 seconds", "time to save after Ctrl-C or SIGTERM before the ranks are killed");
    v("start_timeout_s", start_timeout_s, "0..86400 seconds",
      "end the job if ranks have not started by then; 0: 600, on one machine 120 plus 2 per rank");
  }
};

}  // namespace gt
