// Starting ranks: exit codes, environment, signals. The ranks are shells.
#include "launch/ranks/start/spawn.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/start/mpirun_end.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

int run_shell(int world, const std::string& script) {
  // A shell cannot trap a signal that it was started with as ignored.
  return launch_ranks(world, {"--default-signal=USR1", "/bin/sh", "-c", script}, {.program = "/usr/bin/env"});
}

std::string temp_file() {
  return (std::filesystem::temp_directory_path() / ("gpt_spawn_test_" + std::to_string(getpid()))).string();
}

std::string read_all(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs `body` in a child process, sends the signals in order once the file holds `ready` bytes, and returns the child's
// exit status. pause_ms: between two signals, once the earlier one has been taken.
template <class F>
int signalled(F&& body, const std::string& file, size_t ready, const std::vector<int>& signals, int pause_ms = 0) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  wait_until("the child is ready", [&] { return read_all(file).size() >= ready; });
  for (const int n : signals) {
    kill(child, n);
    wait_until_taken(child, n);
    if (&n != &signals.back()) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  int status = 0;
  if (!wait_until("the child ends", [&] { return waitpid(child, &status, WNOHANG) == child; })) kill(child, SIGKILL);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("launched ranks have their rank numbers and their exit code is returned") {
  const std::string out = temp_file();
  CHECK(run_shell(3, "echo $RANK/$WORLD_SIZE/$GPTTRAIN_LAUNCHED >> " + out) == 0);
  std::string text = read_all(out);
  std::filesystem::remove(out);
  for (const char* line : {"0/3/1\n", "1/3/1\n", "2/3/1\n"}) CHECK_THAT(text, Catch::Contains(line));
  CHECK(run_shell(3, "[ $RANK = 1 ] && exit 17; exec sleep 20") == 17);
  CHECK(run_shell(2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 20") == 128 + 9);
}

TEST_CASE("SIGTERM to the launcher becomes SIGUSR1 for the ranks, which save and end with their exit code") {
  const std::string out = temp_file();
  const auto body = [&] {
    return run_shell(2, "trap 'exit 75' USR1; echo x >> " + out + "; while :; do sleep 0.1; done");
  };
  CHECK(signalled(body, out, 4, {SIGTERM}) == 75);
  std::filesystem::remove(out);
}

TEST_CASE("a job that does not end after its verdict is killed, with the verdict's code", "[R11][R12]") {
  for (const auto& [starter, text, code] :
       {std::tuple{Starter::kNone, "stalled: x", 124}, std::tuple{Starter::kFork, "rank 1 died", 70}}) {
    JobCommand job;
    job.starter = starter;
    job.limits.world = 1;
    job.words = {"/bin/sh", "-c",
                 "printf '\\036gpttrain-report verdict " + std::string(text) +
                     "\\n' >&$GPTTRAIN_REPORTS; trap '' USR1; exec sleep 100"};
    job.verdict_grace_s = 1;
    const auto begin = std::chrono::steady_clock::now();
    const SignalGate gate;
    const JobEnd end = run_job(job, gate, 300);
    CHECK(end.code == code);
    CHECK(end.verdict == text);
    CHECK(end.stopped == 0);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  }
}

TEST_CASE("a rank that stops before it reports its start is named", "[R12]") {
  JobCommand job;
  job.words = {"/bin/sh", "-c", "[ $RANK = 1 ] && kill -STOP $$; exec sleep 100"};
  job.limits.world = 2, job.limits.frozen_abort_s = 1;
  const SignalGate gate;
  const JobEnd end = run_job(job, gate, 300);
  CHECK(end.code == 124);
  CHECK_THAT(end.verdict, Catch::Contains("rank 1 (") && Catch::Contains("is stopped"));
}

TEST_CASE("the cause of a failure is the rank that died of a signal and the others have time to end") {
  const std::string out = temp_file();
  const auto begin = std::chrono::steady_clock::now();
  CHECK(run_shell(3, "case $RANK in 0) sleep 0.3; echo x >> " + out +
                         "; exit 70;; 1) kill -SEGV $$;; esac; exec sleep 100") == 128 + SIGSEGV);
  CHECK(read_all(out) == "x\n");  // rank 2 is killed after two seconds
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  std::filesystem::remove(out);
}

TEST_CASE("a rank that dies is the cause and named, though another one's error about it comes first", "[R11]") {
  const auto end_of = [](const std::string& script) {
    JobCommand job;
    job.words = {"/bin/sh", "-c", script};
    job.limits.world = 2;
    const SignalGate gate;
    return run_job(job, gate, 300);
  };
  const std::string start = "printf '\\036gpttrain-report '$RANK' '$$' 1 here pp0 dp0 tp'$RANK'\\n' >&2; ";
  // The kernel has closed the sockets of rank 1, which is still exiting, while rank 0 already ends with an error.
  const JobEnd late = end_of(start + "[ $RANK = 0 ] && exit 70; sleep 0.5; kill -KILL $$");
  CHECK(late.code == 128 + SIGKILL);
  CHECK_THAT(late.verdict, Catch::Matches("rank 1 \\(.* pid \\d+, pp0 dp0 tp1\\) died of SIGKILL"));
  // No other rank can report it; what this process kills afterwards is no cause.
  const JobEnd alone = end_of(start + "[ $RANK = 0 ] && kill -SEGV $$; exec sleep 100");
  CHECK(alone.code == 128 + SIGSEGV);
  CHECK_THAT(alone.verdict, Catch::Matches("rank 0 \\(.*, pp0 dp0 tp0\\) died of SIGSEGV"));
  // A report of another rank holds more. An error of its own precedes a later death.
  CHECK(end_of("[ $RANK = 0 ] && kill -KILL $$; printf '\\036gpttrain-report verdict rank 0 died: step 3\\n' >&2; "
               "exec sleep 100")
            .verdict == "rank 0 died: step 3");
  CHECK(end_of("[ $RANK = 0 ] && exit 74; sleep 0.5; kill -KILL $$").code == 74);
  // A stop request is no death to report; an exit code that is none of the program's is.
  CHECK(end_of("kill -TERM $$").verdict == "");
  const JobEnd library = end_of("[ $RANK = 1 ] && exit 3; exec sleep 100");
  CHECK(library.code == 70);
  CHECK_THAT(library.verdict, Catch::Matches("rank 1 \\(.*\\) ended with exit code 3, which is none of gpttrain's"));
}

TEST_CASE("a second Ctrl-C kills ranks that ignore the first") {
  const std::string out = temp_file();
  const auto body = [&] { return run_shell(2, "trap '' USR1; echo x >> " + out + "; while :; do sleep 0.1; done"); };
  CHECK(signalled(body, out, 4, {SIGINT, SIGINT}, 300) == 128 + SIGINT);
  std::filesystem::remove(out);
}

TEST_CASE("ranks beyond the cores yield, ranks within them do not") {
  const auto has = [](const auto& env, const char* name) {
    return std::any_of(env.begin(), env.end(), [&](const auto& e) { return e.first == name; });
  };
  CHECK(has(mpirun_environment(16, 2, 0), "OMPI_MCA_mpi_yield_when_idle"));
  CHECK_FALSE(has(mpirun_environment(2, 2, 0), "OMPI_MCA_mpi_yield_when_idle"));
  const auto command = mpirun_command(4, "/usr/bin/mpirun", "/x/gpttrain", {"--tp", "2 3"});
  CHECK(command.back() == "2 3");
  CHECK(std::find(command.begin(), command.end(), "none") != command.end());
}

TEST_CASE("the first signal requests a stop, the second ends the process") {
  const std::string out = temp_file();
  const auto body = [&](bool polite) {
    install_stop_signals();
    std::ofstream(out) << "ready";
    for (int i = 0; i < 400; ++i) {
      if (polite && stop_requested()) return stop_signal() == SIGTERM ? 75 : 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return 2;
  };
  CHECK(signalled([&] { return body(true); }, out, 5, {SIGTERM}) == 75);
  std::filesystem::remove(out);
  CHECK(signalled([&] { return body(false); }, out, 5, {SIGUSR1, SIGTERM}, 1100) == 128 + SIGTERM);
  std::filesystem::remove(out);
}

TEST_CASE("one request that reaches a process twice is not a second request") {
  CHECK_FALSE(is_second_request(SIGTERM, 0.9));
  CHECK(is_second_request(SIGTERM, 1.1));
  CHECK_FALSE(is_second_request(SIGINT, 0.1));
  CHECK(is_second_request(SIGINT, 0.3));
  CHECK_FALSE(is_second_request(SIGHUP, 10));
  CHECK_FALSE(is_second_request(SIGUSR1, 10));
  const std::string out = temp_file();
  const auto body = [&] {
    install_stop_signals();
    std::ofstream(out) << "ready";
    while (!stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the step ends, the checkpoint is written
    return 75;
  };
  CHECK(signalled(body, out, 5, {SIGTERM, SIGTERM}) == 75);
  std::filesystem::remove(out);
  CHECK(signalled(body, out, 5, {SIGUSR1, SIGTERM}) == 75);
  std::filesystem::remove(out);
}

TEST_CASE("mpirun ends through the death of a rank when its parent is killed", "[R11]") {
  const std::string out = temp_file();
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t mpirun = fork();
    if (mpirun == 0) {
      execl("/bin/sh", "sh", "-c", ("sleep 100; echo ends >> " + out).c_str(), nullptr);
      _exit(1);
    }
    wait_until("its rank", [&] { return !children(mpirun).empty(); });
    const MpirunGuard guard(mpirun);
    std::ofstream(out) << "x\n";
    for (;;) pause();
  }
  wait_until("the guard", [&] { return read_all(out) == "x\n"; });
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  CHECK(wait_until("the end of mpirun", [&] { return read_all(out) == "x\nends\n"; }));
  std::filesystem::remove(out);
}

TEST_CASE("what a killed mpirun leaves is removed, and nothing of another one", "[R11]") {
  const std::string host = host_name().substr(0, host_name().find('.')), user = std::to_string(geteuid());
  const auto folder = std::filesystem::temp_directory_path() / ("gpt_spawn_test_tmp_" + std::to_string(getpid()));
  const auto sessions = folder / ("ompi." + host + "." + user);
  const std::string before = getenv("TMPDIR") != nullptr ? getenv("TMPDIR") : "";
  setenv("TMPDIR", folder.c_str(), 1);
  std::filesystem::create_directories(sessions / "pid.4000001" / "1");
  std::filesystem::create_directories(sessions / "pid.4000002");
  std::ofstream(sessions / "pid.4000001" / "contact.txt") << "4293853184.0;tcp://10.0.0.1:1\n4000001\n";  // ffef0000
  const std::string segment = "/dev/shm/vader_segment." + host + "." + user;
  for (const char* name : {".ffef0001.0", ".ffef0001.1", ".ffee0001.0"}) std::ofstream(segment + name) << "x";
  remove_mpirun_files(4000001);
  CHECK_FALSE(std::filesystem::exists(sessions / "pid.4000001"));
  CHECK(std::filesystem::exists(sessions / "pid.4000002"));
  CHECK_FALSE(std::filesystem::exists(segment + ".ffef0001.0"));
  CHECK_FALSE(std::filesystem::exists(segment + ".ffef0001.1"));
  CHECK(std::filesystem::remove(segment + ".ffee0001.0"));
  remove_mpirun_files(4000003);  // it removed its own
  std::filesystem::remove_all(folder);
  before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
}
