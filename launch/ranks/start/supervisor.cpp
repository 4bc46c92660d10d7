#include "launch/ranks/start/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "checkpoint/store/peer_copies.h"
#include "checkpoint/store/steps.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"
#include "launch/ranks/copies_job.h"
#include "launch/ranks/ranks.h"
#include "launch/ranks/run_file.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/start/elastic.h"
#include "launch/ranks/start/host_blame.h"
#include "launch/ranks/start/host_facts.h"
#include "launch/ranks/start/host_probe.h"
#include "launch/ranks/start/spawn.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

std::string code_text(int code) {
  return code > 128 && code < 128 + 65 ? fmt::format("{} ({})", code, signal_name(code - 128)) : std::to_string(code);
}

// Committed checkpoint. The inode distinguishes two commits of the same step.
struct Commit {
  int64_t step = -1;
  ino_t inode = 0;
  time_t time = 0;
};

Exit stopped_while_waiting() {
  fmt::print(stderr,
             "gpttrain: stopped while waiting; run the same command again to resume from the newest checkpoint\n");
  return Exit::kInterrupted;
}

class Supervisor {
 public:
  explicit Supervisor(const JobRequest& command)
      : command_(command), config_(command.loaded.config), policy_(config_.launch.max_restarts) {
    if (config_.fault.peer_copies > 0 && config_.launch.max_restarts > 0) copies_ = new_copies_job();
  }
  int run() {
    const int code = run_attempts();
    if (copies_) remove_copies(code != 0);
    return code;
  }

 private:
  int run_attempts();
  JobCommand job();
  void remove_copies(bool everywhere) const;
  bool uses_ssh() const;  // machines are reached over ssh
  bool one_machine() const { return config_.launch.launcher != Launcher::kSlurm && is_local_only(hosts()); }
  std::vector<HostSlots> hosts() const;
  std::vector<HostSlots> reachable_hosts() const;
  int64_t dp() const { return fewer_ ? fewer_->dp : config_.parallel.dp; }
  int world_of(int64_t dp) const { return static_cast<int>(config_.parallel.tp * config_.parallel.pp * dp); }
  int world() const { return world_of(dp()); }  // of the next attempt
  void probe_hosts();                           // sets aside those that do not answer
  void check_lost(const std::string& verdict, const std::vector<HostSlots>& used);  // JobCommand::lost
  std::string away_text() const;
  std::string lost_machines(const std::vector<HostSlots>& used, const std::vector<std::string>& among) const;
  void blame_machines(AttemptEnd&, std::string& suspect, const std::vector<HostSlots>& used);
  bool choose_layout();  // for the machines that answer; false: they lack slots for any
  void note_layout(const std::optional<Replicas>& before) const;
  std::function<bool(bool)> recall() const;  // JobCommand::recall of a job with fewer replicas
  int64_t more_replicas(const std::vector<std::string>& answering, std::vector<HostSlots>& use) const;
  // Waits until the answering machines have slots for all ranks; returns an exit code if that fails.
  std::optional<Exit> await_hosts(const SignalGate&);
  std::vector<Commit> commits() const;  // newest first
  Commit newest() const { return commits().empty() ? Commit() : commits().front(); }
  int64_t last_logged_step() const;
  time_t last_log_time() const;
  void note(const AttemptEnd&, const RestartDecision&, const std::string& suspect, const Commit& before,
            const Commit& after, double lost) const;
  void append_record(const Json&) const;                // to restarts.jsonl
  bool pause(const SignalGate&, double seconds) const;  // false: stopped by a signal

  const JobRequest& command_;
  const Config& config_;
  RestartPolicy policy_;
  HostBlame blame_;
  std::vector<std::string> excluded_;           // excluded machines
  std::vector<UnreachableHost> unreachable_;    // set aside for the next start
  Clock::time_point probed_;                    // time of that check
  std::unique_ptr<LostHostsCheck> lost_check_;  // in progress
  std::vector<std::string> checked_;            // hosts that it covered, until the next check of all
  std::vector<UnreachableHost> lost_;           // those of them that did not answer
  std::optional<int64_t> resume_;               // step that the next attempt resumes from; empty: auto
  std::optional<Replicas> fewer_;               // layout of the next attempt; empty: that of the config
  int64_t attempt_ = 0;
  bool again_ = false, committed_ = false, copies_failed_ = false;
  std::optional<CopiesJob> copies_;  // empty: the ranks keep none
  int64_t reached_ = -1;             // last step of any attempt
};

