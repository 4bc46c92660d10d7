// Job start as observed by the parent: reports of ranks, mpirun's messages, time limits, limits of the machine.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/commands/cli.h"
#include "launch/config/config_hosts.h"
#include "launch/hosts/network.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/remote_ranks.h"
#include "launch/ranks/start/spawn.h"
#include "launch/ranks/start/start_limits.h"
#include "launch/ranks/start/start_watch.h"
#include "parallel/comm/watch/comm_board.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const std::string kDashes(74, '-');

// Returns what reaches standard error from a child that runs `body` with this filter.
template <class F>
std::string through(LauncherOutput& output, F&& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int before = dup(STDERR_FILENO);
  const pid_t child = fork();
  if (child == 0) {
    output.redirect_child();
    body();
    _exit(0);
  }
  dup2(ends[1], STDERR_FILENO);
  output.start(child);
  waitpid(child, nullptr, 0);
  output.finish();
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  return out;
}

void print(const std::string& text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(1);
}

bool is_running(pid_t pid) { return timeslices_of(pid) > 0; }

}  // namespace

TEST_CASE("reports of ranks are filtered out of their output, all else is forwarded") {
  LauncherOutput output;
  const std::string out = through(output, [] {
    print("one\n");
    report_start(3);
    print("half a line");
    report_started();
    print("two\n" + kDashes + "\nmpirun noticed that process rank 1 with PID 5 exited\n" + kDashes + "\n");
    print("mpirun: Forwarding signal 10 to job\n" + kDashes + "\nsomething nobody knows\n" + kDashes + "\nthree");
  });
  CHECK(out == "one\nhalf a linetwo\n" + kDashes + "\nsomething nobody knows\n" + kDashes + "\nthree");
  REQUIRE(output.begun().count(3) == 1);
  const StartedRank r = output.begun().at(3);
  CHECK((r.host == host_name() && r.pid > 0 && r.pid_namespace == pid_namespace()));
  CHECK(output.started());
  CHECK(output.error().text.empty());
}

TEST_CASE("the first verdict counts and messages of mpirun about its own end after it are left out") {
  LauncherOutput output;
  const std::string out = through(output, [] {
    const std::string crash = cat("[node1:0", getpid(), "] *** Process received signal ***\n");
    print(crash);
    report_verdict("lost: node2\nmore");
    report_verdict("rank 0 died");
    print("mpirun: abort is already in progress...hit ctrl-c again to forcibly terminate\n\n" + crash);
    print("[node1:1] *** Process received signal ***\nthe end\n");
  });
  CHECK(output.verdict() == "lost: node2");
  CHECK_THAT(out.substr(0, out.find('\n')), Contains("Process received signal"));
  CHECK(out.substr(out.find('\n') + 1) == "[node1:1] *** Process received signal ***\nthe end\n");
}

TEST_CASE("a rank that dies of a signal on another machine is named by its launcher's message", "[R11]") {
  LauncherOutput output;
  const std::string out = through(output, [] {
    print(kDashes + "\nmpirun noticed that process rank 2 with PID 0 on node node3 exited on signal 9 (Killed).\n" +
          kDashes + "\n");
    report_verdict("rank 1 (node2 pid 5) died: step 3");  // a consequence
  });
  CHECK(output.verdict() == "rank 2 (node3) died of SIGKILL");
  CHECK(out == "gpttrain: rank 2 (node3) died of SIGKILL\n");
  const auto verdict = [](const std::string& text) { return read_block(text).verdict; };
  CHECK(verdict("mpirun noticed that process rank 0 with PID 71 on node a-1 exited on signal 11.") ==
        "rank 0 (a-1 pid 71) died of SIGSEGV");
  CHECK(verdict("mpirun noticed that process rank x with PID 1 on node a exited on signal 9 (Killed).") == "");
  CHECK(verdict("mpirun noticed that the job aborted, but has no info as to the process") == "");
  CHECK(verdict("ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node node1\n"
                "  Remote daemon: [[1,0],2] on node node3\n") ==
        "lost: node3: the connection to its Open MPI daemon ended");
  CHECK(verdict_of_line("srun: error: node2: task 3: Killed\n") == "rank 3 (node2) died: Killed");
  CHECK(verdict_of_line("srun: error: node2: task 3: Exited with exit code 74\n") == "");
  CHECK(verdict_of_line("node2: task 3: Killed\n") == "");
  CHECK(verdict_of_line("Connection to node3 closed by remote host.\n") ==
        "lost: node3: the connection to its Open MPI daemon ended");
  CHECK(verdict_of_line("Connection to node3 closed.\n") == "");
}

