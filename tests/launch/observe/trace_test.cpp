// Traces: the event format that chrome://tracing and ui.perfetto.dev read, from the simulator and from real runs.
#include <zlib.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "launch/observe/trace/trace_json.h"
#include "launch/observe/trace/trace_session.h"
#include "parallel/comm/threads/thread_group.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;
using nlohmann::json;

namespace {

std::string unpacked(const std::string& path) {
  std::string out;
  const gzFile file = gzopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  char block[1 << 16];
  for (int n; (n = gzread(file, block, sizeof block)) > 0;) out.append(block, static_cast<size_t>(n));
  REQUIRE(gzclose(file) == Z_OK);
  return out;
}

struct TraceSummary {
  std::map<std::string, int> slices;            // by name without numbers: "F", "B", "opt", …
  std::map<std::string, std::set<int>> tracks;  // category → threads of its slices
  int arrows = 0, counters = 0;
  std::set<int> processes;
  std::map<std::pair<int, int>, std::string> threads;
};

// Requirements of the event format, and our additional guarantees.
TraceSummary require_valid(const json& trace) {
  REQUIRE(trace.at("displayTimeUnit") == "ms");
  REQUIRE(trace.at("otherData").is_object());
  TraceSummary found;
  std::map<std::pair<int, int>, double> last;  // end of the thread's last slice
  std::map<std::string, std::pair<double, int>> begun, ended;
  for (const json& e : trace.at("traceEvents")) {
    const std::string ph = e.at("ph");
    const int pid = e.at("pid");
    found.processes.insert(pid);
    REQUIRE(e.at("name").is_string());
    if (ph == "M") {
      if (e.at("name") == "thread_name") found.threads[{pid, e.at("tid")}] = e.at("args").at("name");
      continue;
    }
    const double ts = e.at("ts");
    REQUIRE(ts >= 0);
    if (ph == "X") {
      const double dur = e.at("dur");
      const std::pair<int, int> thread{pid, e.at("tid")};
      REQUIRE(found.threads.count(thread) == 1);  // named before use
      REQUIRE(dur >= 0);
      REQUIRE(ts >= last[thread] - 1e-3);  // slices of a thread do not overlap and are in order
      last[thread] = ts + dur;
      REQUIRE(e.at("args").at("step") >= 1);
      const std::string name = e.at("name");
      ++found.slices[name.substr(0, name.find(' '))];
      found.tracks[e.at("cat")].insert(e.at("tid").get<int>());
    } else if (ph == "C") {
      REQUIRE(e.at("args").at("value") >= 0);
      ++found.counters;
    } else {
      REQUIRE((ph == "s" || ph == "f"));
      if (ph == "f") REQUIRE(e.at("bp") == "e");
      REQUIRE((ph == "s" ? begun : ended).try_emplace(e.at("id"), ts, pid).second);
    }
  }
  REQUIRE(begun.size() == ended.size());
  for (const auto& [id, from] : begun) {
    REQUIRE(ended.count(id) == 1);
    REQUIRE(ended.at(id).first >= from.first);
    REQUIRE(ended.at(id).second != from.second);
  }
  found.arrows = static_cast<int>(begun.size());
  return found;
}

const std::string kTiny =
    "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock "
    "--train.micro_batch 1 --train.grad_accum 4 --device.kind cpu --log.tensorboard false --train.steps 4 ";

}  // namespace

TEST_CASE("a window of traced steps is parsed as FIRST:END") {
  CHECK(parse_trace_window("").end == 0);
  CHECK(parse_trace_window("10:12").first == 10);
  CHECK(parse_trace_window("10:12").end == 12);
  CHECK(parse_trace_window("7").has(7));
  CHECK_FALSE(parse_trace_window("7").has(8));
  for (const char* bad : {"x", "0:2", "3:3", "4:2", "1:2:3", ":", "3:", "-1"})
    CHECK_THROWS_WITH(parse_trace_window(bad), Contains("FIRST:END") && Contains(bad));
}

TEST_CASE("a simulated schedule is a valid trace with every action, message and counter") {
  const PipelineSchedule s = make_schedule("zb-h1", 3, 1, 5);
  const Report report = simulate(s);
  const auto ranks = simulated_trace(s, report);
  const TraceSummary found =
      require_valid(json::parse(trace_json(ranks, {.other = {{"schedule", "zb-h1"}}, .tokens = 32})));
  CHECK(found.processes == std::set<int>{0, 1, 2});
  CHECK(found.slices.at("F") == 15);
  CHECK(found.slices.at("I") == 15);
  CHECK(found.slices.at("W") == 15);
  CHECK(found.arrows == 2 * 2 * 5);  // two boundaries, both directions
  CHECK(found.counters > 0);
  const Report back = executed_report(ranks, 1);
  CHECK(back.makespan == Approx(report.makespan));
  CHECK(back.bubble == Approx(report.bubble));
  CHECK(back.peak_in_flight == report.peak_in_flight);
  CHECK(gantt(back) == gantt(report));
}

TEST_CASE("a wait for a message is drawn, and does not count as work") {
  RankTrace t;
  TraceEntry f, wait;
  f.step = wait.step = 3;
  f.stage = wait.stage = f.microbatch = wait.microbatch = 0;
  wait.kind = TraceKind::kRecvForward;
  wait.duration = f.begin = 2'000'000;
  f.duration = 1'000'000;
  t.entries = {wait, f, f};
  t.entries[2].begin = 3'000'000;
  RankTrace other = t;
  other.pp = 1;
  other.entries = {f};
  other.entries[0].begin = 0;
  const std::string text = executed_timeline(std::vector<RankTrace>{t, other}, 80);
  CHECK_THAT(text, Contains("r0 ~~00") && Contains("r1 0...") && Contains("50.0 %") && Contains("75.0 %"));
  CHECK(executed_timeline(std::vector<RankTrace>{}, 80).empty());
}

