// Views of a run's folder: report, comparison, terminal view.
#include "launch/tools/report/report.h"

#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "kernels/core/files.h"
#include "launch/observe/param_stats.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/step_medians.h"
#include "launch/options/json_text.h"
#include "launch/ranks/run_file.h"
#include "launch/tools/report/chart.h"
#include "launch/tools/report/run_summary.h"
#include "launch/tools/report/watch_view.h"
#include "tests/launch/process.h"
#include "tests/support/paths.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

const char* const kTinyRun =
    "--model.layers 3 --model.hidden 32 --model.heads 4 --model.vocab 256 --model.seq 16 --train.micro_batch 2 "
    "--train.global_batch 8 --train.steps 12 --train.eval_every 4 --train.eval_steps 1 --data.train mock --device.kind "
    "cpu --launch.ranks threads --log.trace_steps 6:8 ";

std::string start_line(int64_t first = 1, int64_t resumed = -1) {
  StartInfo s;
  s.first_step = first;
  s.total_steps = 100;
  s.resumed_from = resumed;
  s.config_json = R"({"model": {"hidden": 8, "arch": "<b>gpt2</b>"}, "log": {"name": "x"}})";
  return json_line(s, 1000 + static_cast<double>(first)) + "\n";
}

std::string step_text(int64_t step, double loss, double seconds = 0.1) {
  StepRecord r{.step = step, .total_steps = 100, .time = 1000 + static_cast<double>(step), .loss = loss};
  r.grad_norm = 1;
  r.lr = 1e-3;
  r.step_seconds = seconds;
  r.tokens_per_second = 100 / seconds;
  r.tokens = 10 * step;
  return json_line(r) + "\n";
}

std::string eval_text(int64_t step, double loss) {
  EvalRecord e;
  e.step = step;
  e.loss = loss;
  return json_line(e) + "\n";
}

RunLog read_log(const TempDir& dir, const std::string& lines) {
  write_file(dir / "log.jsonl", lines);
  RunLog log(dir.path());
  log.read();
  return log;
}

// Runs Python's check of a page; skips the case without Python.
void check_page(const std::string& page, const std::string& runs, const TempDir& dir) {
  if (shell("python3 -c 'import xml.etree'", dir.path()).code != 0) GT_SKIP("no python3");
  const Outcome r = shell("python3 " + source_dir() + "/tests/readers/read_report.py " + page + " " + runs, dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK(r.prints("losses agree with log.jsonl"));
}

}  // namespace

TEST_CASE("a run writes a report that Python parses and whose numbers are those of log.jsonl") {
  TempDir dir;
  must(std::string(kTinyRun) + "--tp 2 --pp 2 --dp 2 --log.name a --log.norms_every 3 --log.report_every 5", dir);
  const std::string page = read_file(dir / "runs/a/report.html");
  for (const char* part : {"Timeline of step 7", "Balance of the pipeline stages", "Gradient norm by layer",
                           "Where the time of a step goes", "Plan beside measurement", "Norm of all parameters",
                           "rank 7, stage 1", "Learning rate", "finished (exit code 0)"})
    CHECK_THAT(page, Contains(part));
  check_page("runs/a/report.html", "runs/a", dir);
  must(std::string(kTinyRun) + "--pp 2 --log.name b --optim.lr 1e-3 --log.report off", dir);
  CHECK_FALSE(std::filesystem::exists(dir / "runs/b/report.html"));
  CHECK(must("report runs/b", dir).out == "runs/b/report.html\n");
  check_page("runs/b/report.html", "runs/b", dir);
  must("report runs/a runs/b --output both.html", dir);
  check_page("both.html", "runs/a runs/b", dir);

  const Outcome table = must("compare runs/a runs/b --html compared.html", dir);
  for (const char* part : {"12 of 12", "optim.lr", "parallel.tp", "best evaluation loss", "page: compared.html"})
    CHECK(table.prints(part));
  CHECK(table.count("log.name") == 0);
  check_page("compared.html", "runs/a runs/b", dir);
  const JsonValue json = parse_json(must("compare runs/a runs/b --json", dir).out, "output");
  REQUIRE(json.find("runs")->items.size() == 2);
  double loss = 0;
  REQUIRE(parse_double(json.find("runs")->items[0].find("last_loss")->text, loss));
  CHECK(loss == logged(dir / "runs/a", "loss").back());
  CHECK(json.find("config_differences")->find("parallel.tp")->items[0].text == "2");

  const Outcome watched = must("watch runs/a", dir);
  CHECK(watched.prints("step 12/12  loss "));
  CHECK(watched.prints("slowest stage"));
  CHECK(watched.prints("end  finished (exit code 0)\n"));
}

