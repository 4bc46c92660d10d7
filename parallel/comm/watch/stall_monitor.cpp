#include "parallel/comm/watch/stall_monitor.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "kernels/core/out_of_memory.h"
#include "parallel/comm/watch/stall_report.h"

namespace gt {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void write_error(const std::string& text) {
  const std::string line = "gpttrain: " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // standard error is closed
}

}  // namespace

struct StallMonitor::Impl {
  Impl(const CommBoard& b, int local, StallOptions o) : board(b), me(local), options(std::move(o)) {
    if (!options.print) options.print = write_error;
    if (!options.end) options.end = [](int code, const std::string&) { _exit(code); };
    beat();
    thread = std::thread([this] { run(); });
  }

  void run();
  void beat();
  bool acting(int64_t now) const;
  void check_deaths(int64_t now);
  void check_for_stalls(int64_t now);
  void end_run(const std::vector<RankView>& ranks, int waiter, int64_t now);
  void write_board(int64_t now);
  std::vector<RankView> everybody(int64_t now) const;
  void report_to_hub(int64_t now);
  void check_nodes(int64_t now);
  void lose(const std::string& text);
  void end_all(Exit code, const std::string& text);
  bool diagnoses(int64_t now) const;
  void send_final_report() {  // final report, so that this rank is not reported as lost
    const int64_t now = steady_ns();
    if (options.link && acting(now)) options.link->report({host, verdict, read_board(board, now)}, now);
  }
  void serve_dump_requests(int64_t now);
  void write_stacks(int64_t ticket);
  std::string dump_folder(int64_t ticket) const {
    return cat(options.run_dir, (ticket & 1) != 0 ? "/hang-" : "/dump-", ticket >> 1);
  }
  void give_verdict(const std::string& text) const {
    if (options.verdict) options.verdict(text);
  }
  std::string diagnosis(const std::vector<RankView>& ranks, int waiter, int64_t now) const {
    return stall_text(ranks, diagnose(ranks, &board), waiter, now, host);
  }

  const CommBoard board;
  const int me;  // local rank; -1: all local ranks
  StallOptions options;
  const std::string host = host_name();
  const uint64_t my_pid_space = pid_namespace();
  int64_t awake_since = steady_ns();  // waits are counted from here on
  int64_t last_tick = awake_since;
  std::vector<int> handles;    // pidfd of each local rank; -1: not opened yet, -2: cannot be
  bool ended = false;          // `end` was called
  int requests_served = 0;     // requests of options.dump_requests already served
  int64_t dump_written = 0;    // ticket whose stacks this process has written
  bool lost_reported = false;  // a lost machine was reported
  int64_t last_report = 0;     // to the hub
  std::string verdict;         // about a local rank that died

  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  std::thread thread;
};

void StallMonitor::Impl::beat() {
  const int64_t now = steady_ns();
  for (int r = 0; r < board.ranks; ++r)
    if (me < 0 || r == me) board.pages[r].rank.beat.store(now, kRelaxed);
}

// Whether this monitor reports for the machine: the lowest rank with a live heartbeat.
bool StallMonitor::Impl::acting(int64_t now) const {
  if (me < 0) return true;
  for (int r = 0; r < me; ++r) {
    const RankSlot& s = board.pages[r].rank;
    const RunPhase p = s.phase.load(kRelaxed);
    const bool over = p == RunPhase::kDone || p == RunPhase::kFailed;
    const int64_t b = s.beat.load(kRelaxed);
    if (!over && b != 0 && static_cast<double>(now - b) * 1e-9 < kFrozenSeconds) return false;
  }
  return true;
}

void StallMonitor::Impl::run() {
  const MemoryPurpose purpose("the watch over the ranks");
  std::unique_lock lock(mutex);
  while (!stop) {
    wake.wait_for(lock, std::chrono::duration<double>(options.tick_seconds));
    if (stop) return;
    const int64_t now = steady_ns();
    // This process was stopped for a while, perhaps with all others: restart the counting of waits.
    if (static_cast<double>(now - last_tick) * 1e-9 > kFrozenSeconds) awake_since = now;
    last_tick = now;
    beat();
    if (board.head->ending.load(std::memory_order_acquire) == 2 && !ended) {
      ended = true;
      options.end(static_cast<int>(Exit::kHang), "");
    }
    if (ended) continue;
    serve_dump_requests(now);
    if (me >= 0) check_deaths(now);
    if (ended) continue;
    if (options.hub) check_nodes(now);
    if (ended || !acting(now)) continue;
    if (options.link) report_to_hub(now);
    if (!ended && diagnoses(now)) check_for_stalls(now);
  }
}

