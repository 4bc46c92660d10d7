// Self-launch: started alone with more than one rank to run, gpttrain starts itself under mpirun on this machine and
// stays as the parent. It turns Ctrl-C and SIGTERM into SIGUSR1 for the ranks (mpirun would kill them within a second),
// waits until they have saved, and returns their exit code.
#pragma once
#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "launch/hosts/env_file.h"
#include "launch/hosts/hostfile.h"
#include "launch/ranks/start/start_watch.h"

namespace gt {

constexpr const char* kVerdictVariable = "GPTTRAIN_VERDICT";

struct SpawnOptions {
  std::string program;  // default: /proc/self/exe, resolved
  int grace_s = 300;    // from the first signal to the end by force
  int cores = 0;        // 0: those this process may run on
  // Where ranks go, host by host; empty: this machine, as many as it takes.
  std::vector<HostSlots> hosts = {};
  bool slurm = false;              // srun instead of mpirun
  std::string launcher_args = {};  // further words for it, cut at blanks
  int ssh_port = 0;                // of other machines; 0: ssh's own
  Variables variables = {};        // that every rank shall have, whatever it has
  bool only_shown = false;         // the command is printed, not run: its launcher need not be installed
  std::string interface = {};      // comm.interface
  double start_timeout_s = 0;      // launch.start_timeout_s
  int threads = 1;                 // that a rank computes with
  double stall_abort_s = 600;      // a process that does not run for so long ends the job; 0: never
  std::string verdict_file = {};   // where ranks say who was to blame; "": nowhere
  bool resumable = true;           // a stopped job ends with kInterrupted, for it can resume; else with 128 + signal
};
struct Config;
// As the config says: hosts, launcher, and .deepspeed_env. Throws kUsage.
SpawnOptions spawn_options(const Config&);

// While it lives, the signals that a parent of ranks passes on wait for run_job, and orphaned ranks become children of
// this process. Make it before threads are made.
class SignalGate {
 public:
  SignalGate();
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;
  const sigset_t& signals() const { return signals_; }
  const sigset_t& before() const { return before_; }
  // The next signal that comes within so many seconds; 0: none.
  int wait(double seconds) const;

 private:
  sigset_t signals_, before_;
  int was_reaper_ = 0;
};

struct JobCommand {
  std::vector<std::string> words;  // words[0]: the program's path
  Variables environment;           // added where not set already
  Variables variables = {};        // set whatever is there
  bool local_mpi = false;          // mpirun, and every rank on this machine
  std::string verdict_file = {};   // SpawnOptions::verdict_file
  int verdict_grace_s = 7;         // for the job to end once that is there
  bool here = false;               // this program, not a launcher
  StartLimits limits = {};
  int threads = 1;        // of a rank
  bool resumable = true;  // SpawnOptions::resumable
};
// `world` ranks by mpirun or srun; this program itself when `here` (one rank, or ranks that are threads). kUsage when
// there is no such launcher.
JobCommand job_command(int world, bool here, const std::vector<std::string>& args, const SpawnOptions& = {});
std::string command_line(const JobCommand&);  // quoted for a shell

struct JobEnd {
  int code = 0;          // of the first rank that failed, 128 + n for a signal; 0
  int stopped = 0;       // the first stop signal that this process got meanwhile, 0: none
  bool started = false;  // all ranks passed MPI_Init, as far as one can see
};
// Runs one job to its end; stop signals become SIGUSR1 for it, a second one, or grace_s without an end, is the end.
// A job that has not ended verdict_grace_s after its verdict file appeared is ended: mpirun waits for a machine that
// is gone.
JobEnd run_job(const JobCommand&, const SignalGate&, int grace_s);

// The commands and the environment that start `world` ranks; separate from launch_ranks so that tests can see them.
// Ranks of other machines get what they need of our environment by mpirun's -x; srun brings all of it, and wants as
// many slots of every machine (kUsage).
std::vector<std::string> mpirun_command(int world, const std::string& mpirun, const std::string& program,
                                        const std::vector<std::string>& args, const SpawnOptions& options = {});
std::vector<std::string> srun_command(int world, const std::string& srun, const std::string& program,
                                      const std::vector<std::string>& args, const SpawnOptions& options = {});
// Variables for mpirun and the ranks; those the user has set already are left alone. `columns`: width of the terminal
// behind standard output, 0 = none (mpirun gives its ranks a pseudo-terminal whatever is behind it).
std::vector<std::pair<std::string, std::string>> mpirun_environment(int world, int cores, int columns);

// args: the command line without the program's name. Returns the exit code of the first rank that failed (128 + n for
// a signal), 0 when all ended well. kUsage when there is no mpirun, naming the package. Call before threads are made.
int launch_ranks(int world, const std::vector<std::string>& args, const SpawnOptions& options = {});

}  // namespace gt