TEST_CASE("watch follows a run, ends when it ends, and Ctrl-C ends it with 130") {
  TempDir dir;
  write_file(dir / "log.jsonl", start_line() + step_text(1, 5));
  const Outcome stopped = gpttrain("watch . --interval 0.1", dir.path(), 60, [&](int pid) {
    for (int i = 0; i < 200; ++i) ::usleep(10000);
    ::kill(-pid, SIGINT);
  });
  CHECK(stopped.code == 130);
  CHECK(stopped.count("step 1/100") == 1);  // a line when there is news, not at each look
  const Outcome ended = gpttrain("watch . --interval 0.1", dir.path(), 60, [&](int) {
    ::usleep(500000);
    write_file(dir / "log.jsonl", start_line() + step_text(1, 5) + step_text(2, 4) +
                                      json_line(EndInfo{.reason = "finished", .step = 2}, 1010) + "\n");
  });
  CHECK(ended.code == 0);
  CHECK(ended.prints("step 2/100"));
  CHECK(ended.prints("end  finished (exit code 0)"));
  write_file(dir / "log.jsonl", start_line());
  CHECK(must("watch . --once", dir).out == "no step yet\n");
}

TEST_CASE("report, compare and watch name the folder that is not a run") {
  TempDir dir;
  std::filesystem::create_directory(dir / "empty");
  for (const char* command : {"report empty", "watch empty", "compare empty empty"}) {
    const Outcome r = gpttrain(command, dir.path());
    CHECK(r.code == 2);
    CHECK(r.prints("empty: expected a run folder with log.jsonl, found none"));
  }
  CHECK(gpttrain("report none", dir.path()).prints("none: expected a run folder, found nothing"));
  CHECK(gpttrain("report emptyy", dir.path())
            .prints("emptyy: expected a run folder, found nothing; did you mean empty?"));
  CHECK(gpttrain("compare empty", dir.path()).prints("expected 2 to 16 run folders, found 1"));
  ::mkfifo((dir / "empty/log.jsonl").c_str(), 0600);
  CHECK(gpttrain("report empty", dir.path()).prints("log.jsonl: is a pipe"));
}

TEST_CASE("a log is read back: the last record of a step counts, a resumed run drops what it makes again") {
  TempDir dir;
  RunLog log = read_log(dir, start_line() + step_text(1, 5) + step_text(2, 4) + step_text(3, 9) + eval_text(3, 8) +
                                 start_line(3, 2) + step_text(3, 3.5) + "not json\n{\"type\": \"other\"}\n" +
                                 std::string(RunLog::kLongestLine + 5, 'x') + "\n" + step_text(4, NAN) +
                                 "{\"type\": \"step\", \"step\": 5");
  REQUIRE(log.steps().size() == 4);
  CHECK(log.steps()[2][&StepRecord::loss] == 3.5);
  CHECK(std::isnan(log.steps()[3][&StepRecord::loss]));
  CHECK(log.evals().empty());
  CHECK(log.bad_lines() == 3);
  CHECK(log.starts().size() == 2);
  CHECK(log.end() == nullptr);
  // Appended later, beginning with the rest of the incomplete line.
  write_file(dir / "log.jsonl", read_file(dir / "log.jsonl") + ", \"loss\": 3}\n" + step_text(6, 2.5) +
                                    json_line(EndInfo{.reason = "finished"}, 1020) + "\n");
  CHECK(log.read());
  CHECK_FALSE(log.read());
  CHECK(log.steps().size() == 6);
  CHECK(log.steps()[4][&StepRecord::loss] == 3);
  REQUIRE(log.end() != nullptr);
  const RunSummary s = summarize(log);
  CHECK(s.last_loss == 2.5);
  CHECK(s.best_loss == 2.5);
  CHECK(s.steps == 6);
  CHECK(s.starts == 2);
  write_file(dir / "log.jsonl", start_line() + step_text(1, 7));  // recreated: shorter
  CHECK(log.read());
  CHECK(log.steps().size() == 1);
}

TEST_CASE("a run without an end record is running while its lock is held, killed once it is free") {
  TempDir dir;
  const RunLog log = read_log(dir, start_line() + step_text(1, 2));
  CHECK(summarize(log).status == "no end record: running elsewhere, or killed");  // no lock file
  {
    const RunLock lock(dir.path());
    CHECK(RunLock::state_of(dir.path()) == RunLock::State::kHeld);
    CHECK(summarize(log).status == "running");
  }
  write_file(dir / ".run.lock", "host h, pid 1");  // as a killed process leaves it
  CHECK(RunLock::state_of(dir.path()) == RunLock::State::kFree);
  CHECK(summarize(log).status == "no end record: killed, or its machine is gone");
  CHECK(RunLock::state_of(dir / "missing") == RunLock::State::kNone);
}

