// Kills and stop signals in every phase of a run, with every launch method: no checkpoint is lost, the resumed run is
// bitwise that of an undisturbed one, exit codes are documented ones, and nothing hangs or stays behind.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>

#include "checkpoint/store/steps.h"
#include "kernels/core/check.h"
#include "launch/ranks/signals.h"
#include "tests/launch/process.h"
#include "tests/launch/rank_processes.h"
#include "tests/support/goal.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int kLimit = 60;  // seconds for a run to end after a signal
constexpr int64_t kSteps = 60;

struct Way {
  const char* name;
  const char* words;
  bool supervised, processes;  // ranks are processes of their own
};
constexpr Way kWays[] = {{"one rank", "", false, false},
                         {"threads", "--pp 2 --launch.ranks threads", false, false},
                         {"processes", "--tp 2", false, true},
                         {"supervisor", "--tp 2 --launch.max_restarts 20 --comm.stall_warn_s 8", true, true},
                         {"torchrun", "--tp 2", false, true}};
constexpr int kTorchrun = 4;
const char* const kPhases[] = {"start", "train", "save", "end"};

const std::string kRun =
    "--model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.global_batch 8 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type constant "
    "--checkpoint.every 7 --checkpoint.keep 3 --train.steps 60 ";

// Acts like torchrun: once a rank fails, the other one gets SIGTERM. Exits with the largest code.
std::string torchrun(const std::string& args) {
  return cat("export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", free_port(),
             "; exec bash -c 'for r in 0 1; do RANK=$r LOCAL_RANK=$r ", binary_dir(), "/gpttrain ", args,
             " & p[$r]=$!; done; while kill -0 ${p[0]} && kill -0 ${p[1]}; do sleep 0.05; done 2>/dev/null; "
             "for r in 0 1; do kill -0 ${p[$r]} || wait ${p[$r]} || kill ${p[1-r]}; done 2>/dev/null; "
             "wait ${p[0]}; a=$?; wait ${p[1]}; b=$?; exit $((a > b ? a : b))'");
}

int64_t newest(const std::string& run) {
  try {
    const auto steps = list_steps(run + "/checkpoints");
    return steps.empty() ? 0 : steps.front().first;
  } catch (const Error&) {  // does not exist yet
    return 0;
  }
}

bool saving(const std::string& run) {
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(run + "/checkpoints", ec))
    if (e.path().filename().string().rfind(".tmp-", 0) == 0) return true;
  return false;
}

int64_t logged_bytes(const std::string& run) {
  std::error_code ec;
  const auto size = std::filesystem::file_size(run + "/log.jsonl", ec);
  return ec ? 0 : static_cast<int64_t>(size);
}

// Phase of a run whose log had `bytes` before it began.
int phase_of(const std::string& run, int64_t bytes) {
  if (newest(run) >= kSteps) return 3;
  if (logged_bytes(run) <= bytes) return 0;
  return saving(run) ? 2 : 1;  // an attempt that was killed may have left its folder before, until the next save
}

// Waits, at most until the end of the run, for a phase and then for a random part of it.
void wait_for_phase(int phase, const std::string& run, int64_t bytes, int pid, std::mt19937_64& random) {
  for (int i = 0; i < 30000 && phase_of(run, bytes) < phase && kill(pid, 0) == 0; ++i) usleep(phase == 2 ? 200 : 2000);
  constexpr int kSpan[] = {600, 1200, 15, 150};  // milliseconds
  usleep(static_cast<useconds_t>(random() % 1000) * static_cast<useconds_t>(kSpan[phase]));
}

struct Fault {
  int signal = 0;
  bool rank = false;  // target a rank; otherwise the process that the user started
  int phase = 0;      // in which the signal came
  int64_t had = 0;    // newest committed step then
  bool sent = false;
  bool stopped = false;  // by SIGTERM to the supervisor, once it had resumed
};

bool allowed(const Fault& s, const Outcome& r) {
  if (r.code == 0) return true;  // it had ended, or the supervisor recovered
  if (s.stopped && r.code == 75) return true;
  // Before main() no handler is installed, and nothing is printed; torchrun sends SIGTERM, also to the rank that waits.
  const bool silent = r.out.empty() || (r.prints("stopped while ranks connected") && r.count("\n") == 1);
  if ((r.code == 128 + s.signal || r.code == 128 + SIGTERM) && silent) return true;
  if (s.signal == SIGKILL) return r.code == 128 + SIGKILL || (s.rank && r.code == 70);
  return r.code == 75;
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

// Number of faults, and of those with the required outcome, by a name.
struct Score {
  std::map<std::string, std::pair<int, int>> by;
  void add(const std::string& name, bool good) { ++by[name].second, by[name].first += good; }
  std::string text() const {
    std::string out;
    for (const auto& [name, n] : by)
      out += cat(out.empty() ? "" : ", ", name, " ", n.first, n.first == n.second ? "" : cat(" of ", n.second));
    return out;
  }
};

// A whole run whose checkpoints were written between kills equals an undisturbed run.
void check_equal_to_calm(const TempDir& dir, const std::string& name, const Way& way) {
  const bool torch = std::string(way.name) == kWays[kTorchrun].name;
  const std::string run = kRun + way.words + " --log.name ";
  const std::string calm = cat("calm-", &way - kWays);
  for (const std::string& each : {calm, name}) {
    if (newest(dir / ("runs/" + each)) >= kSteps) continue;
    const Outcome r = torch ? shell(torchrun(run + each), dir.path()) : gpttrain(run + each, dir.path());
    INFO(r.out);
    REQUIRE(r.code == 0);
  }
  must("ckpt diff runs/" + name + " runs/" + calm, dir);
}

}  // namespace

