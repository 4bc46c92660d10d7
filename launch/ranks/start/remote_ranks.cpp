#include "launch/ranks/start/remote_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/hosts/rank_slots.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/start/launcher_output.h"
#include "launch/ranks/start/local_ranks.h"
#include "launch/ranks/start/own_process.h"
#include "launch/ranks/start/stray_segments.h"
#include "parallel/comm/watch/node_link.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSshFailed = 255, kStops[] = {SIGINT, SIGTERM, SIGHUP};
// After a failure the other hosts' ranks end by themselves; after the end of its requests an agent kills its own.
constexpr auto kAfterFailure = std::chrono::seconds(7), kAfterEnd = std::chrono::seconds(3);

// Name by which other hosts reach one of the hostfile.
std::string address_of(const std::string& host) {
  if (is_this_machine(host)) return host_name();
  std::string out = host.substr(host.find('@') + 1);
  std::erase_if(out, [](char c) { return c == '[' || c == ']'; });
  return out;
}

class RemoteRanks {
 public:
  explicit RemoteRanks(const RemoteJob& job) : job_(job) {
    sigemptyset(&signals_);
    for (const int n : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE}) sigaddset(&signals_, n);
    if (!ignores_hangup()) sigaddset(&signals_, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
  }

  int run() {
    start();
    while (reap()) {
      const timespec tick{0, 200'000'000};  // SIGCHLD ends it
      take_signal(sigtimedwait(&signals_, nullptr, &tick));
      if (Clock::now() > deadline_) end();
    }
    return code_;
  }

 private:
  struct Agent {
    std::string host;
    pid_t pid = 0;      // of ssh, or of the agent on this machine; 0: ended
    int requests = -1;  // its standard input
  };

  void start() {
    HostRanks ranks{.world = 0, .resumable = job_.resumable};
    for (const HostSlots& h : job_.hosts) ranks.world += static_cast<int>(h.slots.size());
    const std::string variables = variables_text();
    for (const HostSlots& h : job_.hosts) {
      ranks.count = static_cast<int>(h.slots.size());
      start(h.host, ranks, variables);
      ranks.first += ranks.count;
    }
  }

  void start(const std::string& host, const HostRanks& ranks, const std::string& variables) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fail(host);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_agent(host, ranks, ends[0], parent);
    close(ends[0]);
    agents_.push_back({host, std::max<pid_t>(0, pid), ends[1]});
    if (pid < 0) return fail(host);
    for (size_t at = 0; at < variables.size();) {
      const ssize_t n = write(ends[1], variables.data() + at, variables.size() - at);
      if (n <= 0 && errno != EINTR) return;  // its end is noticed
      at += n > 0 ? static_cast<size_t>(n) : 0;
    }
  }

  void fail(const std::string& host) {
    fmt::print(stderr, "gpttrain: the ranks of {} cannot be started: {}\n", host, std::strerror(errno));
    take_failure(static_cast<int>(Exit::kIo));
  }

  [[noreturn]] void become_agent(const std::string& host, const HostRanks& ranks, int requests, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    // A logout and service managers send their stop signal to every process of a job: the ranks get it as a request.
    // An agent of this machine reads what is pending; ssh ignores what it finds ignored.
    if (!is_this_machine(host)) {
      for (const int n : kStops) signal(n, SIG_IGN);
      sigset_t none;
      sigemptyset(&none);
      sigprocmask(SIG_SETMASK, &none, nullptr);
    }
    dup2(requests, STDIN_FILENO);
    char folder[4096];
    std::string command = cat("cd ", shell_word(getcwd(folder, sizeof folder) != nullptr ? folder : "."),
                              " && exec env ", kAgentVariable, "=", shell_word(to_text(ranks)));
    for (const std::string& word : job_.words) command += " " + shell_word(word);
    const std::string port = std::to_string(job_.ssh_port);
    std::vector<const char*> words{"sh", "-c", command.c_str()};
    if (!is_this_machine(host)) {
      words = {"ssh", "-x",
               "-o",  "BatchMode=yes",
               "-o",  "ConnectTimeout=10",
               "-o",  "ServerAliveInterval=5",
               "-o",  "ServerAliveCountMax=3"};
      if (job_.ssh_port > 0) words.insert(words.end(), {"-p", port.c_str()});
      words.insert(words.end(), {"--", host.c_str(), command.c_str()});
    }
    words.push_back(nullptr);
    execvp(words[0], const_cast<char**>(words.data()));
    fmt::print(stderr, "gpttrain: {} cannot be run: {}\n", words[0], std::strerror(errno));
    _exit(127);
  }

  // Variables as an agent reads them: NAME=VALUE, each with a zero byte, and an empty one.
  std::string variables_text() const {
    constexpr int kLowest = 20000, kPorts = 12000;  // below the ports that kernels give to connections
    std::random_device random;
    Variables all = job_.variables;
    all.emplace_back("MASTER_ADDR", address_of(job_.hosts.front().host));
    all.emplace_back("MASTER_PORT", std::to_string(kLowest + static_cast<int>(random() % kPorts)));
    all.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "True");  // any of the next ports
    all.emplace_back("TORCHELASTIC_RUN_ID", random_word());
    all.emplace_back("GPTTRAIN_JOB_SECRET", random_word());
    std::string out;
    for (const auto& [name, value] : all) out += cat(name, "=", value) + '\0';
    return out + '\0';
  }

  // Takes the codes of all hosts that have ended; returns whether any is left.
  bool reap() {
    for (int status, pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto a = std::find_if(agents_.begin(), agents_.end(), [&](const Agent& x) { return x.pid == pid; });
      if (a == agents_.end()) continue;
      a->pid = 0;
      close(a->requests);
      a->requests = -1;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == kSshFailed && code_ == 0 && !ended_) {
        const std::string what = cat("lost: ", a->host, ": the connection to its ranks ended");
        fmt::print(stderr, "gpttrain: {}\n", what);
        report_verdict(what);
      }
      if (code != 0) take_failure(code);
    }
    return std::any_of(agents_.begin(), agents_.end(), [](const Agent& a) { return a.pid > 0; });
  }

  void take_failure(int code) {
    if (code_ != 0) return;  // a consequence of the first one
    code_ = code;
    deadline_ = std::min(deadline_, Clock::now() + kAfterFailure);
  }

  void take_signal(int n) {
    if (n == SIGHUP) drop_dead_console();
    if (n <= 0 || n == SIGCHLD || n == SIGPIPE) return;
    const char request = n == SIGUSR2 ? kDumpRequest : kStopRequest;
    for (const Agent& a : agents_)
      if (a.requests >= 0 && write(a.requests, &request, 1) < 0 && errno == EPIPE) continue;  // its end is noticed
  }

  void end() {
    for (Agent& a : agents_) {
      if (ended_ && a.pid > 0) kill(a.pid, SIGKILL);
      if (a.requests >= 0) close(a.requests);
      a.requests = -1;
    }
    ended_ = true;
    deadline_ = Clock::now() + kAfterEnd;
  }

  const RemoteJob& job_;
  sigset_t signals_;
  std::vector<Agent> agents_;
  int code_ = 0;
  bool ended_ = false;
  Clock::time_point deadline_ = Clock::time_point::max();
};

