// Stall diagnosis as a pure function, and a monitor over rank threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "parallel/comm/threads/thread_group.h"
#include "parallel/comm/watch/stall_monitor.h"
#include "parallel/comm/watch/stall_report.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<int> all(int n) {
  std::vector<int> v;
  for (int i = 0; i < n; ++i) v.push_back(i);
  return v;
}

CommCall sum_of(int64_t n) { return {CommOp::kAllReduce, ReduceOp::kSum, DType::kF32, n, 0, 0}; }

// Groups tp0 {0,1}, tp1 {2,3}, dp0 {0,2}, dp1 {1,3}; keys 1, 2, 3, 4.
std::vector<RankView> two_by_two() {
  std::vector<RankView> ranks(4);
  for (int r = 0; r < 4; ++r) {
    ranks[static_cast<size_t>(r)].world_rank = r;
    for (int axis : {0, 1}) {
      GroupView g;
      g.key = static_cast<uint64_t>(axis == 0 ? 1 + r / 2 : 3 + r % 2);
      g.label = cat(axis == 0 ? "tp" : "dp", axis == 0 ? r / 2 : r % 2);
      g.rank = axis == 0 ? r % 2 : r / 2;
      g.size = 2;
      g.posted = 5;
      ranks[static_cast<size_t>(r)].groups.push_back(g);
    }
  }
  return ranks;
}

void waits_in(RankView& r, uint64_t key, uint64_t seq, double seconds = 11, CommCall call = sum_of(4)) {
  r.waits = true;
  r.waited_s = seconds;
  r.limit_s = 10;
  r.wait_key = key;
  r.wait_seq = seq;
  r.wait_call = call;
  for (GroupView& g : r.groups)
    if (g.key == key && call.op == CommOp::kAllReduce) g.posted = seq + 1, g.last = call;
}

// Runs body on threads watched by a monitor whose `end` ends the world. Returns the monitor's messages, in order.
struct Watched {
  std::vector<std::string> reports;
  std::vector<std::string> errors;
};
Watched watch(int ranks, double warn_s, double abort_s, const std::function<void(GroupFactory&)>& body,
              const std::string& run_dir = "") {
  ThreadWorld world(ranks, std::chrono::seconds(100));
  Watched out;
  out.errors.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  StallOptions options;
  options.abort_seconds = abort_s;
  options.run_dir = run_dir;
  options.tick_seconds = 0.02;
  options.print = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    out.reports.push_back(text);
  };
  options.end = [&](int code, const std::string&) { world.abort(0, "the run ends", static_cast<Exit>(code)); };
  {
    StallMonitor monitor(world.board(), -1, options);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        try {
          auto f = world.factory(r);
          f->status()->set_coordinates(cat("place", r));
          f->status()->set_step_limit(warn_s);
          f->status()->enter(RunPhase::kStep, 7);
          body(*f);
          f->status()->enter(RunPhase::kDone, 7);
        } catch (const Error& e) {
          out.errors[static_cast<size_t>(r)] = e.what();
          world.abort(r, e.what(), e.code());
        }
      });
    for (auto& t : threads) t.join();
  }
  return out;
}

}  // namespace

TEST_CASE("a rank that others wait for through two groups is the only one named") {
  auto ranks = two_by_two();
  waits_in(ranks[0], 3, 5);  // dp0, for rank 2
  waits_in(ranks[1], 4, 5);  // dp1, for rank 3
  waits_in(ranks[2], 2, 7);  // tp1, for rank 3
  const Diagnosis d = diagnose(ranks);
  CHECK(d.kind == StallKind::kLate);
  CHECK(d.ranks == std::vector<int>{3});
}

TEST_CASE("frozen, ended and running ranks are late, a cycle is a deadlock, no missing rank is the transport") {
  SECTION("a frozen rank that has entered the call") {
    auto ranks = two_by_two();
    waits_in(ranks[0], 1, 5);
    waits_in(ranks[1], 1, 5);
    ranks[1].frozen = true;
    const Diagnosis d = diagnose(ranks);
    CHECK(d.kind == StallKind::kLate);
    CHECK(d.ranks == std::vector<int>{1});
  }
  SECTION("the other side of a message") {
    auto ranks = two_by_two();
    waits_in(ranks[0], 3, 0, 11, {CommOp::kRecv, ReduceOp::kSum, DType::kF32, 9, 1, 0});
    CHECK(diagnose(ranks).ranks == std::vector<int>{2});
  }
  SECTION("a cycle over two groups") {
    auto ranks = two_by_two();
    waits_in(ranks[0], 1, 5);  // for 1
    waits_in(ranks[1], 4, 5);  // for 3
    waits_in(ranks[3], 2, 5);  // for 2
    waits_in(ranks[2], 3, 5);  // for 0
    const Diagnosis d = diagnose(ranks);
    CHECK(d.kind == StallKind::kDeadlock);
    CHECK(d.ranks == std::vector<int>{0, 1, 3, 2});
  }
  SECTION("no rank is missing") {
    auto ranks = two_by_two();
    waits_in(ranks[0], 1, 5);
    waits_in(ranks[1], 1, 5);
    const Diagnosis d = diagnose(ranks);
    CHECK(d.kind == StallKind::kTransport);
    CHECK(d.ranks == std::vector<int>{0, 1});
  }
}