TEST_CASE("clocks of other ranks are compared, and a full recorder is reported") {
  ThreadWorld world(2, std::chrono::seconds(60));
  std::vector<RankTrace> got;
  std::vector<std::thread> team;
  for (int r = 0; r < 2; ++r)
    team.emplace_back([&, r] {
      const auto factory = world.factory(r);
      const Mesh mesh({.pp = 2}, *factory);
      TraceSession session(mesh, {5, 6}, true);
      session.begin_step(4);
      if (session.open()) return world.abort(r, "step 4 is not traced");
      session.begin_step(5);
      if (!session.open()) return world.abort(r, "step 5 is traced");
      auto traces = session.gather();
      if (r == 0) got = std::move(traces);
    });
  for (std::thread& t : team) t.join();
  REQUIRE(got.size() == 2);
  CHECK(got[1].rank == 1);
  CHECK(got[1].clock_offset == 0);  // one machine, one clock
  CHECK(got[1].clock_error > 0);
  TraceRecorder tiny(0);
  CHECK_FALSE(tiny.full());
}

TEST_CASE("traced steps of a run become a valid trace and a timeline, and train bitwise the same") {
  TempDir dir;
  const std::string layout = kTiny + "--tp 2 --pp 2 --dp 2 --launch.ranks threads ";
  const Outcome plain = gpttrain(layout + "--log.name plain", dir.path());
  REQUIRE(plain.code == 0);
  const Outcome traced = gpttrain(layout + "--log.name traced --log.trace_steps 2:4", dir.path());
  INFO(traced.out);
  REQUIRE(traced.code == 0);
  CHECK(logged(dir / "runs/traced", "loss") == logged(dir / "runs/plain", "loss"));
  CHECK(traced.prints("trace-2.json.gz"));
  CHECK(traced.prints("timeline"));
  CHECK(traced.prints("r1 "));
  CHECK_FALSE(plain.prints("timeline"));
  const json trace = json::parse(unpacked(dir / "runs/traced/trace-2.json.gz"));
  const TraceSummary found = require_valid(trace);
  CHECK(found.processes == std::set<int>{0, 4});  // the pipeline of (dp 0, tp 0)
  CHECK(found.slices.at("F") == 2 * 2 * 4);       // steps, stages, microbatches
  CHECK(found.slices.at("B") == 2 * 2 * 4);
  CHECK(found.slices.at("opt") == 2 * 2);
  CHECK(found.slices.at("data") == 2 * 2);
  CHECK(found.slices.at("G") == 2 * 2);
  CHECK(found.arrows == 2 * 2 * 4);
  // Tensor-parallel calls have their own track: with sequence parallelism every block gathers and scatters.
  CHECK(found.threads.at({0, 1}) == "tp");
  CHECK(found.tracks.at("tp_exposed") == std::set<int>{1});
  for (const char* op : {"reduce_scatter", "all_gather"}) CHECK(found.slices.at(op) >= 2 * 2 * 4 * 4);
  for (const char* key : {"command", "config_sha256", "clock", "clocks"}) CHECK(trace.at("otherData").contains(key));
  const Outcome all = gpttrain(layout +
                                   "--log.name all --log.trace_steps 3 --log.trace_ranks all --zero 3 "
                                   "--zero.persist_numel 0",
                               dir.path());
  REQUIRE(all.code == 0);
  const TraceSummary eight = require_valid(json::parse(unpacked(dir / "runs/all/trace-3.json.gz")));
  CHECK(eight.processes.size() == 8);
  CHECK(eight.tracks.at("dp_exposed") == std::set<int>{4});  // gathers and reductions inside forwards and backwards
}

TEST_CASE("a trace of processes works, ends with the run, and bad windows are refused") {
  TempDir dir;
  const Outcome o = gpttrain(kTiny + "--pp 2 --log.name late --log.trace_steps 4:90", dir.path());
  INFO(o.out);
  REQUIRE(o.code == 0);
  const TraceSummary found = require_valid(json::parse(unpacked(dir / "runs/late/trace-4.json.gz")));
  CHECK(found.processes == std::set<int>{0, 1});
  CHECK(found.slices.at("F") == 2 * 4);
  const Outcome bad = gpttrain(kTiny + "--log.trace_steps 5:3", dir.path());
  CHECK(bad.code == 2);
  CHECK(bad.prints("log.trace_steps"));
  const Outcome beyond = gpttrain(kTiny + "--log.name beyond --log.trace_steps 9", dir.path());
  CHECK(beyond.code == 0);
  CHECK(beyond.prints("log.trace_steps"));
}

TEST_CASE("the logged bubbles, measured and predicted, exist where there is a pipeline") {
  TempDir dir;
  REQUIRE(gpttrain(kTiny + "--pp 2 --launch.ranks threads --log.name two", dir.path()).code == 0);
  const auto measured = logged(dir / "runs/two", "pipeline_bubble");
  const auto predicted = logged(dir / "runs/two", "bubble_predicted");
  REQUIRE(measured.size() == 4);
  for (double b : measured) CHECK((b > 0 && b < 1));
  REQUIRE(predicted.size() == 4);
  CHECK(predicted[0] > 0.1);
  CHECK(predicted[0] == predicted[3]);
}
