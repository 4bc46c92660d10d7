// report.html: what happened in a run, or in several beside each other, as one file that needs no network and no
// script. Made of run folders alone, so that the report of a finished run can be made again anywhere.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/report/run_log.h"

namespace gt {

constexpr size_t kMostReportBytes = size_t{2} << 20;
constexpr size_t kMostReportRuns = 16;

// The page. Requires: 1 to kMostReportRuns runs. Of several runs the curves are overlaid; memory, timelines and events
// follow run by run. Detail is reduced until the page fits kMostReportBytes.
std::string report_html(const std::vector<const RunLog*>& runs);

// Writes dir/report.html of the run that is logged there, replacing it at once. Throws kIo.
void write_report(const RunLog&);

}  // namespace gt
