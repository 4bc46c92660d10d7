#include "launch/tools/report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "kernels/core/check.h"
#include "launch/observe/trace/trace_json.h"
#include "launch/tools/report/chart.h"
#include "launch/tools/report/run_summary.h"

namespace gt {
namespace {

// Several runs share the space of one.
size_t points_each(const ReportDetail& detail, size_t runs) {
  return std::max<size_t>(60, detail.points / std::max<size_t>(1, (runs + 1) / 2));
}

// The x-axis of a loss figure. Tokens: targets, cumulative. Hours: by the clock, since the run's first start.
enum class LossAxis { kSteps, kTokens, kHours };

// Returns x of every logged step; NaN where it was not recorded.
std::vector<double> axis_of(const RunLog& log, LossAxis axis) {
  std::vector<double> x;
  const double begin = log.starts().empty() ? kUnknown : log.starts().front().time;
  double most = 0;
  for (const LoggedStep& step : log.steps()) {
    const double hours = (step.time - begin) / 3600;
    const double at = axis == LossAxis::kSteps    ? static_cast<double>(step.step)
                      : axis == LossAxis::kTokens ? step[&StepRecord::tokens]
                                                  : hours;
    if (std::isfinite(at)) most = std::max(most, at);  // clocks of other hosts may be behind
    x.push_back(std::isfinite(at) ? most : kUnknown);
  }
  return x;
}

// Drops the points without an x.
Series placed(Series s) {
  size_t n = 0;
  for (size_t i = 0; i < s.x.size(); ++i)
    if (std::isfinite(s.x[i])) s.x[n] = s.x[i], s.y[n++] = s.y[i];
  s.x.resize(n), s.y.resize(n);
  return s;
}

// Losses of evaluations, each where the last step before it is.
Series eval_series(const RunLog& log, LossAxis axis, const std::vector<double>& x) {
  Series s;
  for (const EvalRecord& e : log.evals()) {
    const auto after = std::upper_bound(log.steps().begin(), log.steps().end(), e.step,
                                        [](int64_t step, const LoggedStep& l) { return step < l.step; });
    const auto before = static_cast<size_t>(after - log.steps().begin());
    s.x.push_back(axis == LossAxis::kSteps ? static_cast<double>(e.step) : before > 0 ? x[before - 1] : kUnknown);
    s.y.push_back(e.loss);
  }
  return placed(std::move(s));
}

Series column_series(const RunLog& log, size_t row) {
  Series s;
  for (const LoggedStep& step : log.steps()) {
    s.x.push_back(static_cast<double>(step.step));
    s.y.push_back(step.values[row]);
  }
  return s;
}

// Whether there is a finite value other than `than`.
bool any_other(const Series& s, double than) {
  return std::any_of(s.y.begin(), s.y.end(), [than](double y) { return std::isfinite(y) && y != than; });
}
bool any_finite(const Series& s) { return any_other(s, kUnknown); }

// "run a: from 9.01 at step 1 to 5.92 at step 150, least 5.84, greatest 9.01."
std::string described(const Series& s, const std::string& name, const std::function<std::string(double)>& label) {
  double first = kUnknown, last = kUnknown, from = 0, to = 0, least = INFINITY, most = -INFINITY;
  size_t gaps = 0;
  for (size_t i = 0; i < s.y.size(); ++i) {
    if (!std::isfinite(s.y[i])) {
      ++gaps;
      continue;
    }
    if (std::isnan(first)) first = s.y[i], from = s.x[i];
    last = s.y[i], to = s.x[i];
    least = std::min(least, s.y[i]), most = std::max(most, s.y[i]);
  }
  if (std::isnan(first)) return "";
  return fmt::format("{}: from {} at step {:.15g} to {} at step {:.15g}, least {}, greatest {}{}. ", name, label(first),
                     from, label(last), to, label(least), label(most),
                     gaps > 0 ? fmt::format(", {} of {} steps without a finite value", gaps, s.y.size()) : "");
}

Series with_name(Series s, std::string name, int color, Mark mark) {
  s.name = std::move(name);
  s.color = color;
  s.mark = mark;
  return s;
}

std::string axis_number(double x) { return std::fabs(x) >= 1e4 ? format_count(x) : short_number(x); }

// Labels and ticks of a unit.
using ValueText = std::string (*)(double);
std::pair<ValueText, ValueText> texts_of(MetricUnit unit) {
  switch (unit) {
    case MetricUnit::kPerSecond: return {axis_number, axis_number};
    case MetricUnit::kSeconds: return {seconds_text, seconds_text};
    case MetricUnit::kFraction: return {percent_text, percent_tick};
    case MetricUnit::kNumber: break;
  }
  return {short_number, short_number};
}

std::string metric_figure(const Runs& runs, const StepMetric& m, const ReportDetail& detail) {
  const auto [label, tick] = texts_of(m.unit);
  LineChart chart{.id = m.chart.name,
                  .title = m.chart.title,
                  .x_label = "step",
                  .unit = m.chart.note,
                  .zero = m.chart.zero,
                  .logarithmic = m.chart.logarithmic,
                  .label = label,
                  .tick = tick,
                  .points = points_each(detail, runs.size())};
  const size_t row = static_cast<size_t>(&m - step_metrics().data());
  for (size_t k = 0; k < runs.size(); ++k) {
    Series s = column_series(*runs[k], row);
    const bool wait = row == metric_index(&StepRecord::data_wait);
    if (!any_other(s, wait ? 0 : kUnknown)) continue;  // no picture of a loader that never waits
    chart.description += described(s, runs[k]->name(), label);
    chart.series.push_back(with_name(std::move(s), runs[k]->name(), static_cast<int>(k), Mark::kLine));
  }
  return to_html(chart);
}

std::string loss_label(double x) { return std::isfinite(x) ? fmt::format("{:.4f}", x) : short_number(x); }

// Groups of timers that a figure distinguishes by color.
struct TimeGroup {
  const char* name;
  std::vector<size_t> timers;
};
const std::vector<TimeGroup>& time_groups() {
  static const std::vector<TimeGroup> kGroups{
      {"forward", {kForwardTime, kMicrobatchTime}},  // graphs of microbatches hold both
      {"backward", {kBackwardTime, kInputGradTime, kWeightGradTime}},
      {"waiting for stages", {kWaitTime}},
      {"tensor-parallel communication", {kTpTime}},
      {"data-parallel communication", {kReduceTime, kGatherTime}},
      {"norms and optimizer", {kNormsTime, kOptimizerTime}},
      {"waiting for data", {kDataTime}},
      {"other", {kPipelineTime}},
  };
  return kGroups;
}

std::vector<std::string> group_names() {
  std::vector<std::string> out;
  for (const TimeGroup& g : time_groups()) out.emplace_back(g.name);
  return out;
}

}  // namespace

namespace {

std::string loss_over(const Runs& runs, const ReportDetail& detail, LossAxis axis) {
  const bool steps = axis == LossAxis::kSteps;
  LineChart chart{.id = steps                       ? "loss"
                        : axis == LossAxis::kTokens ? "loss-tokens"
                                                    : "loss-hours",
                  .title = steps                       ? "Loss"
                           : axis == LossAxis::kTokens ? "Loss over target tokens"
                                                       : "Loss over hours",
                  .description = steps ? "" : "The values of the loss over steps, at other places. ",
                  .x_label = steps                       ? "step"
                             : axis == LossAxis::kTokens ? "target tokens"
                                                         : "hours since the first start",
                  .wide = true,
                  .logarithmic = true,
                  .label = loss_label,
                  .tick = short_number,
                  .points = points_each(detail, runs.size())};
  for (size_t k = 0; k < runs.size(); ++k) {
    const std::string of = runs.size() > 1 ? runs[k]->name() + ": " : "";
    const int color = static_cast<int>(k);
    Series raw = column_series(*runs[k], metric_index(&StepRecord::loss));
    const std::vector<double> x = axis_of(*runs[k], axis);
    raw.x = x;
    raw = placed(std::move(raw));
    Series mean = raw;
    mean.y = smoothed(raw.y, static_cast<double>(raw.y.size()) / 40);
    if (!any_finite(raw)) continue;
    if (steps) chart.description += described(raw, of + "training loss", loss_label);
    chart.series.push_back(with_name(std::move(raw), of + "training", color, Mark::kFaintLine));
    chart.series.push_back(with_name(std::move(mean), of + "training, smoothed", color, Mark::kLine));
    Series evals = eval_series(*runs[k], axis, x);
    if (!any_finite(evals)) continue;
    if (steps) chart.description += described(evals, of + "evaluation loss", loss_label);
    const int eval_color = runs.size() > 1 ? color : color + 1;
    chart.series.push_back(with_name(std::move(evals), of + "evaluation", eval_color, Mark::kPoints));
  }
  return to_html(chart);
}

}  // namespace

std::string loss_figure(const Runs& runs, const ReportDetail& detail) {
  return loss_over(runs, detail, LossAxis::kSteps);
}

std::string loss_by_cost(const Runs& runs, const ReportDetail& detail) {
  const std::string both = loss_over(runs, detail, LossAxis::kTokens) + loss_over(runs, detail, LossAxis::kHours);
  return both.empty() ? "" : html_details("Loss over target tokens and over hours", both);
}

std::string column_figures(const Runs& runs, const ReportDetail& detail) {
  std::string out;
  for (const StepMetric* m : metrics_in([](const StepMetric& m) -> const MetricName& { return m.chart; }))
    out += metric_figure(runs, *m, detail);
  return out;
}

std::string curve_figures(const Runs& runs, const ReportDetail& detail) {
  constexpr std::string_view kByLayer = "train/grad_norm/";
  std::string out;
  const auto series_of = [](const LoggedCurve& curve) {
    Series s;
    s.x.assign(curve.steps.begin(), curve.steps.end());
    s.y = curve.values;
    return s;
  };
  for (const auto& [tag, title] : {std::pair{"train/param_norm", "Norm of all parameters"},
                                   {"train/update_ratio", "Norm of the update / norm of the parameters"}}) {
    LineChart chart{.id = std::string(tag).substr(6), .title = title, .x_label = "step"};
    chart.points = points_each(detail, runs.size());
    for (size_t k = 0; k < runs.size(); ++k) {
      const auto it = runs[k]->curves().find(tag);
      if (it == runs[k]->curves().end()) continue;
      chart.series.push_back(with_name(series_of(it->second), runs[k]->name(), static_cast<int>(k), Mark::kLine));
      chart.description += described(chart.series.back(), runs[k]->name(), chart.label);
    }
    out += to_html(chart);
  }
  for (size_t k = 0; k < runs.size(); ++k) {
    std::vector<std::pair<std::string, const LoggedCurve*>> layers;
    for (const auto& [tag, curve] : runs[k]->curves())
      if (tag.starts_with(kByLayer)) layers.emplace_back(tag.substr(kByLayer.size()), &curve);
    if (layers.empty()) continue;
    // "layers.10" after "layers.9"
    std::sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first.size(), a.first) < std::pair(b.first.size(), b.first);
    });
    const size_t shown = std::min<size_t>(layers.size(), kColors);
    LineChart chart{.id = fmt::format("layers-{}", k), .title = "Gradient norm by layer", .x_label = "step"};
    if (runs.size() > 1) chart.title += ", " + runs[k]->name();
    if (shown < layers.size()) chart.title += fmt::format(" ({} of {} layers)", shown, layers.size());
    chart.logarithmic = true;
    chart.points = points_each(detail, shown);
    for (size_t i = 0; i < shown; ++i) {
      const auto& [name, curve] = layers[shown == 1 ? 0 : i * (layers.size() - 1) / (shown - 1)];
      chart.series.push_back(with_name(series_of(*curve), name, static_cast<int>(i), Mark::kLine));
      chart.description += described(chart.series.back(), name, chart.label);
    }
    out += to_html(chart);
  }
  return out;
}