TEST_CASE("the longest wait is compared with its own phase's limit") {
  auto ranks = two_by_two();
  CHECK_FALSE(longest_wait(ranks));
  waits_in(ranks[2], 2, 5, 30);
  ranks[2].limit_s = 600;  // during a save
  CHECK_FALSE(longest_wait(ranks));
  waits_in(ranks[1], 4, 5, 11);
  CHECK(longest_wait(ranks) == 1);
  CHECK_FALSE(longest_wait(ranks, 1, 20));
  ranks[1].frozen = true;  // others wait for it
  CHECK_FALSE(longest_wait(ranks));
}

TEST_CASE("a frozen rank has no longer limit in a save than in a step and a slow one does") {
  auto ranks = two_by_two();
  waits_in(ranks[0], 1, 5, 11);
  ranks[0].limit_s = 600;
  shorten_limits_for_frozen(ranks);  // rank 1 is late, and alive
  CHECK_FALSE(longest_wait(ranks));
  ranks[1].frozen = true;
  shorten_limits_for_frozen(ranks);
  CHECK(longest_wait(ranks) == 0);
  CHECK_FALSE(longest_wait(ranks, 1, 20));
}

TEST_CASE("limits of the phases, and of steps five times the observed slow ones") {
  RankStatus s;
  const auto limit = [&](RunPhase p) {
    s.enter(p, 1);
    return s.limit_seconds();
  };
  CHECK(s.limit_seconds() == 600);
  CHECK(limit(RunPhase::kLoad) == 600);
  CHECK(limit(RunPhase::kFirstStep) == 300);
  CHECK(limit(RunPhase::kStep) == 10);  // the first step is not counted: it warms up
  CHECK(limit(RunPhase::kEval) == 300);
  CHECK(limit(RunPhase::kSave) == 600);
  CHECK(limit(RunPhase::kEval) == Approx(60));
  s.set_step_limit(2.5);
  CHECK(limit(RunPhase::kStep) == 2.5);
  CHECK(s.slot().step.load() == 1);
}

TEST_CASE("a rank that skips a collective is named with its last call, whichever it is", "[R12][R13]") {
  for (int bad = 0; bad < 4; ++bad) {
    const Watched w = watch(4, 0.3, 0.6, [bad](GroupFactory& f) {
      auto g = f.make(all(4));
      g->set_label("dp group [0,1,2,3]");
      suite::Block x(100, DType::kF32);
      for (int k = 0; k < 5; ++k) {
        f.status()->at(1, k);
        if (k == 3 && f.world_rank() == bad) {
          while (true) {  // keeps running, outside of any call, until the world has ended
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            g->all_reduce(x.tensor.slice(0, 0), ReduceOp::kSum, {});
          }
        }
        g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
      }
    });
    // The skipping rank's next call has the number of the skipped one: it gets its own error, naming both ranks.
    std::string text;
    for (const auto& e : w.errors) text += e + "\n";
    INFO(text);
    CHECK(has(text, "dp group [0,1,2,3]: collective #3 differs between ranks"));
    CHECK(has(text, "called all_reduce(sum, f32 x 100)"));
    CHECK(has(text, cat("rank ", bad, " (world rank ", bad, ") called all_reduce(sum, f32 x 0)")));
  }
}

