#include "launch/ranks/start/start_watch.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/ranks/start/host_blame.h"
#include "parallel/comm/watch/comm_board.h"

namespace gt {
namespace {

constexpr double kEvery = 1;   // polling period of /proc, seconds
constexpr double kAsleep = 3;  // a longer gap between two polls: this process was stopped too

const char* state_text(char state) {
  switch (state) {
    case 'T': return "stopped (SIGSTOP; kill -CONT resumes it)";
    case 't': return "stopped by a debugger";
    case 'D': return "waiting for a disk or a network file system";
    case 'Z': return "dead";
    case 0: return "gone";
    default: return "frozen";
  }
}

}  // namespace

double default_start_seconds(int world, bool one_machine) { return one_machine ? 120 + 2.0 * world : 600; }

uint64_t timeslices_of(int64_t pid) {
  uint64_t sum = 0;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(cat("/proc/", pid, "/task"), ec)) {
    std::ifstream in(e.path() / "schedstat");
    uint64_t ran = 0, waited = 0, turns = 0;
    if (in >> ran >> waited >> turns) sum += turns;
  }
  return sum;
}

char state_of(int64_t pid) {
  std::ifstream in(cat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(in, line);
  const size_t end = line.rfind(')');  // the process name may contain anything
  return end != std::string::npos && end + 2 < line.size() ? line[end + 2] : '\0';
}

StartWatch::StartWatch(StartLimits limits) : limits_(std::move(limits)) {}

std::optional<StartWatch::End> StartWatch::check(const std::map<int, StartedRank>& begun, bool started, double now) {
  if (begin_ < 0) begin_ = last_ = now;
  if (const double gap = now - last_; gap > kAsleep) {
    begin_ += gap;
    for (auto& [rank, a] : activity_) a.since += gap;
  }
  last_ = now;
  if (!started && limits_.start_s > 0 && now - begin_ > limits_.start_s)
    return End{static_cast<int>(Exit::kIo), late_text(begun)};
  if (now - checked_ < kEvery) return std::nullopt;
  checked_ = now;
  return check_frozen(begun, started, now);
}

// During startup each rank that does not run counts. Later only all of them together do, since any running rank would
// report the others.
std::optional<StartWatch::End> StartWatch::check_frozen(const std::map<int, StartedRank>& begun, bool started,
                                                        double now) {
  double longest = 0, shortest = INFINITY;
  std::string who;
  for (const auto& [rank, r] : begun) {
    if (r.pid_namespace != pid_namespace() || r.host != host_name()) continue;
    const uint64_t turns = timeslices_of(r.pid);
    Activity& a = activity_[rank];
    if (turns == 0 || turns != a.turns) a = {turns, now};
    const double idle = now - a.since;
    longest = std::max(longest, idle);
    shortest = std::min(shortest, idle);
    if (idle >= std::min(limits_.frozen_warn_s, std::max(1.0, limits_.frozen_abort_s)))
      who += fmt::format("{}rank {} ({} pid {}) is {}", who.empty() ? "" : ", ", rank, r.host, r.pid,
                         state_text(state_of(r.pid)));
  }
  const double idle = started ? (std::isinf(shortest) ? 0 : shortest) : longest;
  if (idle < limits_.frozen_warn_s && (limits_.frozen_abort_s <= 0 || idle < limits_.frozen_abort_s)) {
    reported_ = false;
    return std::nullopt;
  }
  const std::string text = fmt::format("stalled: not running for {:.0f} s{}: {}", idle,
                                       started ? ", as all ranks of this machine" : " while ranks start", who);
  if (limits_.frozen_abort_s > 0 && idle >= limits_.frozen_abort_s)
    return End{static_cast<int>(Exit::kHang),
               fmt::format("hang: the run ends (comm.stall_abort_s {:g}); {}", limits_.frozen_abort_s, text)};
  if (!std::exchange(reported_, true)) fmt::print(stderr, "gpttrain: {}\n", text);
  return std::nullopt;
}

std::string StartWatch::late_text(const std::map<int, StartedRank>& begun) const {
  std::set<std::string> hosts;
  std::string missing, in_init;
  int missing_count = 0;
  for (int r = 0; r < limits_.world; ++r) {
    const auto found = begun.find(r);
    if (found != begun.end()) continue;
    const std::string host = host_of_rank(limits_.hosts, r);
    hosts.insert(host.empty() ? host_name() : host);
    if (++missing_count <= 16) missing += cat(missing.empty() ? "" : ", ", r);
  }
  if (missing_count > 16) missing += ", ...";
  if (hosts.empty())
    for (const auto& [rank, r] : begun) {
      hosts.insert(r.host);
      if (rank < 16) in_init += fmt::format("{}{} ({} pid {})", in_init.empty() ? "" : ", ", rank, r.host, r.pid);
    }
  const std::string names = fmt::format("{}", fmt::join(hosts, ", "));
  return fmt::format(
      "ranks did not start within {:.0f} s on {}: {}; raise launch.start_timeout_s if they are only slow",
      limits_.start_s, names,
      missing_count > 0 ? fmt::format("no report from rank{} {}", missing_count > 1 ? "s" : "", missing)
                        : fmt::format("all began, but did not connect in MPI_Init: {}", in_init));
}

int code_of_verdict(const std::string& text) {
  const std::string word = text.substr(0, text.find(' '));
  return static_cast<int>(word == "stalled:" || word == "lost:" ? Exit::kHang : Exit::kInternal);
}

bool is_code_of_program(int code) {
  constexpr Exit kCodes[] = {Exit::kOk,       Exit::kUsage, Exit::kHardware,    Exit::kNumerical, Exit::kDamaged,
                             Exit::kInternal, Exit::kIo,    Exit::kInterrupted, Exit::kHang};
  return std::any_of(std::begin(kCodes), std::end(kCodes), [&](Exit e) { return code == static_cast<int>(e); });
}

LauncherEnd code_of_launcher(int code, bool started, const LauncherError& error, const std::string& verdict) {
  const bool signal = code > 128 && code <= 128 + 64;
  if (!started && (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP || code == 128 + SIGUSR1))
    return {static_cast<int>(Exit::kInterrupted), "stopped while ranks started; nothing was lost"};
  if (!started && !error.text.empty() && code != 0)
    return {static_cast<int>(error.usage ? Exit::kUsage : Exit::kIo), error.text};
  if (is_code_of_program(code) || signal) return {code, ""};
  if (code == 126 || code == 127)
    return {static_cast<int>(Exit::kUsage),
            cat("the launcher, its daemon or the program could not be run (exit code ", code, ")")};
  if (!verdict.empty()) return {code_of_verdict(verdict), ""};
  return {static_cast<int>(Exit::kIo),
          cat(started ? "the launcher lost a machine or gave up" : "the launcher could not start the ranks",
              " (its own exit code ", code, "); its messages are above")};
}

}  // namespace gt
