// The writer thread, log.jsonl, and the TensorBoard sink.
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "kernels/core/check.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/sinks/tensorboard_sink.h"
#include "launch/options/json_text.h"
#include "launch/ranks/run_file.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct TempFolder {
  TempFolder() : path(std::filesystem::temp_directory_path() / ("gpt_log_test_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

StepRecord step_of(int64_t n) {
  return {.step = n, .total_steps = 100, .time = 5, .loss = 2.5, .grad_norm = 1, .lr = 1e-3};
}

struct Counts {
  int steps = 0, evals = 0, events = 0, ends = 0;
  int64_t last = 0;
};
class CountingSink : public Sink {
 public:
  CountingSink(Counts& c, int fail_at) : c_(c), fail_at_(fail_at) {}
  const char* name() const override { return "counting"; }
  void step(const StepRecord& r) override {
    GT_REQUIRE(r.step != fail_at_, Exit::kIo, "disk full");
    ++c_.steps;
    c_.last = r.step;
  }
  void eval(const EvalRecord&) override { ++c_.evals; }
  void event(const EventRecord&) override { ++c_.events; }
  void end(const EndInfo&) override { ++c_.ends; }

 private:
  Counts& c_;
  int fail_at_;
};

// Blocks in its first step until released.
class StuckSink : public Sink {
 public:
  explicit StuckSink(std::mutex& gate) : gate_(gate) {}
  const char* name() const override { return "stuck"; }
  void step(const StepRecord& r) override {
    std::lock_guard lock(gate_);
    (r.step % 10 ? odd : tens)++;
  }
  static inline int odd = 0, tens = 0;

 private:
  std::mutex& gate_;
};

class WarningSink : public Sink {
 public:
  explicit WarningSink(std::vector<std::string>& warnings) : warnings_(warnings) {}
  const char* name() const override { return "warnings"; }
  void event(const EventRecord& r) override {
    if (r.warning) warnings_.emplace_back(r.text.data());
  }

 private:
  std::vector<std::string>& warnings_;
};

// Limits the size of this process's files to `bytes` while alive.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

int lines_of(const std::string& path) {
  std::ifstream in(path);
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

}  // namespace

TEST_CASE("records reach every sink in order, a failing sink is switched off and the rest continue") {
  Counts good, bad;
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<CountingSink>(good, -1));
  sinks.push_back(std::make_unique<CountingSink>(bad, 4));
  MetricsWriter writer(std::move(sinks));
  for (int i = 1; i <= 20; ++i) writer.push(step_of(i));
  writer.push(EvalRecord{.step = 20});
  for (int i = 0; i < 3; ++i) writer.warn(20, "the same warning");
  writer.end({});
  CHECK((good.steps == 20 && good.last == 20 && good.evals == 1 && good.ends == 1));
  CHECK(good.events == 2);  // one for the warning, one for the failed sink
  CHECK((bad.steps == 3 && bad.ends == 0));
  REQUIRE(writer.failures().size() == 1);
  CHECK(writer.failures()[0] == "counting is disabled: disk full");
}

TEST_CASE(
    "a stuck sink never blocks the producer: steps that are not multiples of 10 are dropped first, and all losses are "
    "counted") {
  std::mutex gate;
  StuckSink::odd = StuckSink::tens = 0;
  {
    std::vector<std::unique_ptr<Sink>> sinks;
    sinks.push_back(std::make_unique<StuckSink>(gate));
    std::unique_lock hold(gate);
    MetricsWriter writer(std::move(sinks));
    for (int i = 1; i <= 6000; ++i) writer.push(step_of(i));
    const int64_t dropped = writer.dropped();
    CHECK(dropped > 1500);
    hold.unlock();
    writer.flush();
    CHECK(StuckSink::odd + StuckSink::tens + dropped == 6000);
    CHECK(StuckSink::tens == 600);
  }
}

TEST_CASE("log.jsonl holds one object per line, unknown is null, non-finite a string, a second start appends") {
  TempFolder folder;
  const std::string path = folder.path + "/log.jsonl";
  {
    JsonlSink sink;
    sink.start({.command = "gpttrain --tp 2",
                .config_json = "{\n  \"a\": {\n    \"b\": \"x\\ny\"\n  }\n}\n",
                .run_dir = folder.path});
    StepRecord r = step_of(3);
    r.loss = NAN;
    r.grad_norm = INFINITY;
    r.mfu = 0.25;
    r.mfu_fp8 = 0.125;
    sink.step(r);
    sink.eval({.step = 3, .loss = 2});
    sink.flush();
  }
  std::ofstream(path, std::ios::app) << "{\"type\": \"step\", \"st";  // a run killed while writing
  {
    JsonlSink sink;
    sink.start({.run_dir = folder.path, .resumed_from = 3});
    sink.end({.reason = "finished", .rows = {{"a", "b\"c"}}});
    sink.flush();
  }
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  REQUIRE(lines.size() == 6);
  const JsonValue start = parse_json(lines[0], "line"), step = parse_json(lines[1], "line"),
                  eval = parse_json(lines[2], "line");
  CHECK(start.find("type")->text == "start");
  CHECK(start.find("config")->find("a")->find("b")->text == "x\ny");
  CHECK(start.find("resumed_from")->kind == JsonValue::Kind::kNull);
  CHECK(step.find("loss")->text == "nan");
  CHECK(step.find("grad_norm")->text == "inf");
  CHECK(step.find("mfu")->text == "0.25");
  CHECK(step.find("mfu_fp8")->text == "0.125");
  CHECK(step.find("hfu")->kind == JsonValue::Kind::kNull);
  CHECK(step.find("slowest_rank")->kind == JsonValue::Kind::kNull);
  CHECK(std::stod(eval.find("perplexity")->text) == Approx(std::exp(2.0)));
  CHECK(parse_json(lines[4], "line").find("resumed_from")->text == "3");
  CHECK(parse_json(lines[5], "line").find("summary")->find("a")->text == "b\"c");
}

TEST_CASE("a deleted folder switches the file sinks off once, and the run continues") {
  Counts good;
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<CountingSink>(good, -1));
  sinks.push_back(std::make_unique<JsonlSink>());
  sinks.push_back(std::make_unique<TensorBoardSink>(1));
  MetricsWriter writer(std::move(sinks));
  writer.start({.run_dir = "/no/such/folder"});
  for (int i = 1; i <= 5; ++i) writer.push(step_of(i));
  writer.end({});
  CHECK(good.steps == 5);
  CHECK(good.events == 2);
  CHECK(writer.failures().size() == 2);
}