TEST_CASE("smoothing neither lags behind a falling curve nor leads it") {
  std::vector<double> line(101);
  for (size_t i = 0; i < line.size(); ++i) line[i] = 10 - 0.05 * static_cast<double>(i);
  const std::vector<double> mean = smoothed(line, 10);
  for (size_t i = 40; i <= 60; ++i) CHECK(mean[i] == Approx(line[i]).epsilon(1e-3));
}

TEST_CASE("text from a run folder cannot become part of the page") {
  TempDir dir;
  const std::string evil =
      "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \" ' \x1b[2J \xff \xe2\x80\xae";
  StartInfo start;
  start.command = start.layout = start.environment = evil;
  start.rows = {{evil, evil}};
  start.total_steps = 3;
  std::string config = R"({"model": {)";
  append_json_string(config, evil);
  config += ": 1}}";
  start.config_json = config;
  std::string scalar = json_line(make_scalar(1, "train/grad_norm/" + evil, 2));
  write_file(dir / "restarts.jsonl", R"({"time": "<script>", "action": "<script>", "<script>": "<img>"})"
                                     "\n[[[[1]]]]\n");
  write_file(dir / "trace-1.json.gz", "no gzip <script>");
  RunLog log = read_log(
      dir,
      json_line(start, 1) + "\n" + step_text(1, 3) + step_text(2, 1e300) + scalar + "\n" +
          json_line(create_event(2, evil, true)) + "\n" + json_line(EvalRecord{.step = 2}) + "\n" +
          R"({"type": "step", "step": 3, "loss": 1e999, "timers_step": 2, "timers": {"forward": -5, "other": "inf"}})" +
          "\n" + R"({"type": "memory", "ranks": [{"rank": -1, "measured": {"weights": 9e99}}, 7]})" + "\n" +
          R"({"type": "stages", "stages": [3, {}]})" + "\n" + std::string(100000, '[') + "\n" +
          json_line(EndInfo{.reason = evil, .exit_code = 1}, 9) + "\n");
  const std::string page = report_html({&log});
  for (const char* part : {"<script", "<img", "\x1b", "\xff", "\xe2\x80\xae"})
    CHECK(page.find(part) == std::string::npos);
  CHECK_THAT(page, Contains("&lt;script&gt;alert(1)"));
  write_file(dir / "page.html", page);
  const Outcome r = shell("python3 -c \"import xml.etree.ElementTree as e; e.parse('page.html')\"", dir.path());
  INFO(r.out);
  CHECK(r.code == 0);
  CHECK_FALSE(watch_panel(log, 80, 24).empty());
}

TEST_CASE("the loss is drawn over target tokens and hours too, where they were recorded, closed at first") {
  TempDir dir;
  std::string lines = start_line();
  for (int64_t s = 1; s <= 50; ++s) lines += step_text(s, 5 - 0.05 * static_cast<double>(s));
  const RunLog log = read_log(dir, lines + eval_text(50, 2.75));
  const std::string page = report_html({&log});
  CHECK_THAT(page, Contains("Loss over target tokens</figcaption>") && Contains("Loss over hours</figcaption>"));
  const size_t steps = page.find(">Loss</figcaption>"),
               closed = page.find("<details><summary>Loss over target tokens and");
  REQUIRE((steps != std::string::npos && closed != std::string::npos && steps < closed));
  CHECK(page.find("Loss over hours</figcaption>") > closed);
  const std::string tokens = page.substr(page.find("Loss over target tokens</figcaption>"));
  CHECK_THAT(tokens.substr(0, tokens.find("</figure>")), Contains("<td>500</td>") || Contains(">500<"));

  std::string bare = R"({"type": "start", "time": 1}
)";
  for (int64_t s = 1; s <= 5; ++s) bare += cat(R"({"type": "step", "step": )", s, R"(, "loss": 3})", "\n");
  const RunLog unknown = read_log(dir, bare);
  CHECK_THAT(report_html({&unknown}), Contains(">Loss</figcaption>") && !Contains("Loss over target"));
}

