#include "launch/ranks/spawn.h"

#include <fcntl.h>
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
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/config/config.h"
#include "launch/logs/console.h"
#include "launch/ranks/bundle.h"
#include "launch/ranks/job_folder.h"
#include "launch/ranks/rank_slots.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;

std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  const std::string_view all = path ? path : "/usr/local/bin:/usr/bin:/bin";
  for (size_t i = 0; i <= all.size();) {
    const size_t end = std::min(all.find(':', i), all.size());
    const std::string file = std::string(end > i ? all.substr(i, end - i) : ".") + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    i = end + 1;
  }
  return "";
}

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Whether one process may read another's memory: where a container forbids it, Open MPI's shared-memory transport
// complains at every large message unless it is told not to try.
bool may_read_other_processes() {
  char from = 1, to = 0;
  const iovec local{&to, 1}, remote{&from, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

[[noreturn]] void run_child(const JobCommand& job, const std::string& folder, const sigset_t& mask, pid_t parent) {
  setpgid(0, 0);  // the terminal's Ctrl-C is for the parent alone
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(128 + SIGTERM);  // it died before we could say so
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  signal(SIGUSR2, SIG_IGN);  // asks what the ranks do; one that is not far enough to answer must not die of it
  if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  for (const auto& [name, value] : job.variables) setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 0);
  if (job.local_mpi && !folder.empty())
    for (const char* name : {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_orte_tmpdir_base"})
      setenv(name, folder.c_str(), 0);
  std::vector<char*> argv;
  for (const std::string& word : job.words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  constexpr char kText[] = "gpttrain: mpirun could not be started\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(127);
  _exit(127);
}

void append_words(std::vector<std::string>& command, const std::string& text) {
  std::istringstream in(text);
  for (std::string word; in >> word;) command.push_back(word);
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Code of a job that was ended because of what its ranks wrote there.
int code_of_verdict(const std::string& file) {
  std::string word;
  std::ifstream(file) >> word;
  return static_cast<int>(word == "stalled:" || word == "lost:" ? Exit::kHang : Exit::kInternal);
}

// Waits for the child, passing on signals.
JobEnd attend(pid_t child, const JobCommand& job, const SignalGate& gate, int grace_s) {
  int first = 0;
  bool ending = false, judged = false;
  auto deadline = Clock::time_point::max(), repeat = Clock::time_point::max();
  const auto end_now = [&] {
    kill(child, ending ? SIGKILL : SIGTERM);
    ending = true;
    deadline = Clock::now() + std::chrono::seconds(3);
  };
  for (;;) {
    int status;
    const pid_t done = waitpid(child, &status, WNOHANG);
    if (done == child) {
      const int code = exit_code_of(status);
      // A rank that was still starting dies of the SIGUSR1 that asked it to stop: nothing was lost.
      if (first != 0 && !ending && code == 128 + SIGUSR1) return {static_cast<int>(Exit::kInterrupted), first};
      if (ending && judged && first == 0) return {code_of_verdict(job.verdict_file), 0};
      return {ending && first != 0 ? 128 + first : code, first};
    }
    if (done < 0 && errno != EINTR) return {static_cast<int>(Exit::kInternal), first};
    const int n = gate.wait(0.2);
    if (n == SIGINT || n == SIGTERM || n == SIGHUP || n == SIGUSR1) {
      if (first == 0) {
        first = n;
        kill(child, SIGUSR1);
        repeat = Clock::now() + std::chrono::seconds(1);
        deadline = Clock::now() + std::chrono::seconds(grace_s);
      } else if (n != SIGUSR1) {
        end_now();
      }
    } else if (n == SIGUSR2) {
      kill(child, SIGUSR2);
    }
    // mpirun drops what comes before it has ranks to pass it on to; to a rank that has heard it a second one says
    // nothing.
    if (!ending && Clock::now() > repeat) {
      kill(child, SIGUSR1);
      repeat = Clock::now() + std::chrono::seconds(1);
    }
    if (!judged && !job.verdict_file.empty() && access(job.verdict_file.c_str(), F_OK) == 0) {
      judged = true;
      deadline = std::min(deadline, Clock::now() + std::chrono::seconds(job.verdict_grace_s));
    }
    if (Clock::now() > deadline) end_now();
  }
}

std::vector<pid_t> living_children() {
  const std::string self = std::to_string(getpid());
  std::ifstream in("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> out;
  for (pid_t pid; in >> pid;) out.push_back(pid);
  return out;
}

// After mpirun: ranks that outlived it (it was killed) have become our children. They get a moment to notice, then they
// are ended; in a container whose first process reaps nobody they would stay as zombies.
void end_orphans() {
  const auto begin = Clock::now();
  for (bool killed = false;;) {
    const pid_t done = waitpid(-1, nullptr, WNOHANG);
    if (done < 0 && errno != EINTR) return;  // none left
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

// A machine that vanishes without a word (power, cable, a firewall that drops) must not keep mpirun waiting for the
// quarter of an hour that TCP takes by default: its connections to other machines, and ssh's, end 20 s after the last
// sign of life, an attempt to reach one after 10. mpirun passes both on to its daemons.
void append_limits(Variables& environment, int ssh_port) {
  environment.emplace_back("OMPI_MCA_oob_tcp_keepalive_time", "5");
  environment.emplace_back("OMPI_MCA_oob_tcp_keepalive_intvl", "3");
  environment.emplace_back("OMPI_MCA_oob_tcp_keepalive_probes", "5");
  environment.emplace_back("OMPI_MCA_plm_rsh_args",
                           cat("-o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3",
                               ssh_port > 0 ? cat(" -p ", ssh_port) : std::string()));
}

}  // namespace

bool started_by_launch_ranks() { return std::getenv("GPTTRAIN_LAUNCHED") != nullptr; }

std::vector<std::string> mpirun_command(int world, const std::string& mpirun, const std::string& program,
                                        const std::vector<std::string>& args, const SpawnOptions& options) {
  // Binding would put all ranks of an oversubscribed machine, and all threads of a rank, on one core each; the system
  // does better.
  std::vector<std::string> command{mpirun, "-q", "--oversubscribe", "--bind-to", "none"};
  if (!options.hosts.empty()) {
    std::string list;
    for (const HostSlots& h : hosts_in_use(options.hosts, world))  // mpirun would go to a spare too, alive or not
      list += (list.empty() ? "" : ",") + h.host + ":" + std::to_string(h.slots.size());
    command.insert(command.end(), {"-H", list});
  }
  if (!only_here(options.hosts)) {  // ssh brings no environment
    for (const char* name : {"GPTTRAIN_LAUNCHED", "GPTTRAIN_COLUMNS", kSlotsVariable})
      command.insert(command.end(), {"-x", name});
    if (!options.verdict_file.empty()) command.insert(command.end(), {"-x", kVerdictVariable});
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
  append_words(command, options.launcher_args);
  command.push_back(program);
  command.insert(command.end(), args.begin(), args.end());
  return command;
}

std::vector<std::pair<std::string, std::string>> mpirun_environment(int world, int cores, int columns) {
  std::vector<std::pair<std::string, std::string>> env{
      {"GPTTRAIN_LAUNCHED", "1"},
      {"GPTTRAIN_COLUMNS", std::to_string(columns)},
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"OMPI_MCA_plm", "isolated"},  // one machine: no ssh needed
      {"PMIX_MCA_pcompress_base_silence_warning", "1"},
  };
  if (world > cores) env.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
  if (!may_read_other_processes()) env.emplace_back("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  return env;
}

bool only_here(const std::vector<HostSlots>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [](const HostSlots& h) { return is_this_machine(h.host); });
}

SpawnOptions spawn_options(const LaunchConfig& launch) {
  SpawnOptions o;
  o.grace_s = static_cast<int>(launch.grace_s);
  o.hosts = chosen_hosts(launch);
  o.slurm = launch.launcher == "slurm";
  o.launcher_args = launch.launcher_args;
  o.ssh_port = static_cast<int>(launch.ssh_port);
  o.variables = read_env_files().variables;
  return o;
}

JobCommand job_command(int world, bool here, const std::vector<std::string>& args, const SpawnOptions& options) {
  JobCommand job;
  job.variables = options.variables;
  job.verdict_file = options.verdict_file;
  std::string program = options.program;
  if (program.empty()) program = std::filesystem::read_symlink("/proc/self/exe").string();
  if (here) {
    job.words = {program};
    job.words.insert(job.words.end(), args.begin(), args.end());
    job.environment = {{"GPTTRAIN_LAUNCHED", "1"}};
    if (!options.verdict_file.empty()) job.environment.emplace_back(kVerdictVariable, options.verdict_file);
    return job;
  }
  job.local_mpi = !options.slurm && only_here(options.hosts);
  const char* starter = options.slurm ? "srun" : "mpirun";
  const std::string bundle = options.slurm ? "" : bundle_folder();
  std::string path = bundle.empty() ? find_in_path(starter) : bundle + "/bin/mpirun";
  if (path.empty() && options.only_shown) path = starter;
  GT_REQUIRE(!path.empty(), Exit::kUsage, "starting ", world, " ranks needs ", starter, ", which is not in PATH; ",
             options.slurm ? "run on a machine of the Slurm cluster, or use --launcher openmpi"
                           : "install it (Debian: apt-get install openmpi-bin)",
             ", or run all ranks in one process with --launch.ranks threads");
  job.words = (options.slurm ? srun_command : mpirun_command)(world, path, program, args, options);
  job.environment = mpirun_environment(world, options.cores > 0 ? options.cores : usable_cores(), terminal_width());
  // Slurm orders machines as it likes and hands out their GPUs itself.
  if (!options.hosts.empty() && !options.slurm) job.environment.emplace_back(kSlotsVariable, slots_text(options.hosts));
  if (options.slurm || !only_here(options.hosts))  // others are reached by ssh, or by Slurm
    std::erase_if(job.environment, [](const auto& e) { return e.first == "OMPI_MCA_plm"; });
  if (!options.verdict_file.empty()) job.environment.emplace_back(kVerdictVariable, options.verdict_file);
  if (!options.slurm && !only_here(options.hosts)) append_limits(job.environment, options.ssh_port);
  return job;
}

std::string command_line(const JobCommand& job) {
  std::string out;
  for (const std::string& word : job.words) {
    const bool plain = !word.empty() && word.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789-_=+./:,@%") == std::string::npos;
    std::string quoted = word;
    for (size_t i = 0; (i = quoted.find('\'', i)) != std::string::npos; i += 4) quoted.replace(i, 1, "'\\''");
    out += (out.empty() ? "" : " ") + (plain ? word : "'" + quoted + "'");
  }
  return out;
}

SignalGate::SignalGate() {
  sigemptyset(&signals_);
  for (const int n : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction now {};
    sigaction(n, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&signals_, n);  // nohup ignores SIGHUP; a blocked one would come through
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
  const JobFolder folder;
  const pid_t parent = getpid(), child = fork();
  if (child == 0) run_child(job, folder.path(), gate.before(), parent);
  GT_REQUIRE(child > 0, Exit::kInternal, "starting ", job.words[0], ": fork: ", std::strerror(errno));
  setpgid(child, child);  // both sides do it: whoever is first
  const JobEnd end = attend(child, job, gate, grace_s);
  end_orphans();
  GT_REQUIRE(end.code != 127, Exit::kUsage, job.words[0], " or what it starts could not be started (exit code 127)");
  return end;
}

int launch_ranks(int world, const std::vector<std::string>& args, const SpawnOptions& options) {
  GT_CHECK(world > 1 || !only_here(options.hosts), "one rank of this machine needs no launcher");
  const JobCommand job = job_command(world, false, args, options);
  const SignalGate gate;
  return run_job(job, gate, options.grace_s).code;
}

}  // namespace gt
