#include "launch/ranks/start/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/config/config.h"
#include "launch/hosts/connection_guard.h"
#include "launch/hosts/network.h"
#include "launch/hosts/rank_slots.h"
#include "launch/options/console_text.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/start/bundle.h"
#include "launch/ranks/start/host_facts.h"
#include "launch/ranks/start/host_probe.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/local_ranks.h"
#include "launch/ranks/start/mpirun_end.h"
#include "launch/ranks/start/own_process.h"
#include "launch/ranks/start/remote_ranks.h"
#include "launch/ranks/start/start_limits.h"
#include "launch/ranks/start/stray_segments.h"
#include "parallel/comm/watch/comm_board.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Returns whether a process may read another's memory. If a container forbids it, Open MPI's shared-memory transport
// warns at every large message unless it is configured not to try.
bool may_read_other_processes() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

constexpr std::chrono::milliseconds kLostGrace{1000};  // for the ranks of other machines to end
// Time for a launcher to end itself and its ranks. It waits in vain for the daemon of a lost machine, and those of
// others end with it.
constexpr std::chrono::milliseconds kEnd{3000}, kLostEnd{300};

constexpr int kStops[] = {SIGINT, SIGTERM, SIGHUP};

// Signal that ends the child at once, except mpirun (mpirun_end.h). SIGKILL where a stop signal would not: forked ranks
// end with the process that started them. The program itself (kNone) saves on SIGTERM, also if this process is killed;
// srun ends its ranks.
int end_signal(const JobCommand& job) {
  return job.starter == Starter::kFork || job.starter == Starter::kSsh ? SIGKILL : SIGTERM;
}

// Returns a stop signal that is pending at a process which blocks it; 0: none.
int pending_stop(pid_t pid) {
  std::ifstream in(cat("/proc/", pid, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("ShdPnd:", 0) != 0) continue;
    const uint64_t pending = std::strtoull(line.c_str() + 7, nullptr, 16);
    for (const int n : kStops)
      if ((pending >> (n - 1) & 1) != 0 && (n != SIGHUP || !ignores_hangup())) return n;
  }
  return 0;
}

// The job as its agents need it, in the child: ssh forwards no environment.
RemoteJob remote_job(const JobCommand& job) {
  RemoteJob out{job.hosts, job.ssh_port, job.resumable, job.words, job.variables};
  for (const char* name :
       {"GPTTRAIN_LAUNCHED", "GPTTRAIN_COLUMNS", kSlotsVariable, kReportsVariable, kNoHangupVariable})
    if (const char* value = std::getenv(name); value != nullptr) out.variables.emplace_back(name, value);
  return out;
}

[[noreturn]] void run_child(const JobCommand& job, const LauncherOutput& output, const sigset_t& mask, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C of the terminal goes to the parent only
  if (job.starter != Starter::kMpirun) prctl(PR_SET_PDEATHSIG, end_signal(job));
  if (getppid() != parent) _exit(128 + SIGTERM);  // the parent died before PR_SET_PDEATHSIG took effect
  const bool mpirun = job.starter == Starter::kMpirun, here = job.starter == Starter::kNone;
  // On a stop signal mpirun kills its ranks after a second or two, before they can save, and service managers, logout
  // and shutdown send theirs to every process of a job. So mpirun has them blocked; this process reads what is pending.
  // A rank that can save unblocks them once its handlers are installed.
  sigset_t blocked = mask;
  for (const int n : kStops)
    if (here || mpirun || (job.starter == Starter::kFork && job.resumable)) sigaddset(&blocked, n);
  if (here) sigaddset(&blocked, SIGUSR1);
  const bool forks = job.starter == Starter::kFork || job.starter == Starter::kSsh;  // and reads those signals
  if (!forks) sigprocmask(SIG_SETMASK, &blocked, nullptr);
  if (mpirun && job.resumable) signal(SIGUSR1, SIG_IGN);  // forwarded while mpirun has a handler, harmless otherwise
  signal(SIGUSR2, SIG_IGN);  // stack dump request; must not kill ranks without a handler yet
  if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  job.starter != Starter::kNone ? output.redirect_child() : output.pass_to_child();
  for (const auto& [name, value] : job.variables) setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 0);
  const int world = job.limits.world;
  if (job.starter == Starter::kFork) _exit(run_local_ranks({.count = world, .world = world}, job.words, blocked));
  if (job.starter == Starter::kSsh) _exit(run_remote_ranks(remote_job(job)));
  std::vector<char*> argv;
  for (const std::string& word : job.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  constexpr char kText[] = "gpttrain: the launcher could not be started\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(127);
  _exit(127);
}

