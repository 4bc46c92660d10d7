// Self-launch: gpttrain with more than one rank and no launcher starts itself as ranks, under mpirun or srun if they
// are on several machines, over ssh alone where there is no mpirun, and stays as the parent. The parent converts Ctrl-C
// and SIGTERM to SIGUSR1 for the ranks (mpirun would kill them within a second), waits for their save, and returns
// their exit code.
#pragma once
#include <signal.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "launch/hosts/env_file.h"
#include "launch/hosts/hostfile.h"
#include "launch/ranks/start/start_watch.h"

namespace gt {

struct SpawnOptions {
  std::string program;  // default: /proc/self/exe, resolved
  int grace_s = 300;    // from the first signal to forced termination
  int cores = 0;        // 0: the affinity mask of this process
  // Hosts of the ranks, filled host by host; empty: this machine.
  std::vector<HostSlots> hosts = {};
  bool slurm = false;              // srun instead of mpirun
  std::string launcher_args = {};  // extra arguments for either, split at blanks
  int ssh_port = 0;                // on other machines; 0: ssh's default
  Variables variables = {};        // set in every rank, overriding its environment
  bool only_shown = false;         // print the command only; its launcher need not be installed
  std::string interface = {};      // comm.interface
  double start_timeout_s = 0;      // launch.start_timeout_s
  int threads = 1;                 // compute threads per rank
  double stall_abort_s = 600;      // a process stopped for this long ends the job; 0: never
  bool resumable = true;           // a stopped job ends with kInterrupted because it can resume; otherwise 128 + signal
};
struct Config;
// Returns the options of a config: hosts, launcher, .deepspeed_env. Throws kUsage.
SpawnOptions spawn_options(const Config&);

// Blocks the signals that a parent forwards to its ranks, for run_job to read, and makes this process the reaper of
// orphaned ranks. Requires: created before threads are.
class SignalGate {
 public:
  SignalGate();
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;
  const sigset_t& signals() const { return signals_; }
  const sigset_t& before() const { return before_; }
  // Returns the next signal that arrives within `seconds`; 0 if none.
  int wait(double seconds) const;

 private:
  sigset_t signals_, before_;
  int was_reaper_ = 0;
};

enum class Starter : uint8_t {
  kNone,    // the program itself runs all ranks: one, or threads
  kFork,    // a process per rank on this machine (local_ranks.h)
  kSsh,     // on several machines without Open MPI (remote_ranks.h)
  kMpirun,  // on several machines
  kSrun,
};

struct JobCommand {
  Starter starter = Starter::kFork;
  std::vector<std::string> words;  // words[0]: the path of the launcher, or of the program if there is none
  Variables environment;           // set unless already set
  Variables variables = {};        // set always
  int verdict_grace_s = 7;         // time for the job to end after its verdict
  StartLimits limits = {};
  int threads = 1;                    // of a rank
  bool resumable = true;              // SpawnOptions::resumable
  std::vector<HostSlots> hosts = {};  // Starter::kSsh: in use
  int ssh_port = 0;                   // Starter::kSsh
  // Polled with true several times a second while the job runs, until it returns true: the job then stops as on a
  // signal. Called once with false after the job. Empty: nothing to poll.
  std::function<bool(bool running)> recall = {};
  // Called with the verdict "lost: ..." while the job still ends, and with "" after its end; its processes are children
  // of this one until then.
  std::function<void(const std::string& verdict)> lost = {};
};
// Returns the command that runs `world` ranks, in this program itself if `here` (one rank, or ranks as threads). Throws
// kUsage if it needs a launcher that is not installed.
JobCommand job_command(int world, bool here, const std::vector<std::string>& args, const SpawnOptions& = {});
// Returns the launcher's command line, quoted for a shell; "" if none is needed.
std::string command_line(const JobCommand&);

struct JobEnd {
  int code = 0;              // of the first rank that failed, 128 + n for a signal; 0: success
  int stopped = 0;           // first stop signal received by this process; 0: none
  bool recalled = false;     // stopped because JobCommand::recall requested it
  bool started = false;      // all ranks are known to be connected
  std::string verdict = {};  // one line about the rank or machine that failed, if ranks reported it; "": none
};
// Runs one job to its end. The first stop signal is forwarded as SIGUSR1; a second one, or grace_s after the first,
// terminates the job. So does verdict_grace_s after its ranks' verdict, since mpirun would wait for a lost machine.
JobEnd run_job(const JobCommand&, const SignalGate&, int grace_s);

// Return the commands that start `world` ranks; separate from launch_ranks for testing. mpirun forwards the variables
// that remote ranks need with -x. srun forwards all, and requires equal slots on every machine (throws kUsage).
std::vector<std::string> mpirun_command(int world, const std::string& mpirun, const std::string& program,
                                        const std::vector<std::string>& args, const SpawnOptions& options = {});
std::vector<std::string> srun_command(int world, const std::string& srun, const std::string& program,
                                      const std::vector<std::string>& args, const SpawnOptions& options = {});
// Returns the variables for mpirun and the ranks; those set by the user are not overridden. `columns`: width of the
// terminal on standard output, 0: none (mpirun gives its ranks a pseudo-terminal in either case).
std::vector<std::pair<std::string, std::string>> mpirun_environment(int world, int cores, int columns);

// Starts `world` ranks and waits for them. args: the command line without the program's name. Returns the exit code of
// the first rank that failed (128 + n for a signal), 0 on success. Throws kUsage, naming the package, if mpirun is
// needed and missing. Requires: called before threads are created.
int launch_ranks(int world, const std::vector<std::string>& args, const SpawnOptions& options = {});

}  // namespace gt
