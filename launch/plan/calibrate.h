// Fits the constants of the step model to measured steps.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launch/plan/rows.h"

namespace gt {

using MachineProfiles = std::map<std::string, MachineModel>;

// Returns the constants that predict `rows`, all of one profile, best: minimizes mean |ln(predicted / printed)| + 0.3 x
// its root mean square + 0.003 (1 + (23 / rows)^2) x the mean square of (ln(constant / prior) / sigma), by a seeded
// random walk.
// Deterministic. Without rows: the prior.
MachineModel calibrate(const std::vector<PlanRow>& rows, const MachineModel& prior);

// Fits a model for every profile of the graded rows with times. The prior of a profile is that of its device, shifted
// by the mean fit of the other profiles of this device.
MachineProfiles calibrate_profiles(const std::vector<PlanRow>& rows);

// Returns cross-validation errors: each row is predicted by a fit without it. `folds` folds per profile; rows of one
// model and layout share a fold. In the order of `rows`; NaN for rows without a time or not graded.
std::vector<double> unseen_errors(const std::vector<PlanRow>& rows, int folds);

// JSON files of profiles. Errors are kUsage, naming file, profile and constant.
void write_profiles(const MachineProfiles&, const std::string& path);
MachineProfiles read_profiles(const std::string& path);

}  // namespace gt
