// gpttrain report: the page of one run, or of several overlaid. gpttrain compare: their figures as a table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/text.h"
#include "launch/options/output.h"
#include "launch/tools/report/report.h"
#include "launch/tools/report/run_summary.h"
#include "launch/tools/report/subcommands.h"

namespace gt {
namespace {

using Json = nlohmann::ordered_json;

class OpenRuns {
 public:
  explicit OpenRuns(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
      logs_.push_back(std::make_unique<RunLog>(folder));
      logs_.back()->read();
      views_.push_back(logs_.back().get());
    }
  }
  const std::vector<const RunLog*>& all() const { return views_; }

 private:
  std::vector<std::unique_ptr<RunLog>> logs_;
  std::vector<const RunLog*> views_;
};

void require_count(const std::vector<std::string>& runs, size_t least) {
  GT_REQUIRE(runs.size() >= least && runs.size() <= kMostReportRuns, Exit::kUsage, "expected ", least, " to ",
             kMostReportRuns, " run folders, found ", runs.size());
}

void write_page(const std::string& path, const std::vector<const RunLog*>& runs) {
  std::ofstream out(path, std::ios::binary);
  out << report_html(runs);
  out.close();
  GT_REQUIRE(out.good(), Exit::kIo, path, ": cannot be written");
}

// Pads to a number of characters, not bytes.
std::string padded(const std::string& text, size_t columns) {
  const auto n = static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  return text + std::string(columns > n ? columns - n : 0, ' ');
}

// Cells may come from a run folder of another user: control characters are replaced before a terminal prints them.
std::string text_table(const std::vector<SummaryRow>& rows) {
  constexpr size_t kMostColumns = 44;
  std::vector<size_t> widths;
  std::vector<std::vector<std::string>> cells;
  for (const SummaryRow& row : rows) {
    cells.push_back({printable(row.name)});
    for (const std::string& value : row.values) cells.back().push_back(printable(value));
    widths.resize(std::max(widths.size(), cells.back().size()));
    for (size_t i = 0; i < cells.back().size(); ++i)
      widths[i] = std::min(std::max(widths[i], cells.back()[i].size()), kMostColumns);
  }
  std::string out;
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += padded(row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

Json number_or_null(double x) { return std::isfinite(x) ? Json(x) : Json(); }

Json json_of(const RunSummary& s) {
  return {{"name", s.name},
          {"status", s.status},
          {"steps", s.steps},
          {"total_steps", s.total_steps},
          {"starts", s.starts},
          {"ranks", s.world},
          {"skipped_steps", s.skipped},
          {"tokens", number_or_null(s.tokens)},
          {"last_loss", number_or_null(s.last_loss)},
          {"best_loss", number_or_null(s.best_loss)},
          {"last_eval_loss", number_or_null(s.last_eval)},
          {"best_eval_loss", number_or_null(s.best_eval)},
          {"median_tokens_per_second", number_or_null(s.tokens_per_second)},
          {"median_step_seconds", number_or_null(s.step_seconds)},
          {"median_mfu", number_or_null(s.mfu)},
          {"median_hfu", number_or_null(s.hfu)},
          {"median_of_ceiling", number_or_null(s.of_ceiling)},
          {"median_tflops_per_device", number_or_null(s.tflops)},
          {"median_bubble", number_or_null(s.bubble)},
          {"median_pipeline_bubble", number_or_null(s.pipeline_bubble)},
          {"bubble_predicted", number_or_null(s.bubble_predicted)},
          {"step_predicted", number_or_null(s.step_predicted)},
          {"median_exposed_comm", number_or_null(s.exposed_comm)},
          {"median_data_wait", number_or_null(s.data_wait)},
          {"planned_bytes", number_or_null(s.planned_bytes)},
          {"measured_bytes", number_or_null(s.measured_bytes)},
          {"process_bytes", number_or_null(s.peak_bytes)},
          {"goodput", number_or_null(s.goodput)}};
}

}  // namespace

Exit run_report(const Command& command) {
  const auto& args = command.get<ReportArgs>();
  require_count(args.runs, 1);
  const OpenRuns runs(args.runs);
  std::string path = args.output;
  if (path.empty() && args.runs.size() == 1) {
    write_report(*runs.all().front());
    path = args.runs.front() + "/report.html";
  } else {
    if (path.empty()) path = "report.html";
    write_page(path, runs.all());
  }
  write_out(fmt::format("{}\n", printable(path)));
  flush_out();
  return Exit::kOk;
}

Exit run_compare(const Command& command) {
  const auto& args = command.get<CompareArgs>();
  require_count(args.runs, 2);
  const OpenRuns runs(args.runs);
  std::vector<RunSummary> summaries;
  for (const RunLog* log : runs.all()) summaries.push_back(summarize(*log));
  const std::vector<SummaryRow> differences = config_differences(runs.all());
  if (!args.html.empty()) write_page(args.html, runs.all());
  if (args.json) {
    Json list = Json::array(), config = Json::object();
    for (const RunSummary& s : summaries) list.push_back(json_of(s));
    for (const SummaryRow& row : differences) config[row.name] = row.values;
    const Json all = {{"runs", list}, {"config_differences", config}};
    write_out(all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    std::vector<SummaryRow> rows = summary_rows(summaries);
    SummaryRow names{"", {}};
    for (const RunSummary& s : summaries) names.values.push_back(s.name);
    rows.insert(rows.begin(), names);
    std::string out = text_table(rows);
    if (differences.empty()) {
      out += "\nthe configurations are equal\n";
    } else {
      std::vector<SummaryRow> config = differences;
      for (SummaryRow& row : config)
        for (std::string& value : row.values)
          if (value.empty()) value = "-";
      config.insert(config.begin(), {"differences of configuration", names.values});
      out += "\n" + text_table(config);
    }
    if (!args.html.empty()) out += "\npage: " + printable(args.html) + "\n";
    write_out(out);
  }
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