TEST_CASE("a rank that dies on another host without MPI is named with that host", "[R11]") {
  LauncherOutput output;
  through(output, [] {
    print("\x1egpttrain-report 1 61 7 node3 pp1 dp0 tp0\n");
    report_end(1, 61, "died of SIGKILL");
  });
  CHECK(output.verdict() == "rank 1 (node3 pid 61, pp1 dp0 tp0) died of SIGKILL");
}

TEST_CASE("an error shared by several ranks of a machine is printed once, with the machine and the ranks") {
  LauncherOutput output;
  const std::string out = through(output, [] {
    CHECK(report_failed(2, "data.train: local/x.bin: no such file\nnothing was started"));
    report_failed(3, "data.train: local/x.bin: no such file\nnothing was started");
  });
  CHECK(out ==
        cat("gpttrain: ", host_name(), ", ranks 2, 3: data.train: local/x.bin: no such file\nnothing was started\n"));
  CHECK_FALSE(report_failed(2, "x"));
}

TEST_CASE("a program missing on one machine: its name, the machine, code 2") {
  LauncherOutput output;
  const std::string out = through(output, [] {
    print(kDashes +
          "\nmpirun was unable to launch the specified application as it could not access\nor execute an "
          "executable:\n\nExecutable: /opt/x/gpttrain\nNode: node2\n\nwhile attempting to start process rank 2.\n" +
          kDashes + "\n");
  });
  CHECK(out.empty());
  const LauncherEnd end = code_of_launcher(132, output.started(), output.error());
  CHECK(end.code == static_cast<int>(Exit::kUsage));
  CHECK_THAT(end.text, Contains("node2") && Contains("/opt/x/gpttrain"));
}

TEST_CASE("mpirun's own exit codes are mapped to those of our table") {
  const auto code = [](int n, bool started) { return code_of_launcher(n, started, {}).code; };
  for (const int n : {1, 205, 213, 255}) CHECK(code(n, false) == static_cast<int>(Exit::kIo));
  for (const int n : {1, 205, 213, 255}) CHECK(code(n, true) == static_cast<int>(Exit::kIo));  // ranks never end with 1
  for (const int n : {126, 127}) CHECK(code(n, false) == static_cast<int>(Exit::kUsage));
  for (const int n : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    CHECK(code(128 + n, false) == static_cast<int>(Exit::kInterrupted));
    CHECK(code(128 + n, true) == 128 + n);
  }
  for (const int n : {1, 205, 213, 255}) {  // mpirun noticed a lost machine after the ranks, and ended before we did
    const LauncherEnd lost = code_of_launcher(n, true, {}, "lost: no sign of life from rank 1 (node2 pid 218)");
    CHECK(lost.code == static_cast<int>(Exit::kHang));
    CHECK(lost.text == "");
    CHECK(code_of_launcher(n, true, {}, "rank 3: an internal error").code == static_cast<int>(Exit::kInternal));
  }
  for (const bool started : {false, true})
    for (const int n : {0, 2, 16, 17, 65, 70, 74, 75, 124, 128 + SIGKILL, 128 + SIGSEGV}) CHECK(code(n, started) == n);
}

TEST_CASE("ranks that do not start in time end the job, named with their machine") {
  const std::vector<HostSlots> hosts = {{"node1", {0, 1}}, {"node2", {0, 1}}};
  const StartLimits limits{.world = 4, .start_s = 30, .hosts = hosts};
  const std::map<int, StartedRank> two{{0, {"node1", 10, 1}}, {1, {"node1", 11, 1}}};
  StartWatch watch(limits);
  for (int t = 0; t <= 30; ++t) CHECK_FALSE(watch.check(two, false, 100 + t));
  const auto end = watch.check(two, false, 131);
  REQUIRE(end);
  CHECK(end->code == static_cast<int>(Exit::kIo));
  CHECK_THAT(end->why, Contains("within 30 s on node2: no report from ranks 2, 3"));

  StartWatch slept(limits);  // the whole machine was suspended
  CHECK_FALSE(slept.check(two, false, 100));
  CHECK_FALSE(slept.check(two, false, 100 + 3600));
  StartWatch fine(limits);
  for (int t = 0; t <= 100; ++t) CHECK_FALSE(fine.check(two, t > 20, 100 + t));
}

