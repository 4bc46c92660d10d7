// The figures of one run that reports, comparisons and terminals show.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/report/run_log.h"

namespace gt {

// Unknown numbers are NaN. Medians leave out the first two steps of each start, which are slower.
struct RunSummary {
  std::string name, status;  // "finished", "interrupted …", "running", "no end record: killed, …"
  int64_t steps = 0, total_steps = 0, starts = 0, skipped = 0, world = 1;
  double tokens = kUnknown;
  double last_loss = kUnknown, best_loss = kUnknown;  // of training
  double last_eval = kUnknown, best_eval = kUnknown;
  double tokens_per_second = kUnknown, mfu = kUnknown, hfu = kUnknown, of_ceiling = kUnknown;  // medians
  double tflops = kUnknown;                                                                    // per device
  double step_seconds = kUnknown, bubble = kUnknown, exposed_comm = kUnknown, data_wait = kUnknown;
  double pipeline_bubble = kUnknown, bubble_predicted = kUnknown, step_predicted = kUnknown;
  double peak_bytes = kUnknown;                                // of rank 0's process, greatest
  double planned_bytes = kUnknown, measured_bytes = kUnknown;  // of the rank that needs most
  double goodput = kUnknown;  // step time / wall time from the first record to the last, restarts included
};
RunSummary summarize(const RunLog&);

double median_of(std::vector<double>);  // of the finite values; NaN without any

// One row a figure: its name and its text for each run; rows without a value in any run are left out.
struct SummaryRow {
  std::string name;
  std::vector<std::string> values;
};
std::vector<SummaryRow> summary_rows(const std::vector<RunSummary>&);

// Config keys whose values differ between runs, with the values; "" where a run lacks the key. Names of folders that
// always differ (log.name, checkpoint.dir) are left out.
std::vector<SummaryRow> config_differences(const std::vector<const RunLog*>&);

}  // namespace gt