TEST_CASE("flush waits for the records before it, up to its timeout") {
  TempFolder folder;
  std::mutex gate;
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<JsonlSink>());
  sinks.push_back(std::make_unique<StuckSink>(gate));
  MetricsWriter writer(std::move(sinks));
  writer.start({.run_dir = folder.path});
  for (int i = 1; i <= 50; ++i) writer.push(step_of(i));
  REQUIRE(writer.flush());
  CHECK(lines_of(folder.path + "/log.jsonl") == 51);
  std::unique_lock hold(gate);
  writer.push(step_of(51));
  CHECK_FALSE(writer.flush(std::chrono::seconds(0)));
  hold.unlock();
  CHECK(writer.flush());
}

TEST_CASE("a deleted log is recreated with a warning, folder included, and a full disk loses no record") {
  TempFolder folder;
  const std::string run = folder.path + "/run", path = run + "/log.jsonl";
  std::filesystem::create_directory(run);
  std::vector<std::string> warnings;
  std::vector<std::unique_ptr<Sink>> sinks;
  sinks.push_back(std::make_unique<JsonlSink>());
  sinks.push_back(std::make_unique<TensorBoardSink>(1));
  sinks.push_back(std::make_unique<WarningSink>(warnings));
  MetricsWriter writer(std::move(sinks));
  writer.start({.run_dir = run});
  writer.push(step_of(1));
  REQUIRE(writer.flush());
  CHECK(warnings.empty());

  std::filesystem::remove_all(run);
  writer.push(step_of(2));
  REQUIRE(writer.flush());
  REQUIRE(writer.flush());  // writes the warnings
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0] == path + ": was removed during the run; it is recreated without its previous contents");
  CHECK(warnings[1].find("events.out.tfevents") != std::string::npos);
  CHECK(lines_of(path) == 4);  // the start, the step, both warnings

  // Limits file growth, which simulates a full disk.
  const auto events = [&] {
    for (const auto& e : std::filesystem::directory_iterator(run))
      if (e.path().filename().string().rfind("events", 0) == 0) return e.path().string();
    return std::string();
  };
  const auto tensorboard_before = std::filesystem::file_size(events());
  {
    // ten bytes: an incomplete line
    const SmallFiles limit(static_cast<rlim_t>(std::filesystem::file_size(path) + 10));
    for (int i = 3; i <= 40; ++i) {
      writer.push(step_of(i));
      writer.flush();
    }
    CHECK(lines_of(path) == 4);
    CHECK_THAT(writer.unwritten(), Catch::Contains(path + ": ") && Catch::Contains(" records could not be written: "));
  }
  writer.push(step_of(41));
  REQUIRE(writer.flush());
  writer.end({});
  CHECK(writer.unwritten().empty());
  CHECK(std::filesystem::file_size(events()) > tensorboard_before + 39 * 300);
  int failed = 0, again = 0;
  for (const std::string& text : warnings) {
    failed += text.find(path + ": cannot be written: ") == 0;
    again += text == path + ": is writable again";
  }
  CHECK(failed == 1);
  CHECK(again == 1);
  std::ifstream in(path);
  std::vector<int64_t> steps;
  for (std::string line; std::getline(in, line);) {
    const JsonValue j = parse_json(line, "line");  // no line is incomplete
    if (j.find("type")->text == "step") steps.push_back(std::stoll(j.find("step")->text));
  }
  REQUIRE(steps.size() == 40);
  for (size_t k = 0; k < steps.size(); ++k) CHECK(steps[k] == static_cast<int64_t>(k) + 2);
  CHECK(writer.failures().empty());
}

