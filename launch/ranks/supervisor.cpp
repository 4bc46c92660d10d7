#include "launch/ranks/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/steps.h"
#include "kernels/core/check.h"
#include "launch/ranks/host_blame.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/spawn.h"

namespace gt {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

std::string code_text(int code) {
  return code > 128 && code < 128 + 65 ? fmt::format("{} ({})", code, signal_name(code - 128)) : std::to_string(code);
}

// A committed step: a directory keeps its inode, another commit of the same number has another.
struct Commit {
  int64_t step = -1;
  ino_t inode = 0;
  time_t time = 0;
};

class Supervisor {
 public:
  explicit Supervisor(const Command& command)
      : command_(command), config_(command.loaded.config), policy_(config_.launch.max_restarts) {}
  int run();

 private:
  JobCommand job() const;
  std::vector<HostSlots> hosts() const;
  std::vector<Commit> commits() const;  // newest first
  Commit newest() const { return commits().empty() ? Commit() : commits().front(); }
  int64_t last_logged_step() const;
  std::string take_verdict() const;
  void note(const AttemptEnd&, const RestartDecision&, const std::string& suspect, const Commit& before,
            const Commit& after, double lost) const;
  bool pause(const SignalGate&, double seconds) const;  // false: somebody wants it to stop
  std::string verdict_file() const { return config_.run_dir() + "/.verdict"; }

  const Command& command_;
  const Config& config_;
  RestartPolicy policy_;
  HostBlame blame_;
  std::vector<std::string> left_out_;  // machines
  std::optional<int64_t> resume_;  // of the next attempt: a step; nothing: auto
  bool again_ = false, committed_ = false;
};

// The newest step of this run's folder, unless nothing of this job is in it and the user wanted something else.
JobCommand Supervisor::job() const {
  std::vector<std::string> words = command_.words;
  const std::string& asked = config_.checkpoint.resume;
  if (again_ && resume_) {
    words.insert(words.end(), {"--checkpoint.resume", std::to_string(*resume_)});
  } else if (again_ && committed_) {
    words.insert(words.end(), {"--checkpoint.resume", "auto"});
  } else if (again_ && asked == "never" && std::find(words.begin(), words.end(), "--force") == words.end()) {
    words.emplace_back("--force");  // what it finds in the folder is its own
  }
  SpawnOptions options = spawn_options(config_.launch);
  options.hosts = hosts();
  options.verdict_file = fs::absolute(verdict_file()).string();
  const bool alone = config_.world() == 1 && only_here(options.hosts);
  return job_command(static_cast<int>(config_.world()), alone || config_.launch.ranks == "threads", words, options);
}

// Those of the config, less those left out.
std::vector<HostSlots> Supervisor::hosts() const {
  std::vector<HostSlots> out = chosen_hosts(config_.launch);
  std::erase_if(out, [&](const HostSlots& h) {
    return std::find(left_out_.begin(), left_out_.end(), h.host) != left_out_.end();
  });
  return out;
}

std::vector<Commit> Supervisor::commits() const {
  std::vector<Commit> out;
  try {
    for (const auto& [step, path] : list_steps(config_.checkpoint_dir())) {
      struct stat s {};
      if (stat(path.c_str(), &s) == 0) out.push_back({step, s.st_ino, s.st_mtime});
    }
  } catch (const Error&) {  // cannot be read now: no progress that we know of
  }
  return out;
}

int64_t Supervisor::last_logged_step() const {
  std::ifstream in(config_.run_dir() + "/log.jsonl", std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(in ? static_cast<std::streamoff>(in.tellg()) : 0);
  in.seekg(std::max<int64_t>(0, size - (64 << 10)));
  int64_t last = -1;
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object() && j.value("type", "") == "step") last = j.value("step", last);
  }
  return last;
}

std::string Supervisor::take_verdict() const {
  std::ifstream in(verdict_file());
  std::string line;
  std::getline(in, line);
  std::error_code ec;
  fs::remove(verdict_file(), ec);
  return line;
}

