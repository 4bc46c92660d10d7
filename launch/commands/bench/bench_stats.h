// Medians and spreads of measured times.
#pragma once
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

// Of the same unit as what was measured. mad: median of the distances from the median. NaN of nothing.
struct Spread {
  double median = 0, p10 = 0, p90 = 0, mad = 0;
};
Spread spread_of(std::vector<double> measured);
// What a `share` of the numbers lies below; between two of them, on the line that joins them. Not of nothing.
double quantile(std::vector<double> measured, double share);

// Of what each rank measured, the largest, on all of them. Collective.
double slowest(ProcessGroup& world, double seconds);

}  // namespace gt