void StallMonitor::Impl::check_deaths(int64_t now) {
  handles.resize(static_cast<size_t>(board.ranks), -1);
  for (int r = 0; r < board.ranks; ++r) {
    const RankSlot& s = board.pages[r].rank;
    const int64_t pid = s.pid.load(kRelaxed);
    int& handle = handles[static_cast<size_t>(r)];
    const RunPhase phase = s.phase.load(kRelaxed);
    if (r == me || pid <= 0 || phase == RunPhase::kDone || phase == RunPhase::kFailed) continue;
    if (s.pid_namespace.load(kRelaxed) != my_pid_space) continue;  // its heartbeat is checked when a rank waits for it
    if (handle == -1) {
      handle = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
      if (handle < 0 && errno != ESRCH) handle = -2;
    }
    pollfd p{handle, POLLIN, 0};
    const bool dead = handle >= 0 ? poll(&p, 1, 0) > 0 : kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
    if (!dead) continue;
    // It may have ended normally between the two checks.
    const RunPhase last = s.phase.load(kRelaxed);
    if (last == RunPhase::kDone || last == RunPhase::kFailed) continue;
    if (board.head->death_reported.exchange(1) == 0) {
      const std::vector<RankView> ranks = read_board(board, now);
      const RankView& v = ranks[static_cast<size_t>(r)];
      std::string text = cat(who(v, host), " died: ", to_string(v.phase), ", ", position_text(v.step, v.where));
      const GroupView* g = nullptr;
      for (const GroupView& other : v.groups)
        if (g == nullptr || other.last_start > g->last_start) g = &other;
      if (v.waits)
        text += cat("; waiting in ", to_string(v.wait_call), " #", v.wait_seq);
      else if (g != nullptr && g->posted + g->messages > 0)
        text += cat("; last call: ", g->label, " ", to_string(g->last));
      give_verdict(text);
      options.print(text);
      verdict = text.substr(0, text.find('\n'));
      if (options.link) options.link->report({host, verdict, ranks}, now);
    }
    // A launcher ends the other ranks within about a second; otherwise this monitor does.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    if (options.hub) options.hub->end(verdict);
    ended = true;
    options.end(static_cast<int>(Exit::kInternal), "");
    return;
  }
}

void StallMonitor::Impl::check_for_stalls(int64_t now) {
  std::vector<RankView> ranks = everybody(now);
  const double awake = static_cast<double>(now - awake_since) * 1e-9;
  for (RankView& r : ranks) r.waited_s = std::min(r.waited_s, awake);
  shorten_limits_for_frozen(ranks, &board);
  const auto late = longest_wait(ranks);
  if (!late) {
    if (const int64_t since = board.head->reported.exchange(0); since != 0)
      options.print(cat("the ranks go on after ", (now - since) / 1000000000, " s"));
    return;
  }
  // If the hub was connected and is now silent, it is the cause of the wait: report_to_hub handles that.
  if (options.link && options.link->heard() != 0 && diagnose(ranks, &board).kind == StallKind::kTransport) return;
  const auto begun = now - static_cast<int64_t>(ranks[static_cast<size_t>(*late)].waited_s * 1e9);
  int64_t none = 0;
  if (board.head->reported.compare_exchange_strong(none, begun)) options.print(diagnosis(ranks, *late, now));
  if (options.abort_seconds <= 0 || late_on_checkpoint_io(diagnose(ranks, &board), ranks)) return;
  if (const auto lost = longest_wait(ranks, 1, options.abort_seconds)) {
    int running = 0;
    if (board.head->ending.compare_exchange_strong(running, 1)) end_run(ranks, *lost, now);
  }
}

