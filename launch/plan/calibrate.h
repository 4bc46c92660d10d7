// Fits the constants of the step model to measured steps.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/plan/rows.h"

namespace gt {

using MachineProfiles = std::map<std::string, MachineModel>;

// Constants under which `rows`, all of one profile, are predicted best: minimizes mean |ln(predicted / printed)| + 0.3
// x its root mean square + 0.005 x the mean square of (ln(constant / prior) / sigma), by a seeded random walk.
// Deterministic. Without rows: the prior.
MachineModel calibrate(const std::vector<PlanRow>& rows, const MachineModel& prior);

// A model for every profile of the graded rows with times. Priors of a profile are those of its device, moved by what
// the other profiles of the same device were fitted to.
MachineProfiles calibrate_profiles(const std::vector<PlanRow>& rows);

// Errors of rows that took no part in the fit that predicts them: `folds` folds of each profile, rows of one layout of
// one model never in two of them. In the order of `rows`; NaN where a row has no time or is not graded.
std::vector<double> unseen_errors(const std::vector<PlanRow>& rows, int folds);

// JSON files of profiles. kUsage names file, profile and constant.
void write_profiles(const MachineProfiles&, const std::string& path);
MachineProfiles read_profiles(const std::string& path);

}  // namespace gt