TEST_CASE("kills and signals at any time, in all launch modes: nothing is lost, hangs or ends undocumented", "[R30]") {
  const int kills = goal_size(kSanitized ? 2 : 10, 200), signals = goal_size(kSanitized ? 2 : 10, 100);
  std::mt19937_64 random(goal_seed());
  TempDir dir;
  std::map<int, int> round;
  std::map<std::string, int> codes;
  std::map<std::string, const Way*> runs;
  Score ways, phases;
  int interrupted = 0, hits = 0, sent = 0;
  for (int n = 0; n < kills + signals; ++n) {
    const int w = n % 5;
    const Way& way = kWays[w];
    Fault s;
    constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    s.signal = n < kills ? SIGKILL : kSignals[random() % 4];
    s.rank = way.processes && random() % 2 == 0;
    const std::string name = cat("r", w, "-", round[w]), run = dir / ("runs/" + name);
    runs[name] = &way;
    const int64_t bytes = logged_bytes(run);
    auto struck = std::chrono::steady_clock::now();
    const auto fault = [&](int pid) {
      wait_for_phase(full_size() ? n / 5 % 4 : static_cast<int>(random() % 4), run, bytes, pid, random);
      s.phase = phase_of(run, bytes);
      s.had = newest(run);
      std::vector<int> targets{pid};
      if (w == kTorchrun) targets = children(pid);
      if (w == kTorchrun && s.rank && targets.size() > 1)
        targets.erase(targets.begin() + static_cast<int>(random() % 2));
      if (w != kTorchrun && s.rank)
        if (const int rank = process_of(pid, static_cast<int>(random() % 2)); rank != 0) targets = {rank};
      for (const int target : targets) s.sent |= send_signal(target, s.signal);
      if (!way.supervised || targets[0] == pid || s.had >= kSteps) return;
      for (int i = 0; i < 400 && newest(run) <= s.had; ++i) usleep(100000);  // it resumes by itself
      CHECK(newest(run) > s.had);
      s.stopped = kill(pid, SIGTERM) == 0;
    };
    const auto strike = [&](int pid) {
      fault(pid);
      struck = std::chrono::steady_clock::now();  // what precedes is as slow as the machine
    };
    const std::string args = kRun + "--fault.inject delay@step:rank=0,ms=15 " + way.words + " --log.name " + name;
    const Outcome r = w == kTorchrun ? shell(torchrun(args), dir.path(), kLimit + 4, strike)
                                     : gpttrain(args, dir.path(), kLimit + 4, strike);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - struck).count();
    const int64_t has = newest(run);
    const std::string left = rest_of(dir.path());
    INFO(n << ": " << way.name << ", " << (s.signal == SIGKILL ? "SIGKILL" : signal_name(s.signal)) << " to "
           << (s.rank ? "a rank" : "the parent") << " in phase " << kPhases[s.phase] << "; had step " << s.had
           << ", has " << has << "; " << took << " s, code " << r.code << "\n"
           << r.out);
    CHECK(has >= s.had);
    CHECK(allowed(s, r));
    CHECK(took < kLimit);
    CHECK(left == "");
    const bool valid = has == 0 || gpttrain("ckpt verify runs/" + name, dir.path()).code == 0;
    CHECK(valid);
    // All completed steps are saved; an earlier attempt of a supervisor may have ended differently.
    const bool saved = r.code != 75 || way.supervised || has == std::max(s.had, last_step(r.out));
    CHECK(saved);
    interrupted += r.code == 75;
    ++codes[cat(r.code)];
    sent += s.sent;
    const bool good = has >= s.had && allowed(s, r) && took < kLimit && left.empty() && saved && valid;
    hits += good;
    ways.add(way.name, good);
    phases.add(kPhases[s.phase], good);
    if (has >= kSteps) ++round[w];  // finished: the next run of this kind starts from scratch
  }
  CHECK(sent > (kills + signals) / 2);
  CHECK(interrupted > 0);
  for (const auto& [name, way] : runs) check_equal_to_calm(dir, name, *way);
  std::string tally;
  for (const auto& [code, times] : codes) tally += cat(tally.empty() ? "" : ", ", code, " x ", times);
  print_figure("R30", cat(hits, "/", kills + signals, " kills and signals: nothing lost, no hang, documented codes (",
                          tally, "), ", runs.size(), " runs resumed bitwise equal to undisturbed ones; ", ways.text(),
                          "; in phase ", phases.text(), ": ", hits == kills + signals ? "met" : "MISSED"));
}
