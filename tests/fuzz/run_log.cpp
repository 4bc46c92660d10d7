// log.jsonl, restarts.jsonl and a trace of a run folder: what is read becomes a page.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launch/observe/sinks/log_jsonl.h"
#include "launch/tools/report/report.h"
#include "launch/tools/report/run_summary.h"
#include "launch/tools/report/watch_view.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {
namespace fs = std::filesystem;

void run(std::string_view input) {
  const fs::path dir = fs::temp_directory_path() / ("gpt_fuzz_run_log_" + std::to_string(::getpid()));
  fs::create_directories(dir);
  for (const char* name : {"log.jsonl", "restarts.jsonl", "trace-1.json.gz"}) {
    const Parts parts = split_parts(input);
    const auto it = parts.find(name);
    std::ofstream(dir / name, std::ios::binary) << (it == parts.end() ? "" : it->second);
  }
  refused([&] {
    RunLog log(dir.string());
    log.read();
    const std::string page = report_html({&log, &log});
    GT_CHECK(page.size() <= kMostReportBytes, "a page of ", page.size(), " bytes");
    for (const char* never : {"<script", "<img", "=\"nan", "=\"inf"})
      GT_CHECK(page.find(never) == std::string::npos, "the page holds ", never);
    // Nothing is refused: the page shows which rules an input reached.
    for (const char* part : {"Learning rate", "Where the time", "Balance of", "Memory of each", "Timeline of",
                             "cannot be shown", "stall", "attempt ended", "not records", "resumed", "without a finite",
                             "logarithmic", "Layout", "Norm of all", "by layer"})
      if (page.find(part) != std::string::npos) outcome().refusals += part;
    GT_CHECK(watch_panel(log, 79, 20).size() <= 20);
    GT_CHECK(!summary_rows({summarize(log)}).empty());
  });
  fs::remove_all(dir);
}

std::vector<std::string> seeds() {
  StartInfo start{.command = "gpttrain", .config_json = R"({"model": {"layers": 4}})", .total_steps = 9};
  start.layout = "stage 0: embedding .. head";
  start.rows = {{"model", "gpt2"}};
  std::string log = json_line(start, 1) + "\n";
  for (int64_t k = 1; k <= 9; ++k) {
    StepRecord r{.step = k, .total_steps = 9, .time = 1, .tokens = 10 * k, .loss = 3.5, .grad_norm = 1, .lr = 1e-3};
    r.step_seconds = k == 6 ? 7 : 0.1;
    r.tokens_per_second = 100;
    r.timers_step = k - 1, r.timers_seconds = 0.1;
    r.timers[kForwardTime] = 0.05;
    log += json_line(r) + "\n";
  }
  log += json_line(EvalRecord{.step = 5, .loss = 3}) + "\n" + json_line(SavedRecord{.step = 5}) + "\n";
  log +=
      json_line(create_event(5, "spike", true)) + "\n" + json_line(make_scalar(5, "train/grad_norm/embed", 1)) + "\n";
  RankMemory memory{.rank = 0};
  memory.measured[0] = memory.planned[0] = 1000;
  log += json_line(MemoryRecord{.step = 5, .ranks = std::make_shared<std::vector<RankMemory>>(1, memory)}) + "\n";
  Timers times{};
  times[kForwardTime] = 0.1;
  log +=
      json_line(StagesRecord{.step = 5, .step_seconds = 1, .stages = std::make_shared<std::vector<Timers>>(2, times)}) +
      "\n";
  log += json_line(EndInfo{.reason = "finished"}, 9) + "\n";
  return {join_parts({{"log.jsonl", log},
                      {"restarts.jsonl", R"({"action": "restart", "seconds_lost": 3})"
                                         "\n"}}),
          join_parts({{"log.jsonl", log.substr(0, log.size() / 2)}}),
          join_parts({{"trace-1.json.gz", "\x1f\x8b\x08"}})};
}

}  // namespace

Target run_log() {
  return {"run_log",
          run,
          seeds,
          {"\"step\": ",
           "\"loss\": ",
           "\"inf\"",
           "\"nan\"",
           "1e308",
           "-1e308",
           "9e18",
           "-5",
           "null",
           "[",
           "{",
           "}",
           "]",
           "\"ranks\": ",
           "\"stages\": ",
           "\"timers\": {",
           "\"timers_step\": ",
           "\"type\": \"start\"",
           "\"type\": \"step\"",
           "<script>",
           "\\u0000",
           "\n",
           "\"first_step\": ",
           "\"value\": ",
           "\"tag\": ",
           "\"time\": "},
          1500};
}

}  // namespace gt::fuzz