TEST_CASE("a stopped process is named while ranks start, and later when all of them stall") {
  const auto child = [] {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // also if a check below ends the test
      for (;;) usleep(5000);
    }
    return pid;
  };
  const pid_t stopped = child(), lively = child();
  kill(stopped, SIGSTOP);
  for (int i = 0; i < 2000 && (state_of(stopped) != 'T' || !is_running(lively)); ++i) usleep(10000);
  REQUIRE(state_of(stopped) == 'T');
  REQUIRE(is_running(lively));
  const StartedRank still{host_name(), stopped, pid_namespace()}, moves{host_name(), lively, pid_namespace()};
  const StartLimits limits{.world = 2, .start_s = 1000, .frozen_warn_s = 2, .frozen_abort_s = 13};
  // Seconds of the watch's clock until it ends the job; each takes a moment of real time, so that the other process
  // runs.
  const auto ends_at = [&](const std::map<int, StartedRank>& ranks, bool started) {
    StartWatch watch(limits);
    for (int t = 0; t < 30; ++t) {
      if (const auto end = watch.check(ranks, started, 100.0 + t)) {
        CHECK(end->code == static_cast<int>(Exit::kHang));
        CHECK_THAT(end->why, Contains(cat("rank 0 (", host_name(), " pid ", stopped, ") is stopped")));
        return t;
      }
      usleep(50000);
    }
    return -1;
  };
  CHECK(ends_at({{0, still}, {1, moves}}, false) == 13);
  CHECK(ends_at({{0, still}, {1, moves}}, true) == -1);  // rank 1 will report it
  CHECK(ends_at({{0, still}}, true) == 13);
  for (const pid_t pid : {stopped, lively}) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

TEST_CASE("limits below a start's needs: found and needed, each") {
  const MachineLimits small{.shared_memory = 8 << 20,
                            .files = 40,
                            .tasks = 6,
                            .tasks_from = "ulimit -u 6",
                            .addresses = 100000 << 10,
                            .addresses_used = 50 << 20};
  const std::vector<std::string> bad = lacking(small, 4, 1);
  REQUIRE(bad.size() == 4);
  CHECK_THAT(bad[0], Contains("/dev/shm has 8.0 MiB free, 4 ranks need 16.0 MiB"));
  CHECK_THAT(bad[1], Contains("40 open files, 4 ranks need 68"));
  CHECK_THAT(bad[2], Contains("6 more threads") && Contains("ulimit -u 6") && Contains("need 37"));
  CHECK_THAT(bad[3], Contains("97.7 MiB of address space") && Contains("ulimit -v"));
  CHECK(lacking({}, 4096, 8).empty());
  CHECK(lacking(machine_limits(), 2, 1).empty());
  CHECK(machine_limits().shared_memory > 0);
}

