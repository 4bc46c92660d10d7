// gpttrain plan --trials: trains the layouts planned fastest for some steps each on this machine. Plans are off by more
// than the best layouts differ.
#pragma once
#include <span>

#include "launch/observe/measured_times.h"
#include "launch/tools/plan/run_plan.h"

namespace gt {

// Trains each layout on synthetic tokens in processes of its own, the fastest eight twice more and the fastest four of
// those as often again, until a time limit. Keeps the mean of the rounds' medians as the layout's step, and how far the
// plans are off as corrections of other plans. A layout that fails is named on standard error, with the end of its
// output, and left out. Requires: plans fastest first, of one model and number of ranks. Throws kIo if the times cannot
// be saved.
void try_layouts(std::span<const RunPlan> plans, MeasuredTimes&);

}  // namespace gt