// Resumes from the run folder's newest checkpoint, unless none of this job is in it and the user requested otherwise.
JobCommand Supervisor::job() {
  std::vector<std::string> words = command_.words;
  const std::string& requested = config_.checkpoint.resume;
  if (again_ && resume_) {
    words.insert(words.end(), {"--checkpoint.resume", std::to_string(*resume_)});
  } else if (again_ && committed_) {
    words.insert(words.end(), {"--checkpoint.resume", "auto"});
  } else if (again_ && requested == "never" && std::find(words.begin(), words.end(), "--force") == words.end()) {
    words.emplace_back("--force");  // the folder's content is its own
  }
  if (fewer_)
    for (std::string& flag : replica_flags(config_, *fewer_)) words.push_back(std::move(flag));
  SpawnOptions options = spawn_options(config_);
  options.hosts = reachable_hosts();
  options.stall_abort_s = stall_abort_seconds(command_);
  if (copies_) options.variables.emplace_back(kCopiesVariable, to_text(*copies_));
  const bool alone = config_.world() == 1 && is_local_only(options.hosts);
  JobCommand out = job_command(world(), alone || config_.launch.ranks == RankKind::kThreads, words, options);
  if (fewer_) out.recall = recall();
  if (uses_ssh()) out.lost = [this, used = options.hosts](const std::string& verdict) { check_lost(verdict, used); };
  return out;
}

// Hosts of the config except the excluded ones.
std::vector<HostSlots> Supervisor::hosts() const {
  std::vector<HostSlots> out = chosen_hosts(config_.launch);
  std::erase_if(out, [&](const HostSlots& h) {
    return std::find(excluded_.begin(), excluded_.end(), h.host) != excluded_.end();
  });
  return out;
}

// hosts() except those that do not answer now.
std::vector<HostSlots> Supervisor::reachable_hosts() const {
  std::vector<HostSlots> out = hosts();
  std::erase_if(out, [&](const HostSlots& h) {
    return std::any_of(unreachable_.begin(), unreachable_.end(),
                       [&](const UnreachableHost& u) { return u.host == h.host; });
  });
  return out;
}

bool Supervisor::uses_ssh() const {
  return config_.launch.launcher == Launcher::kOpenMpi && config_.launch.ranks == RankKind::kProcesses &&
         !is_local_only(hosts());
}

// Except those that were just checked while the job ended.
void Supervisor::probe_hosts() {
  std::vector<HostSlots> others = hosts();
  std::erase_if(others, [&](const HostSlots& h) {
    return std::find(checked_.begin(), checked_.end(), h.host) != checked_.end();
  });
  unreachable_ = unreachable_hosts(others, static_cast<int>(config_.launch.ssh_port));
  unreachable_.insert(unreachable_.end(), lost_.begin(), lost_.end());
  checked_.clear();
  lost_.clear();
  probed_ = Clock::now();
}

void Supervisor::check_lost(const std::string& verdict, const std::vector<HostSlots>& used) {
  if (!verdict.empty()) {
    std::vector<std::string> all;
    for (const HostSlots& h : hosts()) all.push_back(h.host);
    lost_check_ =
        std::make_unique<LostHostsCheck>(blamed_hosts(verdict, used), all, static_cast<int>(config_.launch.ssh_port));
  } else if (const auto check = std::move(lost_check_)) {
    lost_ = check->finish();
    checked_ = check->known();
  }
}

std::string Supervisor::away_text() const {
  std::string out;
  for (const UnreachableHost& u : unreachable_) out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", u.host, u.why);
  return out;
}

// Returns machines of the attempt that no longer answer, of those in `among` unless it is empty; "" if none.
std::string Supervisor::lost_machines(const std::vector<HostSlots>& used, const std::vector<std::string>& among) const {
  std::string out;
  for (const UnreachableHost& u : unreachable_) {
    if (!among.empty() && std::find(among.begin(), among.end(), u.host) == among.end()) continue;
    const std::string who = host_with_ranks(used, u.host, world());
    if (who != u.host) out += fmt::format("{}lost: {} does not answer: {}", out.empty() ? "" : "; ", who, u.why);
  }
  return out;
}

