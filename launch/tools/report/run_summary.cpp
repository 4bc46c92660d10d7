#include "launch/tools/report/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "launch/ranks/run_file.h"
#include "launch/tools/report/html.h"

namespace gt {
namespace {

constexpr int64_t kSlowSteps = 2;  // at the begin of each start

bool counts(const RunLog& log, int64_t step) {
  for (const LoggedStart& s : log.starts())
    if (step >= s.first_step && step < s.first_step + kSlowSteps) return false;
  return true;
}

double median_column(const RunLog& log, double StepRecord::*c) {
  std::vector<double> values, all;
  for (const LoggedStep& s : log.steps()) {
    all.push_back(s[c]);
    if (counts(log, s.step)) values.push_back(s[c]);
  }
  const double median = median_of(std::move(values));
  return std::isnan(median) ? median_of(std::move(all)) : median;
}

double last_finite(const RunLog& log, double StepRecord::*c) {
  for (auto s = log.steps().rbegin(); s != log.steps().rend(); ++s)
    if (std::isfinite((*s)[c])) return (*s)[c];
  return kUnknown;
}

int64_t total(const MemoryBytes& m) {
  int64_t sum = 0;
  for (const int64_t bytes : m) sum += std::min<int64_t>(bytes, INT64_MAX / 16);
  return sum;
}

// By the lock of the run's folder, which ends with its process.
std::string status_without_end(const std::string& dir) {
  switch (RunLock::state_of(dir)) {
    case RunLock::State::kHeld: return "running";
    case RunLock::State::kFree: return "no end record: killed, or its machine is gone";
    case RunLock::State::kNone: break;
  }
  return "no end record: running elsewhere, or killed";
}

}  // namespace

double median_of(std::vector<double> v) {
  std::erase_if(v, [](double x) { return !std::isfinite(x); });
  if (v.empty()) return kUnknown;
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

RunSummary summarize(const RunLog& log) {
  RunSummary s;
  s.name = log.name();
  s.starts = static_cast<int64_t>(log.starts().size());
  if (!log.starts().empty()) {
    s.total_steps = log.starts().back().total_steps;
    s.world = log.starts().back().world;
  }
  s.status = log.end() != nullptr ? fmt::format("{} (exit code {})", log.end()->reason, log.end()->exit_code)
                                  : status_without_end(log.dir());
  double in_steps = 0;
  for (const LoggedStep& step : log.steps()) {
    const double loss = step[&StepRecord::loss], seconds = step[&StepRecord::step_seconds];
    if (std::isfinite(loss) && !(s.best_loss <= loss)) s.best_loss = loss;
    if (std::isfinite(seconds)) in_steps += seconds;
    if (const double peak = step[&StepRecord::peak_bytes]; std::isfinite(peak) && !(s.peak_bytes >= peak))
      s.peak_bytes = peak;
  }
  if (!log.steps().empty()) {
    const LoggedStep& last = log.steps().back();
    s.steps = last.step;
    s.last_loss = last[&StepRecord::loss];
    s.tokens = last[&StepRecord::tokens];
    const double skipped = last[&StepRecord::skipped];
    s.skipped = std::isfinite(skipped) && std::fabs(skipped) < 1e15 ? static_cast<int64_t>(skipped) : 0;
  }
  for (const EvalRecord& e : log.evals()) {
    s.last_eval = e.loss;
    if (std::isfinite(e.loss) && !(s.best_eval <= e.loss)) s.best_eval = e.loss;
  }
  s.tokens_per_second = median_column(log, &StepRecord::tokens_per_second);
  s.mfu = median_column(log, &StepRecord::mfu);
  s.hfu = median_column(log, &StepRecord::hfu);
  s.of_ceiling = median_column(log, &StepRecord::of_ceiling);
  s.tflops = median_column(log, &StepRecord::tflops_per_device);
  s.step_seconds = median_column(log, &StepRecord::step_seconds);
  s.bubble = median_column(log, &StepRecord::bubble);
  s.pipeline_bubble = median_column(log, &StepRecord::pipeline_bubble);
  s.bubble_predicted = last_finite(log, &StepRecord::bubble_predicted);
  s.step_predicted = last_finite(log, &StepRecord::step_predicted);
  s.exposed_comm = median_column(log, &StepRecord::exposed_comm);
  s.data_wait = median_column(log, &StepRecord::data_wait);
  for (const RankMemory& m : log.memory())
    if (const auto bytes = static_cast<double>(total(m.measured)); !(s.measured_bytes >= bytes)) {
      s.measured_bytes = bytes;
      s.planned_bytes = static_cast<double>(total(m.planned));
    }
  // Thinned logs hold every so many steps: their times stand for all.
  if (!log.starts().empty() && !log.steps().empty()) {
    const double end = log.end() != nullptr ? log.end()->time : log.steps().back().time;
    const double wall = end - log.starts().front().time, each = in_steps / static_cast<double>(log.steps().size());
    const auto made = static_cast<double>(s.steps - log.steps().front().step + 1);
    if (wall > 0) s.goodput = std::min(1., each * made / wall);
  }
  return s;
}

std::vector<SummaryRow> summary_rows(const std::vector<RunSummary>& runs) {
  std::vector<SummaryRow> out;
  const auto row = [&](const char* name, const std::function<std::string(const RunSummary&)>& text) {
    SummaryRow r{name, {}};
    bool known = false;
    for (const RunSummary& s : runs) {
      r.values.push_back(text(s));
      known = known || r.values.back() != "n/a";
    }
    if (known) out.push_back(std::move(r));
  };
  const auto number = [&](const char* name, double RunSummary::*field, std::string (*text)(double)) {
    row(name, [&](const RunSummary& s) { return std::isnan(s.*field) ? "n/a" : text(s.*field); });
  };
  const auto loss = [](double x) { return std::isfinite(x) ? fmt::format("{:.4f}", x) : short_number(x); };
  row("status", [](const RunSummary& s) { return s.status; });
  row("steps", [](const RunSummary& s) { return fmt::format("{} of {}", s.steps, s.total_steps); });
  number("tokens", &RunSummary::tokens, format_count);
  number("last loss", &RunSummary::last_loss, loss);
  number("best loss", &RunSummary::best_loss, loss);
  number("last evaluation loss", &RunSummary::last_eval, loss);
  number("best evaluation loss", &RunSummary::best_eval, loss);
  number("tokens/s", &RunSummary::tokens_per_second, format_count);
  number("step time", &RunSummary::step_seconds, seconds_text);
  number("step time, predicted", &RunSummary::step_predicted, seconds_text);
  number("MFU", &RunSummary::mfu, percent_text);
  number("HFU", &RunSummary::hfu, percent_text);
  number("of measured peak", &RunSummary::of_ceiling, percent_text);
  number("TFLOP/s per device", &RunSummary::tflops, short_number);
  number("bubble (share of the step not computing)", &RunSummary::bubble, percent_text);
  number("pipeline bubble, measured", &RunSummary::pipeline_bubble, percent_text);
  number("pipeline bubble, predicted", &RunSummary::bubble_predicted, percent_text);
  number("exposed communication", &RunSummary::exposed_comm, percent_text);
  number("waiting for data", &RunSummary::data_wait, percent_text);
  number("peak memory of the largest rank", &RunSummary::measured_bytes, format_bytes);
  number("peak memory of rank 0's process", &RunSummary::peak_bytes, format_bytes);
  number("goodput (step time / wall time)", &RunSummary::goodput, percent_text);
  row("ranks", [](const RunSummary& s) { return std::to_string(s.world); });
  row("starts", [](const RunSummary& s) { return std::to_string(s.starts); });
  row("skipped steps", [](const RunSummary& s) { return std::to_string(s.skipped); });
  return out;
}

std::vector<SummaryRow> config_differences(const std::vector<const RunLog*>& logs) {
  std::vector<SummaryRow> out;
  std::map<std::string, std::vector<std::string>> values;
  std::vector<std::string> order;
  for (size_t k = 0; k < logs.size(); ++k) {
    if (logs[k]->starts().empty()) continue;
    for (const auto& [key, value] : logs[k]->starts().back().config) {
      if (key == "log.name" || key == "checkpoint.dir") continue;
      if (!values.count(key)) order.push_back(key);
      values[key].resize(logs.size());
      values[key][k] = value;
    }
  }
  for (const std::string& key : order) {
    const std::vector<std::string>& v = values[key];
    if (std::any_of(v.begin(), v.end(), [&](const std::string& x) { return x != v.front(); })) out.push_back({key, v});
  }
  return out;
}

}  // namespace gt