// Sets the variables that standard input begins with.
void take_variables() {
  constexpr size_t kMost = 1 << 20;
  std::string entry;
  size_t all = 0;
  for (char c; all < kMost; ++all) {
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    GT_REQUIRE(n == 1, Exit::kIo, "the variables of this host's ranks end early");
    if (c != 0) {
      entry += c;
      continue;
    }
    if (entry.empty()) return;
    const size_t equals = entry.find('=');
    GT_REQUIRE(equals != std::string::npos && equals > 0, Exit::kUsage, "a variable of this host's ranks has no name");
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    entry.clear();
  }
  fail(Exit::kUsage, "the variables of this host's ranks are longer than ", kMost, " bytes");
}

}  // namespace

int run_remote_ranks(const RemoteJob& job) { return RemoteRanks(job).run(); }

std::string to_text(const HostRanks& r) { return cat(r.first, ' ', r.count, ' ', r.world, ' ', r.resumable ? 1 : 0); }

HostRanks parse_host_ranks(const std::string& text) {
  HostRanks r;
  int resumable = -1, end = 0;
  const bool read = std::sscanf(text.c_str(), "%9d %9d %9d %1d%n", &r.first, &r.count, &r.world, &resumable, &end) == 4;
  GT_REQUIRE(read && static_cast<size_t>(end) == text.size() && r.first >= 0 && r.count > 0 && resumable >= 0 &&
                 resumable <= 1 && r.first + r.count <= r.world,
             Exit::kUsage, kAgentVariable, "=", text,
             ": expected the first rank, their number, that of all and 0 or 1; ", "the start of a job sets it");
  r.resumable = resumable == 1;
  return r;
}

bool is_host_agent() { return std::getenv(kAgentVariable) != nullptr; }

int run_host_agent(int argc, char** argv) {
  const HostRanks ranks = parse_host_ranks(std::getenv(kAgentVariable));
  unsetenv(kAgentVariable);
  take_variables();
  const int requests = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  GT_REQUIRE(requests >= 0 && null && dup2(null.get(), STDIN_FILENO) == STDIN_FILENO, Exit::kIo,
             "standard input: ", std::strerror(errno));
  fcntl(requests, F_SETFL, O_NONBLOCK);
  std::vector<std::string> words{own_program()};
  words.insert(words.end(), argv + 1, argv + argc);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int n : kStops)  // a rank that can save unblocks them once its handlers are installed
    if (ranks.resumable) sigaddset(&mask, n);
  const StraySegments strays;
  return run_local_ranks({ranks.first, ranks.count, ranks.world, requests}, words, mask);
}

}  // namespace gt