bool Supervisor::choose_layout() {
  const int slots = total_slots(reachable_hosts());
  const std::optional<Replicas> before = fewer_;
  if (unreachable_.empty() || slots >= world_of(config_.parallel.dp)) {
    fewer_.reset();
  } else if (const auto fewer = fewer_replicas(command_.loaded, slots)) {
    fewer_ = fewer;
  } else {
    return false;
  }
  if (fewer_ != before) note_layout(before);
  return true;
}

void Supervisor::note_layout(const std::optional<Replicas>& before) const {
  const TrainSection& t = config_.train;
  const int64_t was = before ? before->dp : config_.parallel.dp;
  const Replicas is = fewer_.value_or(Replicas{config_.parallel.dp, t.micro_batch, t.grad_accum});
  const int64_t step = resume_.value_or(newest().step);
  const std::string why = unreachable_.empty() ? "all hosts answer" : away_text();
  fmt::print(stderr, "gpttrain: dp {} -> {} from {}: {}; global_batch {} = micro_batch {} x grad_accum {} x dp {}\n",
             was, is.dp, step < 0 ? std::string("the beginning") : fmt::format("step {}", step), why, t.global_batch,
             is.micro_batch, is.grad_accum, is.dp);
  append_record({{"time", std::time(nullptr)},
                 {"action", fmt::format("dp {} -> {}", was, is.dp)},
                 {"why", why},
                 {"step", step < 0 ? Json(nullptr) : Json(step)},
                 {"micro_batch", is.micro_batch},
                 {"grad_accum", is.grad_accum},
                 {"seconds_lost", 0.0}});
}

// Returns the replicas that the hosts allow with those that answer again, and the hosts to `use`; 0 if they allow no
// more than now.
int64_t Supervisor::more_replicas(const std::vector<std::string>& answering, std::vector<HostSlots>& use) const {
  std::vector<HostSlots> all = hosts();
  std::erase_if(all, [&](const HostSlots& h) {
    return std::find(answering.begin(), answering.end(), h.host) == answering.end() &&
           std::any_of(unreachable_.begin(), unreachable_.end(), [&](const auto& u) { return u.host == h.host; });
  });
  int64_t more = config_.parallel.dp;
  if (const int slots = total_slots(all); slots < world_of(more)) {
    const auto layout = fewer_replicas(command_.loaded, slots);
    more = layout ? layout->dp : 0;
  }
  if (more <= fewer_->dp) return 0;
  use = hosts_in_use(all, world_of(more));
  return more;
}

// Stops the job at the first checkpoint that it commits after lost hosts have answered, and not before it has run with
// them for a while if they were not ready. A check whether they are precedes: a start that fails on them would end a
// job that runs well. It does not block, so that signals and verdicts are served meanwhile.
std::function<bool(bool)> Supervisor::recall() const {
  struct State {
    std::optional<ReturnWatch> watch;
    std::optional<Commit> first;
    std::unique_ptr<ReadyCheck> check;  // in progress
    std::string hosts;                  // that answered when it began
    int64_t dp = 0;                     // with them
  };
  std::vector<std::string> lost;
  for (const UnreachableHost& u : unreachable_) lost.push_back(u.host);
  const auto state = std::make_shared<State>();
  state->watch.emplace(lost, static_cast<int>(config_.launch.ssh_port));
  return [this, state](bool running) {
    State& s = *state;
    if (!running) return s.check.reset(), s.watch->stop(), false;
    if (s.check) {
      if (!s.check->done()) return false;
      const std::unique_ptr<ReadyCheck> check = std::move(s.check);
      try {
        check->require();
      } catch (const Error& e) {
        fmt::print(stderr, "gpttrain: {} answers again, but is not ready: {}\n", s.hosts, e.what());
        return false;
      }
      fmt::print(stderr, "gpttrain: {} answers again; the job stops here and restarts with dp {}\n", s.hosts, s.dp);
      return true;
    }
    const std::vector<std::string>& answering = s.watch->answering();
    if (answering.empty()) return s.first.reset(), false;
    const Commit latest = newest();
    if (!s.first) s.first = latest;
    if (latest.step == s.first->step && latest.inode == s.first->inode) return false;
    s.first = latest;
    std::vector<HostSlots> use;
    s.dp = more_replicas(answering, use);
    if (s.dp == 0) return false;
    s.hosts = fmt::format("{}", fmt::join(answering, ", "));
    s.check = std::make_unique<ReadyCheck>(use, static_cast<int>(config_.launch.ssh_port));
    return false;
  };
}

