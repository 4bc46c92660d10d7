#include "launch/tools/report/watch_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/core/text.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/sinks/progress.h"
#include "launch/tools/report/chart.h"
#include "launch/tools/report/run_summary.h"

namespace gt {
namespace {

double config_number(const RunLog& log, const char* key) {
  for (const auto& [name, value] : log.starts().back().config)
    if (double x = 0; name == key && !value.empty() && value.size() < 20) {
      char* end = nullptr;
      x = std::strtod(value.c_str(), &end);
      return *end == '\0' ? x : 0;
    }
  return 0;
}

double remaining(const RunLog& log) {
  if (log.starts().empty() || log.steps().empty()) return kUnknown;
  const auto every = [&](const char* key) {
    return static_cast<int64_t>(std::clamp(config_number(log, key), 0., 1e12));
  };
  Eta eta(log.starts().back().total_steps, every("train.eval_every"), every("checkpoint.every"));
  constexpr size_t kRecent = 50;
  for (size_t i = log.steps().size() - std::min(log.steps().size(), kRecent); i < log.steps().size(); ++i)
    eta.step(log.steps()[i][&StepRecord::step_seconds]);
  if (!log.evals().empty()) eta.eval(log.evals().back().seconds);
  if (!log.saves().empty()) eta.saved(log.saves().back().stall_seconds);
  return eta.remaining(log.steps().back().step);
}

std::string number(const char* pattern, double x) {
  return std::isfinite(x) ? fmt::format(fmt::runtime(pattern), x) : short_number(x);
}

std::string slowest_text(const LoggedStep& s) {
  const double rank = s[&StepRecord::slowest_rank], stage = s[&StepRecord::slowest_stage];
  if (std::isnan(rank) && std::isnan(stage)) return "";
  return fmt::format("slowest {} {:.0f} (+{})", std::isnan(rank) ? "stage" : "rank", std::isnan(rank) ? stage : rank,
                     percent_text(s[&StepRecord::stage_spread]));
}

std::string memory_text(const RunSummary& s) {
  return std::isnan(s.measured_bytes) ? "memory n/a" : "memory " + format_bytes(s.measured_bytes);
}

}  // namespace

std::vector<std::string> text_chart(const std::vector<double>& y, int width, int rows) {
  constexpr int kAxis = 11;
  std::vector<double> values;
  for (const double v : y)
    if (std::isfinite(v)) values.push_back(v);
  std::vector<std::string> out;
  if (values.empty() || width < kAxis + 8 || rows < 3) return out;
  const size_t columns = std::min(values.size(), static_cast<size_t>(width - kAxis - 1));
  std::vector<double> means(columns);
  for (size_t c = 0; c < columns; ++c) {
    const size_t begin = c * values.size() / columns, end = (c + 1) * values.size() / columns;
    for (size_t i = begin; i < end; ++i) means[c] += values[i] / static_cast<double>(end - begin);
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double least = *low, unit = *high > least ? (*high - least) / (rows - 1) : 1;
  for (int row = rows - 1; row >= 0; --row) {
    std::string line;
    for (const double v : means) line += static_cast<int>((v - least) / unit + 0.5) == row ? '*' : ' ';
    line.erase(line.find_last_not_of(' ') + 1);
    const bool labelled = row == rows - 1 || row == 0 || row == rows / 2;
    out.push_back(fmt::format("{:>{}} |{}", labelled ? short_number(least + unit * row) : "", kAxis - 2, line));
  }
  return out;
}

std::string watch_line(const RunLog& log) {
  if (log.steps().empty()) return "no step yet";
  const LoggedStep& s = log.steps().back();
  StepRecord r;
  r.step = s.step;
  r.total_steps = log.starts().empty() ? 0 : log.starts().back().total_steps;
  r.loss = s[&StepRecord::loss];
  r.grad_norm = s[&StepRecord::grad_norm];
  r.lr = s[&StepRecord::lr];
  r.step_seconds = s[&StepRecord::step_seconds];
  r.tokens_per_second = s[&StepRecord::tokens_per_second];
  r.mfu = s[&StepRecord::mfu];
  r.of_ceiling = s[&StepRecord::of_ceiling];
  r.data_wait = s[&StepRecord::data_wait];
  const std::string slowest = slowest_text(s);
  return step_line(r, remaining(log)) + (slowest.empty() ? "" : "  " + slowest) + "  " + memory_text(summarize(log));
}

std::vector<std::string> watch_panel(const RunLog& log, int width, int height) {
  const RunSummary s = summarize(log);
  std::vector<std::string> out;
  out.push_back(printable(log.dir()) + "  " + printable(s.status));
  if (log.steps().empty()) {
    out.emplace_back("no step yet");
  } else {
    const LoggedStep& last = log.steps().back();
    const double share = s.total_steps > 0 ? static_cast<double>(s.steps) / static_cast<double>(s.total_steps) : 0;
    out.push_back(progress_bar(share, width, fmt::format("step {}/{}", s.steps, s.total_steps),
                               {"eta " + format_duration(remaining(log))}));
    out.push_back(fmt::format("loss {}  best {}  evaluation {}  gnorm {}  lr {:.2e}  skipped {}",
                              number("{:.4f}", s.last_loss), number("{:.4f}", s.best_loss),
                              number("{:.4f}", s.last_eval), number("{:.3f}", last[&StepRecord::grad_norm]),
                              last[&StepRecord::lr], s.skipped));
    out.push_back(fmt::format("{} tok/s  {} a step  mfu {}  not computing {}  waiting for data {}",
                              format_count(s.tokens_per_second), format_duration(s.step_seconds), percent_text(s.mfu),
                              percent_text(last[&StepRecord::bubble]), percent_text(last[&StepRecord::data_wait])));
    const std::string slowest = slowest_text(last);
    out.push_back(memory_text(s) + "  process of rank 0 " + format_bytes(s.peak_bytes) +
                  (slowest.empty() ? "" : "  " + slowest));
  }
  for (auto e = log.events().rbegin(); e != log.events().rend(); ++e)
    if (e->warning) {
      out.push_back(fmt::format("warning at step {}: {}", e->step, printable(e->text)));
      break;
    }
  std::vector<double> losses;
  for (const LoggedStep& step : log.steps()) losses.push_back(step[&StepRecord::loss]);
  const int rows = std::min(height - static_cast<int>(out.size()) - 1, 14);
  for (std::string& line : text_chart(smoothed(losses, static_cast<double>(losses.size()) / 40), width, rows))
    out.push_back(std::move(line));
  for (std::string& line : out) line.resize(std::min(line.size(), static_cast<size_t>(std::max(width, 1))));
  out.resize(std::min(out.size(), static_cast<size_t>(std::max(height, 1))));
  return out;
}

}  // namespace gt