// Serves dump requests: the first monitor that receives one writes the report, all add their stacks.
void StallMonitor::Impl::serve_dump_requests(int64_t now) {
  const int requests = options.dump_requests ? options.dump_requests() : 0;
  if (requests != requests_served) {
    requests_served = requests;
    constexpr int64_t kSameRequest = 2;  // seconds: a launcher forwards one signal to every rank
    int64_t last = board.head->dump.load(kRelaxed);
    const int64_t ticket = int64_t{std::time(nullptr)} << 1;
    if ((ticket >> 1) - (last >> 1) > kSameRequest && board.head->dump.compare_exchange_strong(last, ticket)) {
      const std::vector<RankView> ranks = read_board(board, now);
      std::string text = board_text(ranks, now, host);
      if (!options.run_dir.empty()) {
        const std::string folder = dump_folder(ticket);
        std::error_code ec;
        std::filesystem::create_directories(folder, ec);
        dump_board(board, ranks, now, folder);
        text += cat("\n  last calls and stacks: ", folder);
      }
      options.print(text);
    }
  }
  const int64_t ticket = board.head->dump.load(kRelaxed);
  if (ticket != dump_written) write_stacks(ticket);
}

void StallMonitor::Impl::write_stacks(int64_t ticket) {
  dump_written = ticket;
  if (options.run_dir.empty() || !options.stacks) return;
  const int first = me < 0 ? 0 : me;
  std::error_code ec;
  std::filesystem::create_directories(dump_folder(ticket), ec);
  std::ofstream(cat(dump_folder(ticket), "/stack-", board.pages[first].rank.world_rank.load(kRelaxed), ".txt"))
      << options.stacks();
}

void StallMonitor::Impl::end_run(const std::vector<RankView>& ranks, int waiter, int64_t now) {
  std::string text = diagnosis(ranks, waiter, now);
  const std::string verdict = text;
  text = cat("hang: the run ends (comm.stall_abort_s ", options.abort_seconds, "); ", text);
  const auto two_ticks = std::chrono::duration<double>(me < 0 ? 0 : 2 * options.tick_seconds);
  if (!options.run_dir.empty()) {
    write_board(now);
    const std::string folder = dump_folder(dump_written);
    std::ofstream report(folder + "/report.txt");
    report << text << "\n";
    report.close();
    text += report.good() ? cat("\n  every rank's last calls and stacks: ", folder)
                          : cat("\n  could not be written to ", folder);
    std::this_thread::sleep_for(two_ticks);  // time for the others to write theirs
  }
  give_verdict(verdict);
  options.print(text);
  end_all(Exit::kHang, text);
}

// Writes the state of this machine's ranks to a new folder; all monitors add their stacks.
void StallMonitor::Impl::write_board(int64_t now) {
  const int64_t ticket = int64_t{std::time(nullptr)} << 1 | 1;
  std::error_code ec;
  std::filesystem::create_directories(dump_folder(ticket), ec);
  dump_board(board, read_board(board, now), now, dump_folder(ticket));
  board.head->dump.store(ticket, kRelaxed);
  write_stacks(ticket);
}

void StallMonitor::Impl::end_all(Exit code, const std::string& text) {
  if (options.hub) options.hub->end(text);
  board.head->ending.store(2, std::memory_order_release);
  // The other monitors of this machine read it within a tick and end with the same code.
  std::this_thread::sleep_for(std::chrono::duration<double>(me < 0 ? 0 : 2 * options.tick_seconds));
  ended = true;
  options.end(static_cast<int>(code), text);
}

namespace {

constexpr double kReportSeconds = 0.5;
// Which of two ways a machine is lost.
const char* why_silent(bool unreachable) {
  return unreachable ? " s: machine down or unreachable" : " s: machine down or unreachable, or processes frozen";
}

double seconds_since(int64_t then, int64_t now) { return static_cast<double>(now - then) * 1e-9; }

bool over(const std::vector<RankView>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const RankView& r) { return r.phase == RunPhase::kDone || r.phase == RunPhase::kFailed; });
}

}  // namespace

// This machine's ranks, then those of other machines as of their last report, which may be old for a silent machine.
std::vector<RankView> StallMonitor::Impl::everybody(int64_t now) const {
  std::vector<RankView> out = read_board(board, now);
  if (!options.hub) return out;
  for (const auto& [rank, node] : options.hub->nodes())
    for (RankView v : node.report.ranks) {
      const double silent = seconds_since(node.heard, now);
      v.silent_s += silent;
      if (v.waits) v.waited_s += silent;
      const bool left = v.phase == RunPhase::kDone || v.phase == RunPhase::kFailed;
      v.frozen = v.frozen || (silent > kFrozenSeconds && !left);
      out.push_back(std::move(v));
    }
  return out;
}

