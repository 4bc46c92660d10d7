// The figures and tables of a report, from what runs logged. Each returns HTML; "" where nothing was recorded.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/report/run_log.h"

namespace gt {

// How much is drawn, to bound the page.
struct ReportDetail {
  size_t points = 600;  // of a curve
  size_t boxes = 4000;  // of a timeline
  size_t rows = 2000;   // of a table
};

using Runs = std::vector<const RunLog*>;

// Curves over steps, all runs in one picture.
std::string loss_figure(const Runs&, const ReportDetail&);
std::string loss_by_cost(const Runs&, const ReportDetail&);    // the same over target tokens and over hours, closed
std::string column_figures(const Runs&, const ReportDetail&);  // learning rate, throughput, utilization, norms, …
std::string curve_figures(const Runs&, const ReportDetail&);   // scalar records: norms by layer, update ratio

// Pictures of one run; `prefix` makes their ids unique in the page.
std::string step_time_figure(const RunLog&, const std::string& prefix);
std::string stage_figure(const RunLog&, const std::string& prefix);
std::string memory_figures(const RunLog&, const std::string& prefix);
std::string timeline_figure(const RunLog&, const std::string& prefix, const ReportDetail&);

// Tables of one run.
std::string prediction_table(const RunLog&);  // plan beside measurement
std::string unusual_table(const RunLog&, const ReportDetail&);
std::string config_tables(const RunLog&, const ReportDetail&);  // start block, layout, environment, config

}  // namespace gt
