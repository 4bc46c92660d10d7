// Commands on other hosts, run as mpirun runs its daemons: over ssh, without a terminal or password prompt.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/hosts/hostfile.h"

namespace gt {

struct HostAnswer {
  static constexpr int kSshFailed = 255;  // ssh's own exit code: no connection or key
  static constexpr int kNone = -1;        // no answer within the limit
  std::string host;
  int code = 0;  // of the command, or one of the two above
  std::string out, err;
  std::string last_line() const;  // of err; "" if empty
};

// Runs a shell command line on all hosts concurrently, locally without ssh. Returns the answers in the order of `hosts`
// after at most `limit_s` seconds. ssh_port 0: ssh's default. Keeps at most 64 KiB of each stream. If ssh is not
// installed, all remote answers are empty with code 0.
std::vector<HostAnswer> run_on_hosts(const std::vector<std::string>& hosts, const std::string& command, int ssh_port,
                                     double limit_s);

// Returns whether mpirun uses another agent than ssh (OMPI_MCA_plm_rsh_agent); remote hosts can then not be queried.
bool other_agent_than_ssh();

struct UnreachableHost {
  std::string host, why;  // ssh's last line, or "no answer to ssh within 16 s"
};

// The same without blocking: its processes are children of this one, and its destructor ends them.
class HostRun {
 public:
  // connect_s: time that ssh gives a connection.
  HostRun(const std::vector<std::string>& hosts, const std::string& command, int ssh_port, double limit_s,
          int connect_s = 5);
  ~HostRun();
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;
  // Returns whether all have ended or the limit has expired, after at most `wait_s`. Call several times a second.
  bool done(double wait_s = 1e-3);
  std::vector<HostAnswer> answers();  // once, after done(); ends what has not answered

 private:
  struct Queries;
  std::unique_ptr<Queries> queries_;
  double end_;
};

// Runs `true` on all machines except this one. Takes about 0.3 s if all answer. Those that do not within 8 s (a busy
// machine, a busy sshd) get a second try: 16 s, or 3 s where none accepted a
// connection. Returns nothing if another agent than ssh is configured or ssh is not installed.
std::vector<UnreachableHost> unreachable_hosts(const std::vector<HostSlots>&, int ssh_port);

// The same, once and for at most 1.5 s, while a job ends: of hosts that its ranks have lost, and of others, whose
// silence means nothing yet.
class LostHostsCheck {
 public:
  LostHostsCheck(const std::vector<std::string>& lost, const std::vector<std::string>& others, int ssh_port);
  std::vector<UnreachableHost> finish();  // once; waits for what is left of the 1.5 s; returns lost ones
  // After finish(): hosts that need no other check, lost ones and those that answered.
  const std::vector<std::string>& known() const { return known_; }

 private:
  std::vector<std::string> known_;  // without this machine
  HostRun run_;
};

// Tries lost hosts every few seconds without blocking. Its ssh processes are children of this process.
class ReturnWatch {
 public:
  ReturnWatch(std::vector<std::string> hosts, int ssh_port);
  ~ReturnWatch();
  ReturnWatch(const ReturnWatch&) = delete;
  ReturnWatch& operator=(const ReturnWatch&) = delete;
  const std::vector<std::string>& answering();  // of the last completed round; call several times a second
  void stop();                                  // ends ssh processes

 private:
  const std::vector<std::string> hosts_;
  const int ssh_port_;
  std::unique_ptr<HostRun> round_;  // in progress
  std::vector<std::string> answering_;
  double next_;
};

}  // namespace gt