// Whether this monitor diagnoses its machine; a responsive hub does so instead.
bool StallMonitor::Impl::diagnoses(int64_t now) const {
  constexpr double kSilentSeconds = 5;
  if (!options.link) return true;
  return options.link->heard() == 0 || seconds_since(options.link->heard(), now) > kSilentSeconds;
}

void StallMonitor::Impl::lose(const std::string& text) {
  if (!std::exchange(lost_reported, true)) options.print(text);
  if (options.abort_seconds <= 0) return;
  give_verdict(text);
  end_all(Exit::kHang, text);
}

void StallMonitor::Impl::report_to_hub(int64_t now) {
  NodeLink& link = *options.link;
  link.poll(now);
  if (seconds_since(last_report, now) >= kReportSeconds) {
    last_report = now;
    link.report({host, verdict, read_board(board, now)}, now);
  }
  if (link.ended()) {
    if (!options.run_dir.empty()) write_board(now);
    return end_all(Exit::kHang, "");
  }
  // The hub needs time to detect that this machine is the lost one, and its decision has precedence.
  constexpr double kLonger = 5;
  if (link.heard() == 0 || link.done() || over(read_board(board, now))) return;
  constexpr double kPrecedence = 2;
  const double silent = seconds_since(std::max(link.heard(), awake_since), now);
  const bool unreachable = std::min(silent, link.unreachable_s()) > options.unreachable_seconds + kPrecedence;
  if (unreachable || silent > options.lost_seconds + kLonger)
    lose(cat("lost: no sign of life from ", options.hub_name, " for ", static_cast<int>(silent),
             why_silent(unreachable)));
}

void StallMonitor::Impl::check_nodes(int64_t now) {
  constexpr double kGoneSeconds = 3, kAloneGoneSeconds = 2;  // another rank of the machine may take over its reports
  options.hub->poll(now);
  for (const auto& [rank, node] : options.hub->nodes()) {
    if (!node.report.verdict.empty() && board.head->death_reported.exchange(1) == 0) {
      give_verdict(node.report.verdict);
      std::this_thread::sleep_for(std::chrono::seconds(2));  // as for a rank that died here
      return end_all(Exit::kInternal, node.report.verdict);
    }
    if (over(node.report.ranks)) continue;
    const double silent = seconds_since(std::max(node.heard, awake_since), now);
    const double patience = node.report.ranks.size() > 1 ? kGoneSeconds : kAloneGoneSeconds;
    const bool gone = node.closed != 0 && seconds_since(std::max(node.closed, awake_since), now) > patience;
    const bool unreachable = std::min(silent, node.unreachable_s) > options.unreachable_seconds;
    if (!gone && !unreachable && silent <= options.lost_seconds) continue;
    std::string names;
    for (const RankView& v : node.report.ranks)
      names += cat(names.empty() ? "" : ", ", who(v, host).substr(names.empty() ? 0 : 5));
    if (node.report.ranks.size() > 1) names.insert(4, "s");
    return lose(
        gone ? cat("lost: ", names, ": gone without a word")
             : cat("lost: no sign of life from ", names, " for ", static_cast<int>(silent), why_silent(unreachable)));
  }
}

StallMonitor::StallMonitor(const CommBoard& board, int local_rank, StallOptions options)
    : impl_(std::make_unique<Impl>(board, local_rank, std::move(options))) {}

StallMonitor::~StallMonitor() {
  if (impl_->me >= 0) {
    auto& phase = impl_->board.pages[impl_->me].rank.phase;
    RunPhase p = phase.load(kRelaxed);
    if (p != RunPhase::kFailed) phase.store(RunPhase::kDone, kRelaxed);
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  impl_->thread.join();
  impl_->send_final_report();
  for (const int h : impl_->handles)
    if (h >= 0) close(h);
}

void StallMonitor::failed() {
  if (impl_->me >= 0) impl_->board.pages[impl_->me].rank.phase.store(RunPhase::kFailed, kRelaxed);
  const std::lock_guard lock(impl_->mutex);
  impl_->send_final_report();
}

}  // namespace gt