TEST_CASE("a link, a pipe and a second run in the folder of a run are refused") {
  TempFolder folder;
  const std::string victim = folder.path + "/victim", log = folder.path + "/log.jsonl";
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(victim, log);
  CHECK_THROWS_WITH(LogFile(log, "head\n", LogFile::Form::kLines),
                    Catch::Contains("log.jsonl: cannot be opened: is a symb"));
  CHECK_THROWS_WITH(write_run_file(log, "text"), Catch::Contains("is a symbolic link, and nothing is written through"));
  std::filesystem::remove(log);
  REQUIRE(mkfifo(log.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(append_run_file(log, "text"), Catch::Contains("is not a regular file"));
  CHECK(std::filesystem::file_size(victim) == 8);
  {
    const RunLock first(folder.path);
    CHECK_THROWS_WITH(RunLock(folder.path), Catch::Contains("another job uses this folder: host ") &&
                                                Catch::Contains(", pid " + std::to_string(getpid())));
  }
  const RunLock second(folder.path);
}

TEST_CASE("the TensorBoard sink writes every known value of a step under its tag") {
  TempFolder folder;
  {
    TensorBoardSink sink(2);
    sink.start({.command = "c", .config_json = "{}\n", .run_dir = folder.path});
    StepRecord r = step_of(1);
    r.mfu = 0.3;
    sink.step(r);  // not a multiple of 2: no point
    RankMemory small, large;
    small.measured = {1, 1, 1, 1, 1};
    large.measured = {5, 0, 0, 700};
    sink.memory({.ranks = std::make_shared<std::vector<RankMemory>>(std::vector{small, large, small})});
    r.step = 2;
    sink.step(r);
    sink.eval({.step = 2, .loss = 1});
    sink.flush();
  }
  std::string all;
  for (const auto& e : std::filesystem::directory_iterator(folder.path)) {
    std::ifstream in(e.path(), std::ios::binary);
    all.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto count = [&](const std::string& tag) {
    size_t n = 0;
    for (size_t at = all.find(tag); at != std::string::npos; at = all.find(tag, at + 1)) ++n;
    return n;
  };
  for (const char* tag : {"run/command", "run/config", "train/loss", "train/lr", "train/grad_norm",
                          "train/skipped_steps", "train/samples", "train/tokens", "perf/mfu", "eval/loss",
                          "eval/perplexity", "eval/seconds", "mem/weights", "mem/activations"}) {
    INFO(tag);
    const std::string name = tag;
    const bool metric = name == "train/loss" || name == "eval/loss";  // named by the hparams plugin's record too
    CHECK(count(name) == (metric ? 2 : 1));
  }
  CHECK(all.find(event_scalar(0, 0, "mem/activations", 700).substr(4)) != std::string::npos);  // of the largest rank
  CHECK(count("perf/hfu") == 0);                                                               // unknown
}

TEST_CASE("a GPU's clock, power and temperature are curves with at most one point per second") {
  TempFolder folder;
  int samples = 0;
  {
    TensorBoardSink sink(1, [&] {
      ++samples;
      return DeviceConditions{.clock_mhz = 1755, .watts = 412.25, .busy = 0.75};  // no temperature available
    });
    sink.start({.command = "c", .config_json = "{}\n", .run_dir = folder.path});
    StepRecord r = step_of(1);
    for (const double seconds : {100.0, 100.4, 100.9, 101.1, 101.2, 105.0}) {
      r.time = seconds;
      sink.step(r);
      ++r.step;
    }
    sink.flush();
  }
  CHECK(samples == 3);
  std::string all;
  for (const auto& e : std::filesystem::directory_iterator(folder.path)) {
    std::ifstream in(e.path(), std::ios::binary);
    all.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto points = [&](const char* tag, float value) {  // TensorBoard records store the value after its tag
    const std::string bits(reinterpret_cast<const char*>(&value), sizeof value);
    int n = 0;
    for (size_t at = all.find(tag); at != std::string::npos; at = all.find(tag, at + 1))
      n += all.substr(at, 40).find(bits) != std::string::npos;
    return n;
  };
  CHECK(points("sys/gpu_sm_mhz", 1755) == 3);
  CHECK(points("sys/gpu_power_w", 412.25) == 3);
  CHECK(points("sys/gpu_util", 0.75) == 3);
  CHECK(all.find("sys/gpu_temp_c") == std::string::npos);
}
