#include "launch/ranks/start/host_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>

#include "kernels/core/check.h"
#include "kernels/core/host.h"

namespace gt {
namespace {

constexpr double kLimitSeconds = 8;
constexpr int kSshFailed = 255;

struct Probe {
  std::string host, said;
  pid_t pid = -1;
  int out = -1;
  bool open() const { return out >= 0; }
};

[[noreturn]] void run_ssh(const std::string& host, int ssh_port, int out) {
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int null = open("/dev/null", O_RDWR); null >= 0) {
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
  }
  dup2(out, STDERR_FILENO);
  const std::string port = std::to_string(ssh_port);
  std::vector<const char*> words{"ssh", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"};
  if (ssh_port > 0) words.insert(words.end(), {"-p", port.c_str()});
  words.insert(words.end(), {"--", host.c_str(), "true", nullptr});
  execvp(words[0], const_cast<char**>(words.data()));
  _exit(0);  // no ssh: nothing is known of the machine
}

Probe start(const std::string& host, int ssh_port) {
  Probe p{.host = host};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return p;
  p.pid = fork();
  if (p.pid == 0) run_ssh(host, ssh_port, ends[1]);
  close(ends[1]);
  if (p.pid > 0)
    p.out = ends[0];
  else
    close(ends[0]);
  return p;
}

void read_some(Probe& p) {
  char text[1024];
  const ssize_t n = read(p.out, text, sizeof text);
  if (n > 0 && p.said.size() < (64 << 10)) p.said.append(text, static_cast<size_t>(n));
  if (n > 0) return;
  close(p.out);
  p.out = -1;
}

// Reads what each says until all have ended or the time is over.
void listen_to(std::vector<Probe>& probes) {
  const double end = now() + kLimitSeconds;
  for (;;) {
    std::vector<pollfd> waits;
    for (const Probe& p : probes)
      if (p.open()) waits.push_back({p.out, POLLIN, 0});
    const double left = end - now();
    if (waits.empty() || left <= 0 || poll(waits.data(), waits.size(), static_cast<int>(1e3 * left) + 1) < 0) return;
    for (const pollfd& w : waits)
      if (w.revents != 0) read_some(*std::find_if(probes.begin(), probes.end(), [&](const Probe& p) { return p.out == w.fd; }));
  }
}

// "" when the machine answered.
std::string verdict_of(Probe& p) {
  if (p.pid <= 0) return "";
  const bool late = p.open();
  if (late) {
    kill(-p.pid, SIGKILL);
    kill(p.pid, SIGKILL);
    close(p.out);
  }
  int status = 0;
  waitpid(p.pid, &status, 0);
  if (late) return cat("no answer to ssh within ", static_cast<int>(kLimitSeconds), " s");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != kSshFailed) return "";
  while (!p.said.empty() && std::isspace(static_cast<unsigned char>(p.said.back()))) p.said.pop_back();
  const std::string line = p.said.substr(p.said.find_last_of('\n') + 1);
  return line.empty() ? "ssh failed without a word" : line;
}

}  // namespace

std::vector<UnreachableHost> unreachable_hosts(const std::vector<HostSlots>& hosts, int ssh_port) {
  const char* agent = std::getenv("OMPI_MCA_plm_rsh_agent");
  if (agent != nullptr && std::string(agent) != "ssh") return {};
  std::vector<Probe> probes;
  for (const HostSlots& h : hosts)
    if (!is_this_machine(h.host)) probes.push_back(start(h.host, ssh_port));
  listen_to(probes);
  std::vector<UnreachableHost> out;
  for (Probe& p : probes)
    if (std::string why = verdict_of(p); !why.empty()) out.push_back({p.host, std::move(why)});
  return out;
}

}  // namespace gt
