// The present state of a run as text: a panel for terminals, one line elsewhere.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/report/run_log.h"

namespace gt {

// A curve of `rows` lines, each at most `width` columns of ASCII with the y-axis at the left. Gaps are left out. Empty
// without finite values.
std::vector<std::string> text_chart(const std::vector<double>& y, int width, int rows);

// Lines of at most `width` columns, at most `height` of them: progress, losses, speed, slowest rank, memory, chart.
std::vector<std::string> watch_panel(const RunLog&, int width, int height);

// "step 120/2000  loss 4.2137  …  slowest stage 1 (+12.1 %)  memory 1.9 GB"; "no step yet".
std::string watch_line(const RunLog&);

}  // namespace gt