TEST_CASE("a report of long runs fits its limit, and its curves keep their spikes") {
  TempDir dir;
  std::string lines = start_line();
  for (int64_t k = 1; k <= 30000; ++k) lines += step_text(k, k == 20011 ? 50. : 3 + 1 / static_cast<double>(k));
  for (int i = 0; i < 3000; ++i)
    lines += json_line(create_event(i, std::string(470, 'w') + std::to_string(i), true)) + "\n";
  const RunLog log = read_log(dir, lines);
  CHECK(log.events().size() == RunLog::kMostEvents);
  CHECK(log.dropped_events() == 1000);
  CHECK(report_html({&log}).size() <= kMostReportBytes);
  const std::vector<const RunLog*> many(kMostReportRuns, &log);
  const std::string page = report_html(many);
  CHECK(page.size() <= kMostReportBytes);

  std::vector<double> x, y;
  for (int i = 0; i < 10000; ++i)
    x.push_back(i), y.push_back(i == 4321 ? 99 : i == 77 ? -99 : i == 5 ? NAN : std::sin(i));
  downsample(x, y, 200);
  CHECK(x.size() <= 200);
  CHECK(std::is_sorted(x.begin(), x.end()));
  CHECK(*std::max_element(y.begin(), y.end()) == 99);
  CHECK(*std::min_element(y.begin(), y.end()) == -99);
  CHECK(x[static_cast<size_t>(std::max_element(y.begin(), y.end()) - y.begin())] == 4321);
  const std::vector<double> flat = smoothed({2, 2, NAN, 2}, 10);
  CHECK((flat[0] == 2 && flat[1] == 2 && std::isnan(flat[2]) && flat[3] == 2));
}

TEST_CASE("what was unusual: stalls, restarts, warnings, skipped updates") {
  TempDir dir;
  std::string lines = start_line();
  for (int64_t k = 1; k <= 50; ++k) lines += step_text(k, k == 30 ? NAN : 3, k == 40 ? 3.0 : k < 3 ? 9.0 : 0.1);
  write_file(dir / "restarts.jsonl", R"({"time": "t", "action": "restart", "code": 124, "seconds_lost": 90})"
                                     "\n");
  const RunLog log = read_log(dir, lines + json_line(create_event(12, "replicas differ", true)) + "\n" +
                                       json_line(create_event(13, "saved as usual")) + "\n" + start_line(51, 50));
  const std::string page = report_html({&log});
  for (const char* part : {"took 3.0 s, 30.0 times the median of 100 ms", "replicas differ", "from step 50",
                           "restart: code 124; lost 1m30s", "1 steps without a finite loss"})
    CHECK_THAT(page, Contains(part));
  CHECK(page.find("saved as usual") == std::string::npos);
  CHECK(page.find("took 9.0 s") == std::string::npos);  // the first two steps are always slow
}

TEST_CASE("the terminal view fits its window and its chart shows the curve") {
  TempDir dir;
  std::string lines = start_line();
  for (int64_t k = 1; k <= 60; ++k) lines += step_text(k, 10 - 0.1 * static_cast<double>(k));
  const RunLog log = read_log(dir, lines);
  for (const int width : {20, 79, 200})
    for (const int height : {1, 8, 30}) {
      const std::vector<std::string> panel = watch_panel(log, width, height);
      CHECK(panel.size() <= static_cast<size_t>(height));
      for (const std::string& line : panel) CHECK(line.size() <= static_cast<size_t>(width));
    }
  CHECK_THAT(watch_line(log), Contains("step 60/100  loss 4.0000") && Contains("eta 4.0 s"));
  const std::vector<std::string> chart = text_chart({3, 2, 1}, 40, 3);
  CHECK(chart == std::vector<std::string>{"        3 |*", "        2 | *", "        1 |  *"});
}

TEST_CASE("bins of histograms hold the numbers between their limits") {
  std::vector<double> numbers(LogBins::kNumbers, 0);
  const std::vector<double> values{0, 1e-12, 1, -1, 3.7, -2e-5, 1e19, 1e-30, -1e-30};
  for (const double x : values) LogBins::add(x, numbers.data());
  LogBins::add(NAN, numbers.data());
  const Histogram h = LogBins::histogram(numbers.data(), -1, 1e19);
  CHECK(h.count == 9);
  CHECK(std::is_sorted(h.limits.begin(), h.limits.end()));
  CHECK((h.buckets.front() == 1 && h.buckets.back() == 1));
  CHECK(numbers[LogBins::kBins + 2] == 1);
  for (const double x : {1e-12, 1., 3.7, 1e19, -1., -2e-5}) {
    const int b = LogBins::bin_of(x);
    CHECK(x <= LogBins::upper_limit(b) * (1 + (x > 0 ? 1e-8 : -1e-8)));
    CHECK(x >= LogBins::upper_limit(b - 1) * (1 - (x > 0 ? 1e-8 : -1e-8)));
  }
}

TEST_CASE("medians leave out the first two steps and unknown values") {
  RecentValues v(100);
  CHECK(std::isnan(v.median()));
  v.add(50);
  CHECK(v.median() == 50);
  for (const double x : {60., 1., 2., kUnknown, 3.}) v.add(x);
  CHECK(v.median() == 2);
  RecentValues few(3);  // keeps the newest three
  for (int i = 1; i <= 10; ++i) few.add(i);
  CHECK(few.median() == 9);
}
