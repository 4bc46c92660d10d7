#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "launch/tools/report/figures.h"
#include "launch/tools/report/html.h"
#include "launch/tools/report/run_summary.h"

namespace gt {
namespace {

constexpr double kStallFactor = 5;  // of the median step: a longer one is a stall

HtmlTable two_columns(const std::string& caption, const char* first, const char* second, const Rows& rows,
                      size_t most) {
  HtmlTable t{.caption = caption, .head = {first, second}};
  for (const auto& [label, value] : rows)
    if (t.rows.size() < most) t.rows.push_back({label, value});
  if (rows.size() > t.rows.size()) t.rows.push_back({fmt::format("and {} more", rows.size() - t.rows.size()), ""});
  return t;
}

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string difference_text(double predicted, double measured) {
  return predicted > 0 ? fmt::format("{:+.1f} %", 100 * (measured / predicted - 1)) : "n/a";
}

// One unusual thing, in order of time.
struct Notice {
  double time = kUnknown;
  std::string step, kind, text;
};

bool is_unusual(const LoggedEvent& e) {
  if (e.warning) return true;
  for (const char* word : {"skipped", "rolled back", "above the median", "spike", "damaged", "not finite"})
    if (e.text.find(word) != std::string::npos) return true;
  return false;
}

void add_stalls(const RunLog& log, std::vector<Notice>& out) {
  constexpr size_t kMostStalls = 20;
  const double median = summarize(log).step_seconds;
  std::vector<const LoggedStep*> slow;
  int64_t not_finite = 0, first_bad = 0;
  for (const LoggedStep& s : log.steps()) {
    const bool starts = std::any_of(log.starts().begin(), log.starts().end(), [&](const LoggedStart& b) {
      return s.step <= b.first_step + 1 && s.step >= b.first_step;
    });
    if (!starts && s[&StepRecord::step_seconds] > kStallFactor * median) slow.push_back(&s);
    if (!std::isfinite(s[&StepRecord::loss]) && not_finite++ == 0) first_bad = s.step;
  }
  std::sort(slow.begin(), slow.end(),
            [](auto* a, auto* b) { return (*a)[&StepRecord::step_seconds] > (*b)[&StepRecord::step_seconds]; });
  for (size_t i = 0; i < std::min(slow.size(), kMostStalls); ++i)
    out.push_back(
        {slow[i]->time, std::to_string(slow[i]->step), "stall",
         fmt::format("took {}, {:.1f} times the median of {}", seconds_text((*slow[i])[&StepRecord::step_seconds]),
                     (*slow[i])[&StepRecord::step_seconds] / median, seconds_text(median))});
  if (slow.size() > kMostStalls)
    out.push_back({kUnknown, "", "stall", fmt::format("{} more slow steps", slow.size() - kMostStalls)});
  if (not_finite > 0)
    out.push_back({kUnknown, std::to_string(first_bad), "loss",
                   fmt::format("{} steps without a finite loss, the first here", not_finite)});
  for (const SavedRecord& save : log.saves())
    if (save.stall_seconds > std::max(kStallFactor * median, 1.))
      out.push_back({save.time, std::to_string(save.step), "checkpoint",
                     fmt::format("held training up for {}", seconds_text(save.stall_seconds))});
}

std::vector<Notice> notices_of(const RunLog& log) {
  std::vector<Notice> out;
  for (const LoggedStart& s : log.starts())
    if (s.resumed_from >= 0)
      out.push_back({s.time, std::to_string(s.first_step), "resumed", fmt::format("from step {}", s.resumed_from)});
  for (const LoggedEvent& e : log.events())
    if (is_unusual(e)) out.push_back({e.time, std::to_string(e.step), e.warning ? "warning" : "event", e.text});
  add_stalls(log, out);
  if (const LoggedEnd* end = log.end(); end != nullptr && end->exit_code != 0)
    out.push_back(
        {end->time, std::to_string(end->step), "end", fmt::format("{} (exit code {})", end->reason, end->exit_code)});
  std::stable_sort(out.begin(), out.end(), [](const Notice& a, const Notice& b) {
    return (std::isnan(a.time) ? INFINITY : a.time) < (std::isnan(b.time) ? INFINITY : b.time);
  });
  for (const LoggedRestart& r : log.restarts())
    out.push_back({kUnknown, "", "attempt ended",
                   fmt::format("{}: {}; lost {}", r.action, r.what, seconds_text(r.seconds_lost))});
  if (log.bad_lines() > 0)
    out.push_back(
        {kUnknown, "", "log", fmt::format("{} lines of log.jsonl are not records and are left out", log.bad_lines())});
  if (log.dropped_events() > 0)
    out.push_back({kUnknown, "", "log", fmt::format("{} further events are in log.jsonl", log.dropped_events())});
  return out;
}

}  // namespace

std::string prediction_table(const RunLog& log) {
  HtmlTable t{
      .caption = "Plan beside measurement", .head = {"", "predicted", "measured", "difference"}, .numbers = true};
  const RunSummary s = summarize(log);
  if (std::isfinite(s.step_seconds) && std::isfinite(s.step_predicted))
    t.rows.push_back({"step time", seconds_text(s.step_predicted), seconds_text(s.step_seconds),
                      difference_text(s.step_predicted, s.step_seconds)});
  if (std::isfinite(s.pipeline_bubble) && std::isfinite(s.bubble_predicted))
    t.rows.push_back({"pipeline bubble", percent_text(s.bubble_predicted), percent_text(s.pipeline_bubble),
                      fmt::format("{:+.1f} points", 100 * (s.pipeline_bubble - s.bubble_predicted))});
  const RankMemory* largest = nullptr;
  const auto total = [](const MemoryBytes& m) {
    double sum = 0;
    for (const int64_t bytes : m) sum += static_cast<double>(bytes);
    return sum;
  };
  for (const RankMemory& m : log.memory())
    if (largest == nullptr || total(m.measured) > total(largest->measured)) largest = &m;
  if (largest != nullptr) {
    for (size_t i = 0; i < std::size(kMemoryNames); ++i) {
      const int64_t planned = largest->planned[i], measured = largest->measured[i];
      if (planned != 0 || measured != 0)
        t.rows.push_back({fmt::format("{} of rank {}", kMemoryNames[i], largest->rank), bytes_text(planned),
                          bytes_text(measured),
                          difference_text(static_cast<double>(planned), static_cast<double>(measured))});
    }
    const double planned = total(largest->planned), measured = total(largest->measured);
    t.rows.push_back({fmt::format("memory of rank {}", largest->rank), format_bytes(planned), format_bytes(measured),
                      difference_text(planned, measured)});
  }
  return t.rows.empty() ? "" : to_html(t);
}

std::string unusual_table(const RunLog& log, const ReportDetail& detail) {
  const std::vector<Notice> notices = notices_of(log);
  if (notices.empty()) return "<p>Nothing: no warnings, spikes, stalls, skipped steps or restarts.</p>\n";
  HtmlTable t{.caption = "What was unusual", .head = {"step", "after", "kind", "what"}};
  const double begin = log.starts().empty() ? kUnknown : log.starts().front().time;
  const size_t most = std::min<size_t>(detail.rows, 300);
  for (const Notice& n : notices)
    if (t.rows.size() < most)
      t.rows.push_back({n.step, std::isnan(n.time - begin) ? "" : seconds_text(n.time - begin), n.kind, n.text});
  if (notices.size() > most) t.rows.push_back({"", "", "", fmt::format("and {} more", notices.size() - most)});
  return to_html(t);
}

std::string config_tables(const RunLog& log, const ReportDetail& detail) {
  if (log.starts().empty()) return "";
  const LoggedStart& s = log.starts().back();
  Rows environment;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) environment.emplace_back(name, text);
  };
  add("command", s.command);
  add("program", s.version);
  add("device", s.environment);
  add("ranks", std::to_string(s.world));
  add("run folder", log.dir());
  std::string out = to_html(two_columns("Environment", "", "value", environment, detail.rows));
  if (!s.layout.empty()) {
    HtmlTable layout{.caption = "Layout: who holds what", .head = {"", "layers and planned memory"}};
    std::istringstream lines(s.layout);
    for (std::string line; std::getline(lines, line) && layout.rows.size() < detail.rows;) {
      const size_t colon = std::min(line.find(": "), line.size());
      layout.rows.push_back({line.substr(0, colon), colon < line.size() ? line.substr(colon + 2) : ""});
    }
    out += to_html(layout);
  }
  if (!s.block.empty())
    out += html_details("Start block", to_html(two_columns("Start block", "", "value", s.block, detail.rows)));
  if (log.end() != nullptr && !log.end()->block.empty())
    out += html_details("End block", to_html(two_columns("End block", "", "value", log.end()->block, detail.rows)));
  if (!s.config.empty())
    out += html_details(fmt::format("Configuration ({} keys)", s.config.size()),
                        to_html(two_columns("Configuration", "key", "value", s.config, detail.rows)));
  return out;
}

}  // namespace gt