std::optional<Exit> Supervisor::await_hosts(const SignalGate& gate) {
  constexpr double kPatienceSeconds = 1800, kLongestPause = 15;
  const auto begin = Clock::now();
  for (double wait = 1;; wait = std::min(kLongestPause, 2 * wait)) {
    if (wait > 1 || seconds_since(probed_) > 3) probe_hosts();
    const int needed = world_of(config_.parallel.dp);
    if (total_slots(reachable_hosts()) < needed && !excluded_.empty()) {  // an excluded host is better than none
      fmt::print(stderr, "gpttrain: excluded machines are used again, because too few are left: {}\n",
                 fmt::join(excluded_, ", "));
      excluded_.clear();
      probe_hosts();
    }
    if (choose_layout()) {
      if (!unreachable_.empty()) fmt::print(stderr, "gpttrain: set aside for this start: {}\n", away_text());
      return std::nullopt;
    }
    if (wait == 1)
      fmt::print(stderr, "gpttrain: {} of {} slots can be reached; waiting up to {:.0f} min for {}\n",
                 total_slots(reachable_hosts()), needed, kPatienceSeconds / 60, away_text());
    if (seconds_since(begin) > kPatienceSeconds) {
      fmt::print(stderr,
                 "gpttrain: still unreachable: {}; add machines to launch.hostfile, or start with fewer ranks\n",
                 away_text());
      return Exit::kIo;
    }
    if (!pause(gate, wait)) return stopped_while_waiting();
  }
}

std::vector<Commit> Supervisor::commits() const {
  std::vector<Commit> out;
  try {
    for (const auto& [step, path] : list_steps(config_.checkpoint_dir())) {
      struct stat s {};
      if (stat(path.c_str(), &s) == 0) out.push_back({step, s.st_ino, s.st_mtime});
    }
  } catch (const Error&) {  // unreadable: count as no progress
  }
  return out;
}

int64_t Supervisor::last_logged_step() const {
  std::string end(size_t{64} << 10, '\0');
  try {
    const Fd log = open_to_read(config_.run_dir() + "/log.jsonl");
    const int64_t from = std::max<int64_t>(0, lseek(log.get(), 0, SEEK_END) - static_cast<int64_t>(end.size()));
    end.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(log.get(), end.data(), end.size(), from))));
  } catch (const Error&) { return -1; }
  std::istringstream in(end);
  int64_t last = -1;
  for (std::string line; std::getline(in, line);) {
    const auto j = parse_json_if_valid<nlohmann::json>(line);
    if (j.is_object() && j.value("type", "") == "step") last = j.value("step", last);
  }
  return last;
}

time_t Supervisor::last_log_time() const {
  struct stat s {};
  return stat((config_.run_dir() + "/log.jsonl").c_str(), &s) == 0 ? s.st_mtime : 0;
}

// Ranks that end well delete theirs; `everywhere`: on other machines too.
void Supervisor::remove_copies(bool everywhere) const {
  const std::string folder = peer_copies_folder(PeerCopyOptions{}.folder, copies_->job);
  std::error_code ec;
  fs::remove_all(folder, ec);
  if (!everywhere || !uses_ssh() || other_agent_than_ssh()) return;
  std::vector<std::string> names;
  for (const HostSlots& h : chosen_hosts(config_.launch)) names.push_back(h.host);
  constexpr double kLimitSeconds = 8;
  run_on_hosts(names, "rm -rf " + folder, static_cast<int>(config_.launch.ssh_port), kLimitSeconds);
}