TEST_CASE("a soft limit of open files is raised to the hard limit") {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit l{40, 4096};
    setrlimit(RLIMIT_NOFILE, &l);
    require_limits(8, 1);
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    _exit(now.rlim_cur == 72 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("ranks of one machine use no network, those of several the configured interface") {
  const auto value = [](const Variables& all, const std::string& name) {
    for (const auto& [n, v] : all)
      if (n == name) return v;
    return std::string();
  };
  const JobCommand here = job_command(2, false, {"a"}, {.program = "/bin/true", .cores = 2});
  CHECK(here.starter == Starter::kFork);
  CHECK(here.words == std::vector<std::string>{"/bin/true", "a"});
  SpawnOptions far{.program = "/bin/true", .cores = 2, .hosts = {{"node1", {0}}, {"node2", {0}}}};
  far.interface = "10.1.0.0/16";
  const JobCommand there = job_command(2, false, {}, far);
  CHECK(value(there.environment, "OMPI_MCA_btl") == "");
  CHECK(value(there.environment, "OMPI_MCA_btl_tcp_if_include") == "10.1.0.0/16");
  CHECK(value(there.environment, "OMPI_MCA_oob_tcp_if_include") == "10.1.0.0/16");
  for (const char* good : {"", "eth0", "ib0.8001", "10.0.0.0/8"}) CHECK(bad_interface(good).empty());
  for (const char* bad : {"-x", "eth0,eth1", "10.0.0.0/33", "10.0.0/8", "a b", "anamethatistoolong"})
    CHECK_FALSE(bad_interface(bad).empty());
  CHECK(interface_here("127.0.0.0/8") == "lo");
  CHECK_THROWS_WITH(interface_here("nosuch0"), Contains("nosuch0") && Contains("lo 127.0.0.1"));
}

TEST_CASE("a launcher's arguments may begin with dashes") {
  const Command c = parse_command(
      {"--data.train", "mock", "--launcher_args", "--exclude=node2 -N2", "--launch.launcher", "slurm"}, {});
  CHECK(c.loaded.config.launch.launcher_args == "--exclude=node2 -N2");
  CHECK(c.loaded.config.launch.exclude.empty());
}

TEST_CASE("ranks per machine follow Slurm's list, srun fills machines evenly") {
  CHECK(tasks_per_node("2(x2),1") == std::vector<int>{2, 2, 1});
  CHECK(tasks_per_node("4") == std::vector<int>{4});
  setenv("SLURM_JOB_NUM_NODES", "2", 1);
  const auto command = srun_command(8, "srun", "gpttrain", {});
  unsetenv("SLURM_JOB_NUM_NODES");
  CHECK(std::find(command.begin(), command.end(), "--ntasks-per-node=4") != command.end());
}

TEST_CASE("without mpirun the ranks of several machines start over ssh", "[R11]") {
  const TempDir empty;
  const std::string path = getenv("PATH");
  setenv("PATH", empty.path().c_str(), 1);
  SpawnOptions far{.program = "/bin/true", .cores = 2, .hosts = {{"a", {0, 1}}, {"b", {0}}, {"spare", {0}}}};
  const JobCommand job = job_command(3, false, {"x"}, far);
  setenv("PATH", path.c_str(), 1);
  CHECK(job.starter == Starter::kSsh);
  CHECK(job.words == std::vector<std::string>{"/bin/true", "x"});
  REQUIRE(job.hosts.size() == 2);
  CHECK(job.hosts[1].host == "b");
  CHECK(command_line(job).empty());
}

TEST_CASE("an agent of a host forks its ranks and kills them at the end of its requests", "[R11]") {
  const HostRanks ranks = parse_host_ranks(to_text({.first = 2, .count = 4, .world = 8, .resumable = false}));
  CHECK((ranks.first == 2 && ranks.count == 4 && ranks.world == 8 && !ranks.resumable));
  for (const char* bad : {"", "1", "0 0 2 1", "0 3 2 1", "-1 1 2 1", "0 2 2 2", "0 2 2 1x", "99999999999 1 2 1"}) {
    INFO(bad);
    CHECK_THROWS_WITH(parse_host_ranks(bad), Contains(kAgentVariable));
  }
  const TempDir dir;
  const std::string run = binary_dir() +
                          "/gpttrain --model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 "
                          "--model.seq 8 --data.train mock --train.global_batch 4 --device.kind cpu --dp 2 "
                          "--train.steps 1000000 --log.name x --log.tensorboard false";
  const std::string agent = cat("GPTTRAIN_AGENT='0 2 2 1' ", run, " >out.txt 2>&1; echo code $?");
  const std::string stepped =
      "for i in $(seq 600); do grep -q '\"step\"' runs/x/log.jsonl 2>/dev/null && break; sleep 0.1; done";
  Outcome r = shell("{ printf 'A=1\\0\\0'; " + stepped + "; } | { " + agent + "; }", dir.path());
  CHECK(r.prints("code 137"));  // both ranks were killed
  const std::string until_done = "; for i in $(seq 600); do [ -e done ] && break; sleep 0.1; done";
  r = shell(
      "rm -rf runs; { printf '\\0'; " + stepped + "; printf S" + until_done + "; } | { " + agent + "; touch done; }",
      dir.path());
  CHECK(r.prints("code 75"));  // a request to stop: they saved
  r = shell("printf 'A' | " + agent + "; cat out.txt", dir.path());
  CHECK(r.prints("code 74"));
  CHECK(r.prints("the variables of this host's ranks end early"));
}