void Supervisor::note(const AttemptEnd& end, const RestartDecision& d, const std::string& suspect, const Commit& before,
                      const Commit& after, double lost) const {
  std::error_code ec;
  fs::create_directories(config_.run_dir(), ec);
  std::ofstream out(config_.run_dir() + "/restarts.jsonl", std::ios::app);
  using Json = nlohmann::ordered_json;
  const auto step = [](int64_t n) { return n < 0 ? Json(nullptr) : Json(n); };
  out << Json{{"time", std::time(nullptr)},
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
              {"left_out", left_out_}}
             .dump()
      << "\n";
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

int Supervisor::run() {
  const SignalGate gate;
  const Commit at_start = newest();
  std::optional<int64_t> highest;  // step that this job had reached with a checkpoint; made again, it is no progress
  for (int64_t restarts = 0;; ++restarts) {
    const Commit before = newest();
    const int64_t from = resume_ ? *resume_ : config_.checkpoint.resume == "never" && !committed_ ? -1 : before.step;
    if (!highest) highest = from;
    const auto begin = Clock::now();
    const time_t begun = std::time(nullptr);
    const JobEnd job_end = run_job(job(), gate, static_cast<int>(config_.launch.grace_s));
    const std::string suspect = take_verdict();
    const Commit after = newest();
    const bool newer = after.step >= 0 && (after.step != before.step || after.inode != before.inode);
    committed_ = committed_ || (after.step >= 0 && (after.step != at_start.step || after.inode != at_start.inode));
    AttemptEnd end{.code = job_end.code,
                   .asked_to_stop = job_end.stopped != 0,
                   .progressed = newer && after.step > *highest,
                   .seconds = seconds_since(begin),
                   .resumed_from = after.step,
                   .reached = last_logged_step()};
    if (newer) highest = std::max(*highest, after.step);
    const bool failed = end.code != 0 && !end.asked_to_stop;
    if (!failed) return end.code;
    const std::string bad_host = blame_.after(end.code, suspect, hosts(), static_cast<int>(config_.world()));
    end.elsewhere = !bad_host.empty();
    if (end.elsewhere) left_out_.push_back(bad_host);
    const RestartDecision d = policy_.after(end);
    resume_.reset();
    if (const auto all = commits(); d.older_step && all.size() > 1) resume_ = all[1].step;
    const double lost =
        static_cast<double>(std::time(nullptr) - std::max(begun, newer ? after.time : begun)) + d.delay_s;
    note(end, d, suspect, before, after, lost);
    if (end.elsewhere) fmt::print(stderr, "gpttrain: {} is left out from now on\n", bad_host);
    const std::string what = fmt::format("the run ended with {}{}", code_text(end.code),
                                         suspect.empty() ? "" : fmt::format(": {}", suspect));
    if (!d.restart) {
      fmt::print(stderr, "gpttrain: {}; {}\n", what, d.why);
      return end.code;
    }
    again_ = true;
    fmt::print(stderr, "gpttrain: {}; restart {} of {} in {:.0f} s, from {} ({}/restarts.jsonl)\n", what, restarts + 1,
               config_.launch.max_restarts, d.delay_s,
               resume_ ? fmt::format("step {}, the one before the newest: it failed twice at one step", *resume_)
               : after.step < 0 ? std::string("the beginning")
                                : fmt::format("step {}", after.step),
               config_.run_dir());
    if (!pause(gate, d.delay_s)) {
      fmt::print(stderr,
                 "gpttrain: stopped while waiting; the same command again goes on from the newest checkpoint\n");
      return static_cast<int>(Exit::kInterrupted);
    }
  }
}

}  // namespace

RestartDecision RestartPolicy::after(const AttemptEnd& end) {
  RestartDecision d;
  if (end.code == 0 || end.asked_to_stop) return d;
  for (const Exit never : {Exit::kUsage, Exit::kHardware, Exit::kNumerical, Exit::kDamaged})
    if (end.code == static_cast<int>(never) && !(never == Exit::kHardware && end.elsewhere)) {
      d.why = never == Exit::kHardware ? "it must go on elsewhere: there is no other machine to start it on"
                                       : "a restart would end the same way";
      return d;
    }
  if (end.progressed && end.seconds >= 600) delays_ = 0;
  failures_ = end.progressed ? 0 : failures_ + 1;
  const bool same =
      !end.progressed && end.reached >= 0 && end.reached == last_reached_ && end.resumed_from == last_from_;
  last_reached_ = end.reached;
  last_from_ = end.resumed_from;
  if (left_ <= 0) {
    d.why = "no restart is left (launch.max_restarts)";
    return d;
  }
  if (failures_ >= kFailuresWithoutProgress) {
    d.why = fmt::format("{} attempts in a row committed no newer checkpoint: it is not started again", failures_);
    return d;
  }
  --left_;
  d.restart = true;
  d.older_step = same;
  d.delay_s = delays_ == 0 ? 0 : std::min(60.0, static_cast<double>(int64_t{1} << std::min(delays_ - 1, 6)));
  ++delays_;
  return d;
}

bool wants_supervisor(const Command& command) {
  const bool restarts = command.loaded.config.launch.max_restarts > 0;
  if (started_by_launch_ranks() || (!restarts && command.name != "launch")) return false;
  GT_REQUIRE(!command.env.launched(), Exit::kUsage,
             "launch.max_restarts: these ranks were started by another launcher (", command.env.source,
             "), which is the one to restart them; start one gpttrain process without it");
  return true;
}

int supervise(const Command& command) { return Supervisor(command).run(); }

}  // namespace gt
