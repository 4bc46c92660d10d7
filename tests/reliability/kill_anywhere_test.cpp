// Kills and stop signals at random times of a run, with every launch method: no checkpoint is lost, exit codes are
// documented ones, and nothing hangs or stays behind.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>

#include "checkpoint/steps.h"
#include "kernels/core/check.h"
#include "launch/ranks/signals.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int kLimit = 60;  // seconds for a run to end after a signal
constexpr int64_t kSteps = 60;

struct Way {
  const char* name;
  const char* words;
  bool supervised;
};
constexpr Way kWays[] = {{"one rank", "", false},
                         {"threads", "--pp 2 --launch.ranks threads", false},
                         {"MPI", "--tp 2", false},
                         {"supervisor", "--tp 2 --launch.max_restarts 20 --comm.stall_warn_s 8", true}};

const std::string kRun =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant "
    "--checkpoint.every 7 --checkpoint.keep 3 --train.steps 60 --fault.inject delay@step:rank=0,ms=15 ";

int64_t newest(const std::string& run) {
  try {
    const auto steps = list_steps(run + "/checkpoints");
    return steps.empty() ? 0 : steps.front().first;
  } catch (const Error&) {  // does not exist yet
    return 0;
  }
}

struct Fault {
  int signal = 0;
  bool rank = false;   // target a rank; otherwise the process that the user started
  double after_s = 0;  // since the start
  int64_t had = 0;     // newest committed step when the signal came
  bool sent = false;
  bool stopped = false;  // by SIGTERM to the supervisor, once it had resumed
};

bool allowed(const Fault& s, const Outcome& r) {
  if (r.code == 0) return true;  // it had ended, or the supervisor recovered
  if (s.stopped && r.code == 75) return true;
  if (s.signal == SIGKILL) return r.code == 128 + SIGKILL || (s.rank && r.code == 70);
  // Before main() no handler is installed, and nothing is printed.
  return r.code == 75 || (r.code == 128 + s.signal && r.out.empty());
}

// Returns the last step that a run reported; 0: none.
int64_t last_step(const std::string& out) {
  const size_t at = out.rfind("\nstep ");
  return at == std::string::npos ? 0 : std::atoll(out.c_str() + at + 6);
}

// Returns what is left behind. Processes of a killed parent get some seconds to exit.
std::string rest_of(const std::string& folder) {
  std::string left;
  for (int i = 0; i < 150 && (i == 0 || !left.empty()); ++i) {
    if (i > 0) usleep(100000);
    left = left_behind(folder, {});
  }
  return left;
}

}  // namespace

TEST_CASE("kills and signals at any time, in all launch modes: nothing is lost, hangs or ends undocumented", "[R30]") {
  const int kills = goal_size(kSanitized ? 2 : 8, 200), signals = goal_size(kSanitized ? 2 : 8, 100);
  std::mt19937_64 random(goal_seed());
  TempDir dir;
  std::map<std::string, int> round, codes;
  int interrupted = 0, hits = 0, sent = 0;
  for (int n = 0; n < kills + signals; ++n) {
    const Way& way = kWays[n % 4];
    Fault s;
    constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    s.signal = n < kills ? SIGKILL : kSignals[random() % 4];
    s.rank = way.words[0] != 0 && std::string(way.words).find("threads") == std::string::npos && random() % 2 == 0;
    s.after_s = static_cast<double>(random() % 3000) / 1000;
    const std::string name = cat(way.supervised ? "s" : "r", n % 4, "-", round[way.name]), run = dir / ("runs/" + name);
    const auto begin = std::chrono::steady_clock::now();
    const Outcome r = gpttrain(kRun + way.words + " --log.name " + name, dir.path(), kLimit + 4, [&](int pid) {
      usleep(static_cast<useconds_t>(1e6 * s.after_s));
      s.had = newest(run);
      int target = pid;
      if (s.rank) {
        target = process_of(pid, static_cast<int>(random() % 2));
        if (target == 0) target = pid;  // ranks have not started yet
      }
      s.sent = kill(target, s.signal) == 0;
      if (!way.supervised || target == pid || s.had >= kSteps) return;
      for (int i = 0; i < 400 && newest(run) <= s.had; ++i) usleep(100000);  // it resumes by itself
      CHECK(newest(run) > s.had);
      s.stopped = kill(pid, SIGTERM) == 0;
    });
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const int64_t has = newest(run);
    const std::string left = rest_of(dir.path());
    INFO(n << ": " << way.name << ", " << (s.signal == SIGKILL ? "SIGKILL" : signal_name(s.signal)) << " to "
           << (s.rank ? "a rank" : "the parent") << " after " << s.after_s << " s; had step " << s.had << ", has "
           << has << "; " << took << " s, code " << r.code << "\n"
           << r.out);
    CHECK(has >= s.had);
    CHECK(allowed(s, r));
    CHECK(took < kLimit);
    CHECK(left == "");
    // All completed steps are saved; an earlier attempt of a supervisor may have ended differently.
    const bool saved = r.code != 75 || way.supervised || has == std::max(s.had, last_step(r.out));
    CHECK(saved);
    interrupted += r.code == 75;
    ++codes[cat(r.code)];
    sent += s.sent;
    hits += has >= s.had && allowed(s, r) && took < kLimit && left.empty() && saved;
    if (has >= kSteps) ++round[way.name];  // finished: the next run of this kind starts from scratch
  }
  CHECK(sent > (kills + signals) / 2);
  CHECK(interrupted > 0);
  for (const auto& e : std::filesystem::directory_iterator(dir / "runs"))
    if (newest(e.path().string()) > 0) must("ckpt verify " + e.path().string() + " --all", dir);
  std::string tally;
  for (const auto& [code, times] : codes) tally += cat(tally.empty() ? "" : ", ", code, " x ", times);
  print_figure("R30", cat(hits, "/", kills + signals,
                          " kills and signals in 4 ways of starting: nothing lost, no hang, "
                          "documented codes (",
                          tally, "): ", hits == kills + signals ? "met" : "MISSED"));
}
