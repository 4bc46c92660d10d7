#include "launch/ranks/start/launcher_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/ranks/signals.h"
#include "parallel/comm/watch/comm_board.h"

namespace gt {
namespace {

constexpr const char* kMark =
    "\x1e"
    "gpttrain-report ";                  // a control character, never in ordinary text
constexpr char kNewline = '\x1f';        // line separator inside a one-line report
constexpr size_t kLongestReport = 3000;  // mpirun forwards 4096 bytes at a time
constexpr size_t kLongestBlock = 8192;   // mpirun's blocks have some hundred bytes

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // reader is gone
    done += static_cast<size_t>(n);
  }
}

bool dashes(const std::string& line) { return line.size() >= 60 && line.find_first_not_of('-') == std::string::npos; }

// Returns the word after `label`; "" if absent.
std::string word_after(const std::string& text, const std::string& label) {
  const size_t at = text.find(label);
  if (at == std::string::npos) return "";
  std::istringstream in(text.substr(at + label.size()));
  std::string word;
  in >> word;
  return word;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Returns false if no parent reads reports.
bool report(const std::string& line) {
  const char* descriptor = std::getenv(kReportsVariable);
  if (descriptor == nullptr) return false;
  write_all(std::atoi(descriptor), cat(kMark, line, "\n"));
  return true;
}

}  // namespace

void report_start(int rank, const std::string& coordinates) {
  report(cat(rank, " ", getpid(), " ", pid_namespace(), " ", host_name(), " ", coordinates));
}

void report_started() { report("all"); }

bool report_failed(int rank, const std::string& what) {
  std::string line = what.substr(0, kLongestReport);
  std::replace(line.begin(), line.end(), '\n', kNewline);
  return report(cat("failed ", rank, " ", host_name(), " ", line));
}

void report_verdict(const std::string& what) {
  report(cat("verdict ", what.substr(0, std::min(what.find('\n'), kLongestReport))));
}

void report_end(int rank, int64_t pid, const std::string& how) { report(cat("end ", rank, " ", pid, " ", how)); }

namespace {

constexpr const char* kDaemonGone = ": the connection to its Open MPI daemon ended";

// Signal number in "... on node node2 exited on signal 9 (Killed)."; the rank and its host may be the only ones who
// know.
std::string verdict_of_block(const std::string& text) {
  const std::string rank = word_after(text, "noticed that process rank"), pid = word_after(text, "with PID");
  std::string signal = word_after(text, "exited on signal");
  if (signal.ends_with('.')) signal.pop_back();
  const std::string node = word_after(text, "on node");
  const auto is_number = [](const std::string& s) {
    return !s.empty() && s.find_first_not_of("0123456789") == std::string::npos;
  };
  if (is_number(rank) && is_number(signal) && !node.empty())
    return cat("rank ", rank, " (", node, pid == "0" || !is_number(pid) ? std::string() : cat(" pid ", pid),
               ") died of ", signal_name(std::atoi(signal.c_str())));
  if (has(text, "lost communication with a remote daemon")) {
    const size_t remote = text.find("Remote daemon:");
    const std::string host = remote == std::string::npos ? "" : word_after(text.substr(remote), "on node");
    if (!host.empty()) return cat("lost: ", host, kDaemonGone);
  }
  return "";
}

}  // namespace

std::string verdict_of_line(const std::string& line) {
  char host[256] = "", how[256] = "";
  int end = -1;  // of ssh's line; mpirun itself gives up seconds later
  if (std::sscanf(line.c_str(), "Connection to %255s closed by remote host.%n", host, &end) == 1 && end > 0)
    return cat("lost: ", host, kDaemonGone);
  const size_t begin = line.find("srun: error: ");
  if (begin == std::string::npos) return "";
  int rank = -1;
  if (std::sscanf(line.c_str() + begin, "srun: error: %255[^:]: task %d: %255[^\n]", host, &rank, how) != 3) return "";
  const std::string text = how;
  const bool died = has(text, "Killed") || has(text, "Segmentation fault") || has(text, "Aborted") ||
                    has(text, "Bus error") || has(text, "signal");
  return died ? cat("rank ", rank, " (", host, ") died: ", printable(text)) : "";
}

