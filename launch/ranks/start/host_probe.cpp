#include "launch/ranks/start/host_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/host.h"

namespace gt {
namespace {

constexpr double kLimitSeconds = 8, kSecondTrySeconds = 16, kSilentSeconds = 1.5, kReturnSeconds = 10;
constexpr int kSecondConnectSeconds = 12, kRefusedSeconds = 3;
constexpr size_t kMostBytes = 64 << 10;

struct Probe {
  HostAnswer answer;
  pid_t pid = -1;
  std::array<int, 2> streams{-1, -1};  // standard output and error of the child; -1: closed
  bool open() const { return streams[0] >= 0 || streams[1] >= 0; }
  std::string& text(int k) { return k == 0 ? answer.out : answer.err; }
};

[[noreturn]] void run_child(const std::string& host, const std::string& command, int ssh_port, int connect_s, int out,
                            int err) {
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int null = open("/dev/null", O_RDWR); null >= 0) dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  const std::string port = std::to_string(ssh_port), patience = cat("ConnectTimeout=", connect_s);
  std::vector<const char*> words{"sh", "-c", command.c_str()};
  if (!is_this_machine(host)) {
    words = {"ssh", "-x", "-o", "BatchMode=yes", "-o", patience.c_str()};
    if (ssh_port > 0) words.insert(words.end(), {"-p", port.c_str()});
    words.insert(words.end(), {"--", host.c_str(), command.c_str()});
  }
  words.push_back(nullptr);
  execvp(words[0], const_cast<char**>(words.data()));
  _exit(0);  // no ssh: the state of the host is unknown
}

Probe start(const std::string& host, const std::string& command, int ssh_port, int connect_s) {
  Probe p;
  p.answer.host = host;
  p.answer.code = HostAnswer::kNone;  // unless it starts
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return p;
  if (pipe2(err, O_CLOEXEC) != 0) return close(out[0]), close(out[1]), p;
  p.pid = fork();
  if (p.pid == 0) run_child(host, command, ssh_port, connect_s, out[1], err[1]);
  close(out[1]), close(err[1]);
  if (p.pid > 0)
    p.streams = {out[0], err[0]};
  else
    close(out[0]), close(err[0]);
  return p;
}

void read_some(Probe& p, int k) {
  char text[4096];
  int& fd = p.streams[static_cast<size_t>(k)];
  const ssize_t n = read(fd, text, sizeof text);
  if (n > 0 && p.text(k).size() < kMostBytes) p.text(k).append(text, static_cast<size_t>(n));
  if (n > 0) return;
  close(fd);
  fd = -1;
}

// Reads both streams of each probe until all have ended or the limit expires.
void read_all(std::vector<Probe>& probes, double limit_s) {
  const double end = now() + limit_s;
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<std::pair<Probe*, int>> whose;
    for (Probe& p : probes)
      for (const int k : {0, 1})
        if (const int fd = p.streams[static_cast<size_t>(k)]; fd >= 0)
          waits.push_back({fd, POLLIN, 0}), whose.emplace_back(&p, k);
    const double left = end - now();
    if (waits.empty() || left <= 0 || poll(waits.data(), waits.size(), static_cast<int>(1e3 * left) + 1) < 0) return;
    for (size_t i = 0; i < waits.size(); ++i)
      if (waits[i].revents != 0) read_some(*whose[i].first, whose[i].second);
  }
}