void Supervisor::note(const AttemptEnd& end, const RestartDecision& d, const std::string& suspect, const Commit& before,
                      const Commit& after, double lost) const {
  const auto step = [](int64_t n) { return n < 0 ? Json(nullptr) : Json(n); };
  append_record({{"time", std::time(nullptr)},
                 {"code", end.code},
                 {"suspect", suspect.empty() ? Json(nullptr) : Json(suspect)},
                 {"step_before", step(before.step)},
                 {"step_after", step(after.step)},
                 {"step_reached", step(end.reached)},
                 {"seconds", end.seconds},
                 {"seconds_lost", lost},
                 {"action", d.restart ? "restart" : "stop"},
                 {"delay", d.delay_s},
                 {"resume", resume_ ? step(*resume_) : Json("auto")},
                 {"left_out", excluded_}});
}

void Supervisor::append_record(const Json& record) const {
  std::error_code ec;
  fs::create_directories(config_.run_dir(), ec);
  try {
    append_run_file(config_.run_dir() + "/restarts.jsonl", record.dump() + "\n");
  } catch (const Error& e) { fmt::print(stderr, "gpttrain: {}\n", e.what()); }
}

bool Supervisor::pause(const SignalGate& gate, double seconds) const {
  const auto begin = Clock::now();
  for (double left = seconds; left > 0; left = seconds - seconds_since(begin)) {
    const int n = gate.wait(left);
    if (n == SIGUSR2) fmt::print(stderr, "gpttrain: waiting another {:.0f} s before the next start\n", left);
    if (n != 0 && n != SIGUSR2 && n != SIGCHLD) return false;
  }
  return true;
}

// Blames machines that no longer answer, which return when they do; otherwise those that the verdict names. If it names
// any, other machines that do not answer at this moment are not the cause: they are set aside for the next start only.
void Supervisor::blame_machines(AttemptEnd& end, std::string& suspect, const std::vector<HostSlots>& used) {
  const std::vector<std::string> named = blamed_hosts(suspect, used);
  if (uses_ssh()) probe_hosts();
  if (const std::string lost = lost_machines(used, named); !lost.empty()) {
    suspect = lost;
    end.machine_lost = true;
    return;
  }
  const std::string bad_host = blame_.after(end.code, suspect, used, world());
  end.elsewhere = !bad_host.empty();
  if (!end.elsewhere) return;
  excluded_.push_back(bad_host);
  fmt::print(stderr, "gpttrain: {} is excluded from now on\n", bad_host);
}

int Supervisor::run_attempts() {
  const SignalGate gate;
  if (stop_requested()) return static_cast<int>(Exit::kInterrupted);  // received before the gate existed
  const Commit at_start = newest();
  std::optional<int64_t> highest;  // highest step committed by this job; committing it again is not progress
  for (int64_t restarts = 0;;) {
    const Commit before = newest();
    const int64_t from = resume_ ? *resume_ : config_.checkpoint.resume == "never" && !committed_ ? -1 : before.step;
    if (!highest) highest = from;
    if (const auto code = uses_ssh() ? await_hosts(gate) : std::nullopt) return static_cast<int>(*code);
    const std::vector<HostSlots> used = reachable_hosts();
    if (attempt_ == 0 && uses_ssh())
      require_ready_hosts(hosts_in_use(used, world()), static_cast<int>(config_.launch.ssh_port));
    ++attempt_;
    if (copies_) copies_->attempt = attempt_, copies_->restores = again_ && !resume_ && !copies_failed_;
    const auto begin = Clock::now();
    const time_t begun = std::time(nullptr);
    const JobEnd job_end = run_job(job(), gate, static_cast<int>(config_.launch.grace_s));
    std::string suspect = job_end.verdict;
    const Commit after = newest();
    const bool newer = after.step >= 0 && (after.step != before.step || after.inode != before.inode);
    committed_ = committed_ || (after.step >= 0 && (after.step != at_start.step || after.inode != at_start.inode));
    const bool saved = job_end.code == static_cast<int>(Exit::kInterrupted);
    // A rank that received a stop signal by itself stopped the job: on this machine a person sent it. On others it may
    // be the shutdown of a host, without which the job goes on.
    const bool rank_stopped = saved && !job_end.recalled && one_machine();
    AttemptEnd end{.code = job_end.code,
                   .stop_requested = job_end.stopped != 0 || rank_stopped,
                   .progressed = newer && after.step > *highest,
                   .seconds = seconds_since(begin),
                   .resumed_from = after.step,
                   .reached = last_logged_step(),
                   .finished = after.step >= config_.train.steps && (committed_ || from >= config_.train.steps)};
    if (copies_ && end.reached > reached_) end.progressed = true;
    reached_ = std::max(reached_, end.reached);
    if (newer) highest = std::max(*highest, after.step);
    if (job_end.recalled && !end.stop_requested && saved) {
      again_ = true;
      resume_.reset();
      continue;  // no failure: uses up no restart
    }
    const bool failed = end.code != 0 && !end.stop_requested;
    if (!failed) return end.code;
    blame_machines(end, suspect, used);
    const RestartDecision d = policy_.after(end);
    if (newer || !end.machine_lost) resume_.reset();
    copies_failed_ = d.older_step;  // its cause may lie in the state that they hold
    if (const auto all = commits(); d.older_step && all.size() > 1) resume_ = all[1].step;
    const time_t kept = copies_ && !resume_ && !copies_failed_ ? last_log_time() : newer ? after.time : begun;
    const double lost = static_cast<double>(std::time(nullptr) - std::max(begun, kept)) + d.delay_s;
    note(end, d, suspect, before, after, lost);
    const std::string what = fmt::format("the run ended with {}{}", code_text(end.code),
                                         suspect.empty() ? "" : fmt::format(": {}", suspect));
    if (!d.restart) {
      fmt::print(stderr, "gpttrain: {}; {}\n", what, d.why);
      return end.code;
    }
    again_ = true;
    const std::string later = copies_ && !copies_failed_ ? " or a later one in memory" : "";
    fmt::print(stderr, "gpttrain: {}; restart {} of {} in {:.0f} s, from {} ({}/restarts.jsonl)\n", what, ++restarts,
               config_.launch.max_restarts, d.delay_s,
               resume_          ? fmt::format("step {}, the second newest: two attempts failed at one step", *resume_)
               : after.step < 0 ? cat("the beginning", later)
                                : cat("step ", after.step, later),
               config_.run_dir());
    if (!pause(gate, d.delay_s)) return static_cast<int>(stopped_while_waiting());
  }
}

}  // namespace