LauncherBlock read_block(const std::string& text) {
  for (const char* ours : {"mpirun noticed that process rank", "mpirun detected that one or more processes exited",
                           "MPI_ABORT was invoked on rank", "Primary job  terminated normally, but",
                           "Primary job terminated normally, but", "mpirun has exited due to process rank",
                           "ORTE does not know how to route a message"})
    if (has(text, ours)) return {{}, false, verdict_of_block(text)};
  if (std::string lost = verdict_of_block(text); !lost.empty()) return {{}, true, std::move(lost)};
  const std::string node = word_after(text, "Node:");
  if (has(text, "could not access") && has(text, "execut"))
    return {{cat(node, ": ", word_after(text, "Executable:"),
                 " does not exist or is not executable; the program must be ", "at the same path on every machine"),
             true}};
  if (has(text, "unable to reliably start one or more daemons") || has(text, "ORTE daemon has unexpectedly failed") ||
      has(text, "ORTE was unable to reliably start"))
    return {
        {"Open MPI's daemon (orted) did not start on one of the machines: see ssh's message above; every machine needs "
         "the same Open MPI at the same path, and ssh without a password",
         false}};
  return {{}, true};
}

LauncherOutput::LauncherOutput() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  if (pipe2(wake_, O_CLOEXEC) != 0) {
    close(ends[0]);
    close(ends[1]);
    return;
  }
  read_ = ends[0];
  write_ = ends[1];
}

LauncherOutput::~LauncherOutput() {
  finish();
  for (const int fd : {read_, write_, wake_[0], wake_[1]})
    if (fd >= 0) close(fd);
}

void LauncherOutput::redirect_child() const {
  if (write_ < 0) return;
  dup2(write_, STDERR_FILENO);
  setenv(kReportsVariable, std::to_string(STDERR_FILENO).c_str(), 1);
}

void LauncherOutput::pass_to_child() const {
  if (write_ < 0) return;
  fcntl(write_, F_SETFD, 0);
  setenv(kReportsVariable, std::to_string(write_).c_str(), 1);
}

void LauncherOutput::start(pid_t child) {
  if (read_ < 0) return;
  child_ = child;
  close(write_);
  write_ = -1;
  thread_ = std::thread([this] { run(); });
}

void LauncherOutput::finish() {
  if (!thread_.joinable()) return;
  if (write(wake_[1], "", 1) < 0) return;
  thread_.join();
}