std::string step_time_figure(const RunLog& log, const std::string& prefix) {
  StackedArea chart{.id = prefix + "times",
                    .title = "Where the time of a step goes",
                    .description = "Mean over the ranks, stacked; the values are listed below.",
                    .x_label = "step",
                    .parts = group_names(),
                    .label = seconds_text};
  chart.values.resize(chart.parts.size());
  for (const LoggedStep& s : log.steps()) {
    if (s.timers_step < 0) continue;
    chart.x.push_back(static_cast<double>(s.timers_step));
    for (size_t g = 0; g < chart.parts.size(); ++g) {
      double sum = 0;
      for (const size_t t : time_groups()[g].timers) sum += std::max(0., static_cast<double>(s.timers[t]));
      chart.values[g].push_back(sum);
    }
  }
  return to_html(chart);
}

std::string stage_figure(const RunLog& log, const std::string& prefix) {
  const StagesRecord& r = log.stages();
  if (!r.stages || r.stages->empty()) return "";
  StackedBars chart{.id = prefix + "stages",
                    .title = "Balance of the pipeline stages",
                    .parts = group_names(),
                    .label = seconds_text};
  double slowest = 0, sum = 0;
  size_t which = 0;
  constexpr size_t kMostStages = 64;
  for (size_t k = 0; k < std::min(r.stages->size(), kMostStages); ++k) {
    const Timers& t = (*r.stages)[k];
    StackedBars::Bar bar{fmt::format("stage {}", k), {}};
    for (const TimeGroup& g : time_groups()) {
      double seconds = 0;
      for (const size_t i : g.timers) seconds += std::max(0., t[i]);
      bar.values.push_back(seconds);
    }
    const double computing = bar.values[0] + bar.values[1];
    if (computing > slowest) slowest = computing, which = k;
    sum += computing;
    chart.bars.push_back(std::move(bar));
  }
  const double mean = sum / static_cast<double>(chart.bars.size());
  chart.description =
      fmt::format("Mean seconds of a step by stage. Stage {} computes longest, {} of {}, {} above the mean.", which,
                  seconds_text(slowest), seconds_text(r.step_seconds), percent_text(slowest / mean - 1));
  return to_html(chart);
}