TEST_CASE("a missing rank is reported within its limit, then the run ends with a report of all ranks", "[R12]") {
  const std::string dir = (std::filesystem::temp_directory_path() / cat("gpt_stall_", getpid())).string();
  for (int bad = 0; bad < 4; ++bad) {
    std::filesystem::create_directories(dir);
    const Watched w = watch(
        4, 0.3, 0.6,
        [bad](GroupFactory& f) {
          auto g = f.make(all(4));
          g->set_label("dp group [0,1,2,3]");
          suite::Block x(100, DType::kF32);
          for (int k = 0; k < 5; ++k) {
            f.status()->at(1, k);
            if (k == 3 && f.world_rank() == bad) {
              std::this_thread::sleep_for(std::chrono::milliseconds(1200));
              continue;
            }
            g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
          }
        },
        dir);
    std::string text;
    for (const auto& e : w.reports) text += e + "\n";
    INFO(text);
    REQUIRE(w.reports.size() == 2);
    for (const std::string& reports : w.reports) {
      CHECK(has(reports, cat("not arrived: rank ", bad, "\n")));
      CHECK(has(reports, cat("place", bad,
                             "): runs, in no collective; step, step 7, stage 1, microbatch 3; last call: "
                             "dp group [0,1,2,3] #2 all_reduce(sum, f32 x 100)")));
      CHECK(has(reports, "in dp group [0,1,2,3] #3 all_reduce(sum, f32 x 100), step, step 7, stage 1, microbatch 3"));
    }
    CHECK(has(w.reports[1], "hang: the run ends"));
    const size_t at = w.reports[1].find(dir);
    REQUIRE(at != std::string::npos);
    const std::string folder = w.reports[1].substr(at);
    for (int r = 0; r < 4; ++r) {
      std::ifstream in(folder + "/rank-" + std::to_string(r) + ".txt");
      const std::string ring{std::istreambuf_iterator<char>(in), {}};
      INFO(ring);
      CHECK(has(ring, "step 7, stage 1, microbatch 2\tdp group [0,1,2,3]\t2\tall_reduce(sum, f32 x 100)"));
      CHECK(has(ring, "\t3\tall_reduce") == (r != bad));
    }
    CHECK(std::filesystem::exists(folder + "/report.txt"));
    CHECK(std::filesystem::exists(folder + "/slots-0.txt"));
    std::filesystem::remove_all(dir);
  }
}

TEST_CASE("a rank late for an all-to-all is named, and ranks that send different amounts do not disagree", "[R12]") {
  const Watched w = watch(3, 0.25, 0, [](GroupFactory& f) {
    auto g = f.make(all(3));
    g->set_label("ep group [0,1,2]");
    if (f.world_rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    const int64_t rank = f.world_rank();
    const std::vector<int64_t> sends(3, rank + 1), receives{1, 2, 3};
    suite::Block x(3 * (rank + 1), DType::kBF16), y(6, DType::kBF16);
    g->all_to_all(x.tensor, y.tensor, {sends, receives}, {}).wait({});
  });
  for (const auto& e : w.errors) CHECK(e == "");
  REQUIRE(!w.reports.empty());
  INFO(w.reports[0]);
  CHECK(has(w.reports[0], "not arrived: rank 2\n"));
  CHECK(has(w.reports[0], "in ep group [0,1,2] #0 all_to_all_v(bf16 x "));
}

TEST_CASE("the end of a stall is reported once, and a slow rank below the limit is not reported") {
  const auto body = [](int ms) {
    return [ms](GroupFactory& f) {
      auto g = f.make(all(2));
      for (int k = 0; k < 3; ++k) {
        if (k == 1 && f.world_rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        g->barrier();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
    };
  };
  const Watched slow = watch(2, 0.25, 0, body(600));
  REQUIRE(slow.reports.size() == 2);
  CHECK(has(slow.reports[0], "not arrived: rank 1"));
  CHECK(has(slow.reports[1], "go on after"));
  CHECK(watch(2, 30, 0, body(100)).reports.empty());
}

TEST_CASE("many more busy rank threads than processors raise no false alarm") {
  const Watched w = watch(8, 3, 0, [](GroupFactory& f) {
    auto g = f.make(all(8));
    suite::Block x(20000, DType::kF32);
    for (int k = 0; k < 300; ++k) g->all_reduce(x.tensor, ReduceOp::kMax, {}).wait({});
  });
  for (const auto& e : w.errors) CHECK(e == "");
  CHECK(w.reports.empty());
}

TEST_CASE("a process is checked only inside its PID namespace", "[R11]") {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  for (const bool here : {true, false}) {
    BoardHead head;
    const auto pages = std::make_unique<RankPages[]>(2);
    RankSlot& other = pages[1].rank;
    other.world_rank.store(1);
    other.pid.store(gone);
    other.pid_namespace.store(here ? pid_namespace() : pid_namespace() + 1);  // another container of this machine
    other.beat.store(steady_ns());
    std::mutex mutex;
    std::string reports, verdict;
    std::atomic<bool> ended{false};
    StallOptions options;
    options.tick_seconds = 0.01;
    options.verdict = [&](const std::string& text) { verdict = text; };
    options.print = [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      reports += text;
    };
    options.end = [&](int, const std::string&) { ended = true; };
    {
      const StallMonitor monitor({&head, pages.get(), 2}, 0, options);
      for (int i = 0; i < (here ? 3000 : 20) && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    INFO(reports);
    CHECK(ended == here);
    CHECK(has(reports, "rank 1 ") == here);
    CHECK(has(verdict, " died: ") == here);
  }
}