void reap(Probe& p) {
  if (p.pid <= 0) return;
  const bool late = p.open();
  if (late) {
    kill(-p.pid, SIGKILL);
    kill(p.pid, SIGKILL);
    for (const int fd : p.streams)
      if (fd >= 0) close(fd);
  }
  int status = 0;
  waitpid(p.pid, &status, 0);
  p.answer.code = late ? HostAnswer::kNone : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string HostAnswer::last_line() const {
  std::string text = err;
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

bool other_agent_than_ssh() {
  const char* agent = std::getenv("OMPI_MCA_plm_rsh_agent");
  return agent != nullptr && std::string(agent) != "ssh";
}

struct HostRun::Queries {
  std::vector<Probe> list;
};

HostRun::HostRun(const std::vector<std::string>& hosts, const std::string& command, int ssh_port, double limit_s,
                 int connect_s)
    : queries_(std::make_unique<Queries>()), end_(now() + limit_s) {
  for (const std::string& host : hosts) queries_->list.push_back(start(host, command, ssh_port, connect_s));
}

HostRun::~HostRun() { answers(); }

bool HostRun::done(double wait_s) {
  const std::vector<Probe>& all = queries_->list;
  read_all(queries_->list, wait_s);
  return now() >= end_ || std::none_of(all.begin(), all.end(), [](const Probe& p) { return p.open(); });
}

std::vector<HostAnswer> HostRun::answers() {
  std::vector<HostAnswer> out;
  for (Probe& p : queries_->list) {
    reap(p);
    out.push_back(std::move(p.answer));
  }
  queries_->list.clear();
  return out;
}

std::vector<HostAnswer> run_on_hosts(const std::vector<std::string>& hosts, const std::string& command, int ssh_port,
                                     double limit_s) {
  HostRun run(hosts, command, ssh_port, limit_s);
  while (!run.done(limit_s)) continue;
  return run.answers();
}

namespace {

// Adds the hosts of a round that did not answer within `limit_s`.
void add_failed(const std::vector<HostAnswer>& answers, double limit_s, std::vector<UnreachableHost>& out) {
  for (const HostAnswer& a : answers) {
    if (a.code == HostAnswer::kNone) out.push_back({a.host, cat("no answer to ssh within ", limit_s, " s")});
    if (a.code == HostAnswer::kSshFailed)
      out.push_back({a.host, a.last_line().empty() ? "ssh failed without a message" : a.last_line()});
  }
}

}  // namespace

std::vector<UnreachableHost> unreachable_hosts(const std::vector<HostSlots>& hosts, int ssh_port) {
  if (other_agent_than_ssh()) return {};
  std::vector<std::string> others, again;
  for (const HostSlots& h : hosts)
    if (!is_this_machine(h.host)) others.push_back(h.host);
  std::vector<UnreachableHost> failed, out;
  add_failed(run_on_hosts(others, "true", ssh_port, kLimitSeconds), kLimitSeconds, failed);
  for (const UnreachableHost& u : failed) again.push_back(u.host);
  if (again.empty()) return out;
  std::this_thread::sleep_for(std::chrono::seconds(1));  // a busy sshd refuses connections for a moment
  // A busy machine's kernel still accepts connections; only its sshd needs the longer time.
  const bool accepted = std::any_of(failed.begin(), failed.end(), [](const UnreachableHost& u) {
    return u.why.find("connect to host") == std::string::npos;
  });
  HostRun second(again, "true", ssh_port, kSecondTrySeconds, accepted ? kSecondConnectSeconds : kRefusedSeconds);
  while (!second.done(0.1)) continue;
  add_failed(second.answers(), kSecondTrySeconds, out);
  return out;
}

namespace {

std::vector<std::string> reached_by_ssh(std::vector<std::string> hosts) {
  if (other_agent_than_ssh()) return {};
  std::erase_if(hosts, [](const std::string& h) { return is_this_machine(h); });
  return hosts;
}

// Each host once.
std::vector<std::string> both(std::vector<std::string> hosts, const std::vector<std::string>& more) {
  for (const std::string& h : more)
    if (std::find(hosts.begin(), hosts.end(), h) == hosts.end()) hosts.push_back(h);
  return hosts;
}

}  // namespace

LostHostsCheck::LostHostsCheck(const std::vector<std::string>& lost, const std::vector<std::string>& others,
                               int ssh_port)
    : known_(reached_by_ssh(lost)), run_(both(known_, reached_by_ssh(others)), "true", ssh_port, kSilentSeconds) {}

std::vector<UnreachableHost> LostHostsCheck::finish() {
  while (!run_.done(0.02)) continue;
  std::vector<HostAnswer> of_lost;
  for (const HostAnswer& a : run_.answers())
    if (std::find(known_.begin(), known_.end(), a.host) != known_.end())
      of_lost.push_back(a);
    else if (a.code == 0)
      known_.push_back(a.host);
  std::vector<UnreachableHost> out;
  add_failed(of_lost, kSilentSeconds, out);
  return out;
}

ReturnWatch::ReturnWatch(std::vector<std::string> hosts, int ssh_port)
    : hosts_(std::move(hosts)), ssh_port_(ssh_port), next_(now() + kReturnSeconds) {}

ReturnWatch::~ReturnWatch() = default;

void ReturnWatch::stop() {
  round_.reset();
  next_ = now() + kReturnSeconds;
}

const std::vector<std::string>& ReturnWatch::answering() {
  if (round_ == nullptr && now() >= next_) round_ = std::make_unique<HostRun>(hosts_, "true", ssh_port_, kLimitSeconds);
  if (round_ == nullptr || !round_->done()) return answering_;
  answering_.clear();
  for (const HostAnswer& a : round_->answers())
    if (a.code == 0) answering_.push_back(a.host);
  stop();
  return answering_;
}

}  // namespace gt