// Variables of every rank that this program starts.
Variables own_variables(int columns) {
  Variables out{{"GPTTRAIN_LAUNCHED", "1"}, {"GPTTRAIN_COLUMNS", std::to_string(columns)}};
  if (ignores_hangup()) out.emplace_back(kNoHangupVariable, "1");
  return out;
}

void append_words(std::vector<std::string>& command, const std::string& text) {
  std::istringstream in(text);
  for (std::string word; in >> word;) command.push_back(word);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

double seconds_now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Local ranks: the children of the forking process, in order until the first ones end.
std::map<int, StartedRank> rank_processes(pid_t forking) {
  std::map<int, StartedRank> out;
  std::ifstream list(cat("/proc/", forking, "/task/", forking, "/children"));
  for (pid_t pid; list >> pid;) out[static_cast<int>(out.size())] = {host_name(), pid, pid_namespace()};
  return out;
}

// Supervises one child: forwards signals and terminates the child when required.
class ChildSupervisor {
 public:
  ChildSupervisor(pid_t child, const JobCommand& job, LauncherOutput& output, int grace_s)
      : child_(child),
        job_(job),
        output_(output),
        grace_s_(grace_s),
        watch_(job.limits),
        alone_{{0, {host_name(), child, pid_namespace()}}} {}

  JobEnd until_end(const SignalGate& gate) {
    for (;;) {
      int status;
      const pid_t done = waitpid(child_, &status, WNOHANG);
      if (done == child_) {
        note_signals(gate);
        return end_of(exit_code_of(status));
      }
      if (done < 0 && errno != EINTR) return ours_ = true, JobEnd{static_cast<int>(Exit::kInternal), first_};
      take_signal(gate.wait(guards() ? 0.05 : 0.2));
      if (job_.starter == Starter::kMpirun && first_ == 0) take_signal(pending_stop(child_));
      if (guards()) close_silent_connections(child_);
      poll_ranks();
      poll_verdict();
      poll_recall();
      if (Clock::now() > deadline_) end_now();
    }
  }
  bool recalled() const { return recalled_; }
  // Why this process ended the job before it had started; "" otherwise.
  std::string why_late() const { return late_ ? late_->why : ""; }
  // Whether the exit code was chosen by this process and not by the child.
  bool ours() const { return ours_; }

 private:
  JobEnd end_of(int code) {
    ours_ = ending_;
    // A rank still starting dies of the forwarded SIGUSR1: nothing was lost. A job that cannot resume ends with the
    // signal's code.
    if (first_ != 0 && !ending_ && code == 128 + SIGUSR1 && (!output_.started() || !job_.resumable))
      return ours_ = true, JobEnd{job_.resumable ? static_cast<int>(Exit::kInterrupted) : 128 + first_, first_};
    if (late_) return {late_->code, first_};
    if (ending_ && verdict_found_ && first_ == 0) return {code_of_verdict(output_.verdict()), 0};
    return {ending_ && first_ != 0 ? 128 + first_ : code, first_};
  }

  // Stop signals that came with the end of the job, to all of its processes: a requested stop.
  void note_signals(const SignalGate& gate) {
    for (int n; first_ == 0 && (n = gate.wait(0)) != 0;)
      if (is_stop(n)) first_ = n;
  }

  static bool is_stop(int n) { return n == SIGINT || n == SIGTERM || n == SIGHUP || n == SIGUSR1; }

  void take_signal(int n) {
    if (n == SIGHUP) drop_dead_console();
    if (is_stop(n)) {
      if (requested_ && is_second_request(n, std::chrono::duration<double>(Clock::now() - *requested_).count())) {
        end_now();
      } else if (first_ == 0) {
        first_ = n;
        request_stop();
      }
      if (!requested_ && precedes_second_request(n)) requested_ = Clock::now();
    } else if (n == SIGUSR2) {
      kill(child_, SIGUSR2);
    }
    // mpirun drops signals that arrive before its ranks exist. Repeats are harmless to ranks that already received one.
    if (!ending_ && Clock::now() > repeat_) {
      kill(child_, SIGUSR1);
      repeat_ = Clock::now() + std::chrono::seconds(1);
    }
  }

  void request_stop() {
    kill(child_, SIGUSR1);
    repeat_ = Clock::now() + std::chrono::seconds(1);
    deadline_ = Clock::now() + std::chrono::seconds(grace_s_);
  }

  void poll_recall() {
    if (recalled_ || first_ != 0 || ending_ || verdict_found_ || !job_.recall || !job_.recall(true)) return;
    recalled_ = true;
    request_stop();
  }

  // mpirun reads the first bytes of a connection with a blocking call and starts no rank meanwhile.
  bool guards() const { return job_.starter == Starter::kMpirun && !output_.started(); }

  void poll_ranks() {
    const bool here = job_.starter == Starter::kNone;
    if (ending_ || (!here && !output_.reads())) return;
    const bool started = here || output_.started();
    std::map<int, StartedRank> begun = here ? alone_ : output_.begun();
    // Includes ranks that were stopped before they could report.
    if (!started && job_.starter == Starter::kFork) begun.merge(rank_processes(child_));
    late_ = watch_.check(begun, started, seconds_now());
    if (!late_) return;
    fmt::print(stderr, "gpttrain: {}\n", late_->why);
    end_now();
  }

  void poll_verdict() {
    if (verdict_found_ || output_.verdict().empty()) return;
    verdict_found_ = true;
    // The ranks of a lost machine have nothing left to write, and mpirun would wait for them.
    const bool lost = output_.verdict().rfind("lost: ", 0) == 0;
    const auto grace = lost ? std::min(kLostGrace, std::chrono::milliseconds(1000 * job_.verdict_grace_s))
                            : std::chrono::milliseconds(1000 * job_.verdict_grace_s);
    deadline_ = std::min(deadline_, Clock::now() + grace);
    ending_is_quick_ = lost;
    if (lost && job_.lost) job_.lost(output_.verdict());
  }

  void end_now() {
    if (job_.starter == Starter::kMpirun)
      end_mpirun(child_, ending_);
    else
      kill(child_, ending_ ? SIGKILL : end_signal(job_));
    ending_ = true;
    output_.ends();
    deadline_ = Clock::now() + (ending_is_quick_ ? kLostEnd : kEnd);
  }

  const pid_t child_;
  const JobCommand& job_;
  LauncherOutput& output_;
  const int grace_s_;
  StartWatch watch_;
  const std::map<int, StartedRank> alone_;
  std::optional<StartWatch::End> late_;
  int first_ = 0;                               // first stop signal
  std::optional<Clock::time_point> requested_;  // since when a further one is a second request
  bool ending_ = false, ending_is_quick_ = false, verdict_found_ = false, ours_ = false, recalled_ = false;
  Clock::time_point deadline_ = Clock::time_point::max(), repeat_ = Clock::time_point::max();
};

std::vector<pid_t> living_children() {
  const std::string self = std::to_string(getpid());
  std::ifstream in("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> out;
  for (pid_t pid; in >> pid;) out.push_back(pid);
  return out;
}

// Reaps ranks that outlived mpirun (it was killed) and became our children. They get two seconds to exit, then are
// killed. In a container whose init does not reap, they would remain as zombies.
void end_orphans() {
  const auto begin = Clock::now();
  for (bool killed = false;;) {
    const pid_t done = waitpid(-1, nullptr, WNOHANG);
    if (done < 0 && errno != EINTR) return;  // no children left
    if (done != 0) continue;
    const auto waited = Clock::now() - begin;
    if (waited > std::chrono::seconds(4)) return;
    if (!killed && waited > std::chrono::seconds(2)) {
      for (const pid_t pid : living_children()) kill(pid, SIGKILL);
      killed = true;
    }
    const timespec wait{0, 20'000'000};
    nanosleep(&wait, nullptr);
  }
}

// TCP timeouts for machines that vanish silently (power, cable, a dropping firewall), where mpirun would wait 15 min by
// default. Its connections to other machines, and those of ssh, end 20 s after the last packet; connection attempts
// after 10 s. mpirun forwards both settings to its daemons.
void append_limits(Variables& environment, int ssh_port) {
  environment.emplace_back("OMPI_MCA_oob_tcp_keepalive_time", "5");
  environment.emplace_back("OMPI_MCA_oob_tcp_keepalive_intvl", "3");
  environment.emplace_back("OMPI_MCA_oob_tcp_keepalive_probes", "5");
  environment.emplace_back("OMPI_MCA_plm_rsh_args",
                           cat("-o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
                               ssh_port > 0 ? cat(" -p ", ssh_port) : std::string()));
}

}  // namespace

std::vector<std::string> mpirun_command(int world, const std::string& mpirun, const std::string& program,
                                        const std::vector<std::string>& args, const SpawnOptions& options) {
  // Binding would put all ranks of an oversubscribed machine, and all threads of a rank, on one core each. The kernel
  // schedules better.
  std::vector<std::string> command{mpirun, "--oversubscribe", "--bind-to", "none"};
  if (!options.hosts.empty()) {
    std::string list;
    for (const HostSlots& h : hosts_in_use(options.hosts, world))  // mpirun would contact spares, even dead ones
      list += (list.empty() ? "" : ",") + h.host + ":" + std::to_string(h.slots.size());
    command.insert(command.end(), {"-H", list});
  }
  if (!is_local_only(options.hosts)) {  // ssh forwards no environment
    for (const char* name : {"GPTTRAIN_LAUNCHED", "GPTTRAIN_COLUMNS", kSlotsVariable, kReportsVariable})
      command.insert(command.end(), {"-x", name});
    if (ignores_hangup()) command.insert(command.end(), {"-x", kNoHangupVariable});
    for (const auto& [name, value] : options.variables) command.insert(command.end(), {"-x", name});
  }
  append_words(command, options.launcher_args);
  command.insert(command.end(), {"-n", std::to_string(world), program});
  command.insert(command.end(), args.begin(), args.end());
  return command;
}

std::vector<std::string> srun_command(int world, const std::string& srun, const std::string& program,
                                      const std::vector<std::string>& args, const SpawnOptions& options) {
  std::vector<std::string> command{srun, "--ntasks=" + std::to_string(world), "--mpi=pmix", "--kill-on-bad-exit=1"};
  if (!options.hosts.empty()) {
    std::string list;
    for (const HostSlots& h : options.hosts) {
      list += (list.empty() ? "" : ",") + h.host;
      GT_REQUIRE(h.slots.size() == options.hosts[0].slots.size(), Exit::kUsage, "launch.launcher: slurm gives every ",
                 "machine as many ranks, but ", options.hosts[0].host, " has ", options.hosts[0].slots.size(),
                 " chosen slots and ", h.host, " ", h.slots.size(), "; choose as many, or use openmpi");
    }
    command.insert(command.end(),
                   {"--nodes=" + std::to_string(options.hosts.size()), "--nodelist=" + list,
                    "--ntasks-per-node=" + std::to_string(options.hosts[0].slots.size()), "--distribution=block"});
  }
  // Slurm fills one machine first by default, which may split a TP group.
  if (const char* nodes = std::getenv("SLURM_JOB_NUM_NODES"); nodes != nullptr && options.hosts.empty())
    if (const int n = std::atoi(nodes); n > 0 && world % n == 0)
      command.push_back("--ntasks-per-node=" + std::to_string(world / n));
  append_words(command, options.launcher_args);
  command.push_back(program);
  command.insert(command.end(), args.begin(), args.end());
  return command;
}

std::vector<std::pair<std::string, std::string>> mpirun_environment(int world, int cores, int columns) {
  Variables env = own_variables(columns);
  for (const char* name :
       {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PMIX_MCA_pcompress_base_silence_warning"})
    env.emplace_back(name, "1");
  if (world > cores) env.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
  if (!may_read_other_processes()) env.emplace_back("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  return env;
}

SpawnOptions spawn_options(const Config& config) {
  const LaunchConfig& launch = config.launch;
  SpawnOptions o;
  o.interface = config.comm.interface;
  o.start_timeout_s = launch.start_timeout_s;
  o.stall_abort_s = config.comm.stall_abort_s;
  o.threads = static_cast<int>(std::max<int64_t>(1, config.device.threads));
  o.grace_s = static_cast<int>(launch.grace_s);
  o.hosts = chosen_hosts(launch);
  o.slurm = launch.launcher == Launcher::kSlurm;
  o.launcher_args = launch.launcher_args;
  o.ssh_port = static_cast<int>(launch.ssh_port);
  o.variables = read_env_files().variables;
  return o;
}

namespace {

StartLimits start_limits(int world, const SpawnOptions& options) {
  StartLimits limits{.world = world, .start_s = options.start_timeout_s, .hosts = options.hosts};
  const bool one_machine = !options.slurm && is_local_only(options.hosts);
  if (limits.start_s <= 0) limits.start_s = default_start_seconds(world, one_machine);
  limits.frozen_abort_s = options.stall_abort_s;
  // Start reports do not reach this process if the user's launcher arguments redirect the output of ranks.
  if (options.launcher_args.find("output") != std::string::npos || options.launcher_args.find("--error") == 0 ||
      options.launcher_args.find("xterm") != std::string::npos)
    limits.start_s = 0;
  return limits;
}

// Completes the command of a job on several machines.
void use_launcher(JobCommand& job, int world, const std::string& program, const std::vector<std::string>& args,
                  const SpawnOptions& options) {
  const char* starter = options.slurm ? "srun" : "mpirun";
  std::string path = find_program(starter);
  if (path.empty() && options.only_shown) path = starter;
  GT_REQUIRE(!path.empty(), Exit::kUsage, "starting ", world, " ranks needs ", starter, ", which is not in PATH; ",
             "run on a machine of the Slurm cluster, or use --launcher openmpi");
  job.words = (options.slurm ? srun_command : mpirun_command)(world, path, program, args, options);
  job.environment = mpirun_environment(world, options.cores > 0 ? options.cores : usable_cores(), terminal_width());
  for (auto& variable : remote_network(options.interface)) job.environment.push_back(variable);
  if (!options.slurm) append_limits(job.environment, options.ssh_port);
}

}  // namespace

JobCommand job_command(int world, bool here, const std::vector<std::string>& args, const SpawnOptions& options) {
  const bool fork = !here && !options.slurm && is_local_only(options.hosts);
  JobCommand job;
  const bool mpirun = options.only_shown || !find_program("mpirun").empty();
  job.starter = here            ? Starter::kNone
                : fork          ? Starter::kFork
                : options.slurm ? Starter::kSrun
                : mpirun        ? Starter::kMpirun
                                : Starter::kSsh;
  job.variables = options.variables;
  job.threads = options.threads;
  job.resumable = options.resumable;
  std::string program = options.program;
  if (program.empty()) program = own_program();
  GT_REQUIRE(!program.empty(), Exit::kUsage,
             "the path of this program is unknown: mount /proc, or start it by its "
             "absolute path");
  job.limits = start_limits(world, options);
  if (here || fork || job.starter == Starter::kSsh) {
    job.words = {program};
    job.words.insert(job.words.end(), args.begin(), args.end());
    job.environment = own_variables(terminal_width());
  } else {
    use_launcher(job, world, program, args, options);
  }
  if (job.starter == Starter::kSsh) job.hosts = hosts_in_use(options.hosts, world), job.ssh_port = options.ssh_port;
  // Slurm orders machines itself and assigns their GPUs.
  if (!options.hosts.empty() && !here && !options.slurm)
    job.environment.emplace_back(kSlotsVariable, slots_text(options.hosts));
  return job;
}

std::string command_line(const JobCommand& job) {
  std::string out;
  if (job.starter != Starter::kMpirun && job.starter != Starter::kSrun) return out;
  for (const std::string& word : job.words) out += (out.empty() ? "" : " ") + shell_word(word);
  return out;
}

SignalGate::SignalGate() {
  sigemptyset(&signals_);
  for (const int n : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction now {};
    sigaction(n, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&signals_, n);  // nohup ignores SIGHUP; blocking it would deliver it
  }
  GT_CHECK(sigprocmask(SIG_BLOCK, &signals_, &before_) == 0);
  prctl(PR_GET_CHILD_SUBREAPER, &was_reaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

SignalGate::~SignalGate() {
  prctl(PR_SET_CHILD_SUBREAPER, was_reaper_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalGate::wait(double seconds) const {
  const auto whole = static_cast<time_t>(seconds);
  const timespec limit{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  const int n = sigtimedwait(&signals_, nullptr, &limit);
  return n > 0 ? n : 0;
}

JobEnd run_job(const JobCommand& job, const SignalGate& gate, int grace_s) {
  const bool here = job.starter == Starter::kNone;
  if (job.starter == Starter::kFork) require_limits(job.limits.world, job.threads);
  const StraySegments strays;
  LauncherOutput output;
  const pid_t parent = getpid(), child = fork();
  if (child == 0) run_child(job, output, gate.before(), parent);
  GT_REQUIRE(child > 0, Exit::kInternal, "starting ", job.words[0], ": fork: ", std::strerror(errno));
  setpgid(child, child);  // in parent and child, whichever runs first
  const bool mpirun = job.starter == Starter::kMpirun;
  std::optional<MpirunGuard> guard;
  if (mpirun) guard.emplace(child);  // before this process has threads
  output.start(child);
  ChildSupervisor done(child, job, output, grace_s);
  JobEnd end = done.until_end(gate);
  guard.reset();
  if (mpirun) remove_mpirun_files(child);  // if it was killed
  end.recalled = done.recalled();
  if (job.recall) job.recall(false);
  if (job.lost) job.lost("");
  end_orphans();
  output.finish();
  end.started = here || output.started();
  end.verdict = done.why_late().empty() ? output.verdict() : done.why_late();
  if (!done.ours() && !here) {
    const LauncherEnd known = code_of_launcher(end.code, output.started(), output.error(), end.verdict);
    if (!known.text.empty()) fmt::print(stderr, "gpttrain: {}\n", known.text);
    end.code = known.code;
  }
  return end;
}

int launch_ranks(int world, const std::vector<std::string>& args, const SpawnOptions& options) {
  GT_CHECK(world > 1 || !is_local_only(options.hosts), "one rank of this machine needs no launcher");
  const JobCommand job = job_command(world, false, args, options);
  const SignalGate gate;
  if (stop_requested()) return static_cast<int>(Exit::kInterrupted);  // received before the gate existed
  if (!options.slurm) require_ready_hosts(hosts_in_use(options.hosts, world), options.ssh_port);
  const JobEnd end = run_job(job, gate, options.grace_s);
  if (!end.started && end.stopped == 0 && end.code == static_cast<int>(Exit::kIo) && !options.slurm)
    for (const auto& [host, why] : unreachable_hosts(options.hosts, options.ssh_port))
      fmt::print(stderr, "gpttrain: {} does not answer ssh: {}\n", host, why);
  return end.code;
}

}  // namespace gt