RestartDecision RestartPolicy::after(const AttemptEnd& end) {
  RestartDecision d;
  if (end.code == 0 || end.stop_requested) return d;
  if (end.finished) {
    d.why =
        "all steps are made and the checkpoint of the last one is committed: not restarting; what failed after "
        "them is in the message above";
    return d;
  }
  for (const Exit never : {Exit::kUsage, Exit::kHardware, Exit::kNumerical, Exit::kDamaged})
    if (end.code == static_cast<int>(never) && !end.machine_lost && !(never == Exit::kHardware && end.elsewhere)) {
      d.why = never == Exit::kHardware ? "it cannot restart on the same machine, and there is no other"
                                       : "a restart would end the same way";
      return d;
    }
  if (end.progressed) delays_ = 0;
  if (end.machine_lost) return restart(d);
  failures_ = end.progressed ? 0 : failures_ + 1;
  const bool same =
      !end.progressed && end.reached >= 0 && end.reached == last_reached_ && end.resumed_from == last_from_;
  last_reached_ = end.reached;
  last_from_ = end.resumed_from;
  if (failures_ >= kFailuresWithoutProgress && left_ > 0) {
    d.why = fmt::format("{} attempts in a row committed no newer checkpoint: not restarting", failures_);
    return d;
  }
  d = restart(d);
  d.older_step = d.restart && same;
  return d;
}

RestartDecision RestartPolicy::restart(RestartDecision d) {
  if (left_ <= 0) {
    d.why = "no restarts left (launch.max_restarts)";
    return d;
  }
  --left_;
  d.restart = true;
  d.delay_s = delays_ == 0 ? 0 : std::min(60.0, static_cast<double>(int64_t{1} << std::min(delays_ - 1, 6)));
  ++delays_;
  return d;
}

bool needs_supervisor(const JobRequest& command) {
  const bool restarts = command.loaded.config.launch.max_restarts > 0;
  if (started_by_launch_ranks() || (!restarts && command.name != "launch")) return false;
  GT_REQUIRE(!command.env.launched(), Exit::kUsage,
             "launch.max_restarts: these ranks were started by another launcher (", command.env.source,
             "), which has to restart them itself; start one gpttrain process without it");
  return true;
}

int supervise(const JobRequest& command) { return Supervisor(command).run(); }

}  // namespace gt