void LauncherOutput::run() {
  sigset_t all;
  sigfillset(&all);  // signals go to the waiting thread; also avoids SIGPIPE
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  fcntl(read_, F_SETFL, O_NONBLOCK);
  std::string line;
  for (bool last = false;;) {
    pollfd p[2] = {{read_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    if (!last) poll(p, 2, -1);
    last = last || p[1].revents != 0;
    char buffer[4096];
    const ssize_t n = read(read_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (n < 0 && (errno != EAGAIN || last))) break;
    for (ssize_t i = 0; i < n; ++i) {
      line += buffer[i];
      if (buffer[i] == '\n') process_line(line), line.clear();
    }
    // Forward partial lines, unless they may turn out to be a report or the start of a block.
    if (!line.empty() && !in_block_ && line.find(kMark[0]) == std::string::npos &&
        std::string("-[m").find(line[0]) == std::string::npos)
      forward(line), line.clear();
  }
  if (!line.empty()) process_line(line);
  forward(block_);
  add_verdict(end_);
  print_failures();
}

// If mpirun receives a signal while it aborts and waits for a lost machine, it may crash (Open MPI 4.1, PMIx_Finalize).
// Returns whether the line is part of its messages about that, which do not concern the job.
bool LauncherOutput::describes_own_end(const std::string& line) const {
  if (verdict_.empty()) return false;
  if (line == "\n" || has(line, "mpirun: abort is already in progress")) return true;
  const size_t colon = line.find(':');
  return line[0] == '[' && colon != std::string::npos && std::atoi(line.c_str() + colon + 1) == child_;
}

void LauncherOutput::process_line(const std::string& line) {
  if (const size_t mark = line.find(kMark); mark != std::string::npos) {
    const std::string before = line.substr(0, mark);
    if (before.empty() || before.front() != '[' || before.back() != ':') forward(before);  // drop mpirun's tag
    return process_report(line.substr(mark + std::char_traits<char>::length(kMark)));
  }
  for (const char* noise : {"mpirun: Forwarding signal", "plm:rsh: Warning: setpgid", "has sent help message",
                            "have sent help message", "orte_base_help_aggregate"})  // also refers to suppressed blocks
    if (has(line, noise)) return;
  if (describes_own_end(line)) return;
  add_verdict(verdict_of_line(line));
  const bool edge = dashes(line.substr(0, line.find_last_not_of("\r\n") + 1));
  if (!edge && (!in_block_ || line.rfind("gpttrain: ", 0) == 0)) return forward(line);
  block_ += line;
  if (!edge && block_.size() < kLongestBlock) return;
  if (edge && !in_block_) {
    in_block_ = true;
    return;
  }
  LauncherBlock read = read_block(block_);
  if (read.shown) forward(block_);
  add_verdict(read.verdict);
  if (!read.error.text.empty()) {
    const std::lock_guard lock(mutex_);
    if (error_.text.empty()) error_ = std::move(read.error);
  }
  block_.clear();
  in_block_ = false;
}

// Takes what the launcher noticed before any rank reported it.
void LauncherOutput::add_verdict(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (text.empty() || !verdict_.empty() || ends_) return;
    verdict_ = text;
  }
  forward(cat("gpttrain: ", text, "\n"));
}

void LauncherOutput::process_report(const std::string& line) {
  std::istringstream in(line);
  std::string first;
  in >> first;
  const std::lock_guard lock(mutex_);
  if (first == "all") {
    started_ = true;
  } else if (first == "failed") {
    int rank = 0;
    std::string host, text;
    in >> rank >> host;
    std::getline(in >> std::ws, text);
    std::replace(text.begin(), text.end(), kNewline, '\n');
    failed_[{host, text}].push_back(rank);
  } else if (first == "verdict") {
    if (verdict_.empty()) std::getline(in >> std::ws, verdict_);
  } else if (first == "end") {
    if (end_.empty()) take_end(in);
  } else {
    StartedRank r;
    in >> r.pid >> r.pid_namespace >> r.host;
    if (!in) return;
    std::getline(in >> std::ws, r.coordinates);
    begun_[std::atoi(first.c_str())] = r;
  }
}

// As stall_report.h names a rank: "rank 3 (node07 pid 4711, pp1 dp0 tp1) died of SIGKILL".
void LauncherOutput::take_end(std::istream& report) {
  int rank = -1;
  int64_t pid = 0;
  std::string how;
  report >> rank >> pid;
  std::getline(report >> std::ws, how);
  const auto begun = begun_.find(rank);
  const StartedRank r = begun == begun_.end() ? StartedRank{host_name()} : begun->second;
  end_ = cat("rank ", rank, " (", r.host, " pid ", pid, r.coordinates.empty() ? "" : ", ", r.coordinates, ") ", how);
}

void LauncherOutput::print_failures() const {
  for (const auto& [what, ranks] : failed_) {
    std::string list;
    for (const int rank : ranks) list += cat(list.empty() ? "" : ", ", rank);
    forward(cat("gpttrain: ", what.first, ranks.size() > 1 ? ", ranks " : ", rank ", list, ": ", what.second, "\n"));
  }
}

void LauncherOutput::forward(const std::string& text) const { write_all(STDERR_FILENO, text); }

std::map<int, StartedRank> LauncherOutput::begun() const {
  const std::lock_guard lock(mutex_);
  return begun_;
}

bool LauncherOutput::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

LauncherError LauncherOutput::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::string LauncherOutput::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

}  // namespace gt
