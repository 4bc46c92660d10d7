// Medians and spreads of measured times.
#pragma once
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

// In the unit of the measurements. mad: median absolute deviation from the median. NaN for no measurements.
struct Spread {
  double median = 0, p10 = 0, p90 = 0, mad = 0;
};
Spread spread_of(std::vector<double> measured);
// Returns the quantile `share`, linearly interpolated. Requires: not empty.
double quantile(std::vector<double> measured, double share);

// Returns the maximum over all ranks, on all ranks. Collective.
double slowest(ProcessGroup& world, double seconds);
// Returns the mean over the ranks that `counts`, on all ranks; 0 if there are none. Collective.
double mean_of(ProcessGroup& world, double seconds, bool counts);

}  // namespace gt