std::string memory_figures(const RunLog& log, const std::string& prefix) {
  StackedBars chart{.id = prefix + "memory",
                    .title = "Memory of each rank by category, measured",
                    .label = [](double bytes) { return format_bytes(bytes); }};
  chart.parts.assign(std::begin(kMemoryNames), std::end(kMemoryNames));
  for (const RankMemory& m : log.memory()) {
    StackedBars::Bar bar{fmt::format("rank {}, stage {}", m.rank, m.stage), {}};
    for (const int64_t bytes : m.measured) bar.values.push_back(static_cast<double>(bytes));
    chart.bars.push_back(std::move(bar));
  }
  chart.description = "Peak bytes that each rank's engine allocated, without the process itself and its libraries.";
  return to_html(chart);
}

std::string timeline_figure(const RunLog& log, const std::string& prefix, const ReportDetail& detail) {
  const std::string path = newest_trace(log.dir());
  if (path.empty()) return "";
  TraceSlices trace;
  try {
    trace = read_trace(path);
  } catch (const Error& e) { return "<p>The trace cannot be shown: " + html_text(e.what()) + "</p>\n"; }
  int64_t step = -1;
  for (const TraceSlice& s : trace.slices) step = std::max(step, s.step);
  enum Kind : size_t { kForward, kBackward, kMessage, kWeight, kReduction, kUpdate, kData };
  static const std::map<std::string, Kind> kKinds{
      {"forward", kForward},        {"microbatch", kForward}, {"backward", kBackward}, {"backward_input", kBackward},
      {"backward_weight", kWeight}, {"p2p", kMessage},        {"reduce", kReduction},  {"zero_gather_wait", kReduction},
      {"grad_norm", kUpdate},       {"optimizer", kUpdate},   {"data_wait", kData}};
  TimelineChart chart{.id = prefix + "timeline",
                      .title = fmt::format("Timeline of step {}", step),
                      .kinds = {"forward", "backward", "waiting for a message", "weight gradients only",
                                "gradient reduction, gathering", "norms, optimizer", "waiting for data"},
                      .most_boxes = detail.boxes};
  constexpr size_t kMostRows = 64;
  std::map<int, size_t> rows;
  for (const TraceSlice& s : trace.slices)
    if (s.step == step && rows.size() < kMostRows) rows.emplace(s.rank, 0);
  for (auto& [rank, row] : rows) {
    row = chart.rows.size();
    chart.rows.push_back(fmt::format("rank {}", rank));
  }
  for (const TraceSlice& s : trace.slices) {
    const auto kind = kKinds.find(s.category);
    const auto row = rows.find(s.rank);
    if (s.step != step || kind == kKinds.end() || row == rows.end()) continue;
    // A send that is not waited for goes on while the rank computes.
    if (kind->second == kMessage && !s.waits && s.track != static_cast<int>(Track::kRecv)) continue;
    chart.boxes.push_back({row->second, kind->second, s.begin, s.begin + s.seconds,
                           s.microbatch >= 0 && kind->second != kMessage ? std::to_string(s.microbatch) : ""});
  }
  std::stable_sort(chart.boxes.begin(), chart.boxes.end(), [](const auto& a, const auto& b) {
    return (a.kind == kMessage) > (b.kind == kMessage);  // waits below work
  });
  chart.description = fmt::format(
      "What each of {} traced ranks did in step {}; boxes carry the microbatch. All traced "
      "steps: open {} in ui.perfetto.dev.",
      chart.rows.size(), step, path.substr(path.rfind('/') + 1));
  return to_html(chart);
}

}  // namespace gt
